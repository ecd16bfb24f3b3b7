"""`gander check --xfail FILE`: known failures do not fail the run, and nothing else hides behind them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

FORGETFUL = ("check", "-e", "py:misbehaving:Forgetful", "--brief", "--only", "path.clone", "--only", "path.repeat")
NARROW = ("-m", "golden:narrow")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def known(*lines: str) -> tuple[str, str]:
    Path("known.txt").write_text("\n".join(lines) + "\n")
    return "--xfail", "known.txt"


def test_a_known_failure_does_not_fail_the_run(gander: Callable) -> None:
    """It is named with its reason, and counted in the verdict."""
    typed = gander(*FORGETFUL, *NARROW, *known("# the state", "", "path.clone   calls start from zero: issue 12"))
    lines = [line.rstrip() for line in typed.out.splitlines()]
    assert typed.status == 0, typed.out + typed.err
    assert any(line.split()[:2] == ["path.clone", "XFAIL"] for line in lines)
    assert lines[lines.index("Known failures:") + 1] == "      path.clone: calls start from zero: issue 12"
    assert lines[-1].startswith("PASS  compared 40/40 tensors in ")
    assert lines[-1].endswith(", 1 XFAIL")
    assert not any(line.startswith("FAIL") for line in lines)


def test_a_known_failure_in_json(gander: Callable) -> None:
    typed = gander(*FORGETFUL, *NARROW, "--json", *known("path.cl*  issue 12"))
    report = json.loads(typed.out)
    repeat, clone = report["models"][0]["checks"]
    assert (report["status"], report["exit"], report["xfail"], report["xpass"]) == ("PASS", 0, 1, 0)
    assert (clone["status"], clone["xfail"]) == ("XFAIL", "issue 12")
    assert clone["findings"]
    assert (repeat["status"], repeat["xfail"]) == ("PASS", "")


def test_another_failure_still_fails_the_run(gander: Callable) -> None:
    typed = gander(*FORGETFUL, "--only", "path.reset", *NARROW, "--only", "path.start", *known("path.start  issue 12"))
    assert typed.status == 1
    assert "FAIL  blocks.0.state" in typed.out
    assert typed.out.rstrip().endswith("1 XFAIL")


def test_a_known_failure_that_passes_is_an_error(gander: Callable) -> None:
    """Named, with what to do: the line would hide the next failure."""
    typed = gander(*FORGETFUL, *NARROW, *known("path.clone  issue 12", "path.repeat  issue 13"))
    lines = [line.strip() for line in typed.out.splitlines()]
    assert typed.status == 1
    at = lines.index("XPASS  path.repeat")
    assert lines[at + 1 : at + 3] == [
        "passes, but is listed as a known failure: issue 13",
        "take it out of the --xfail file",
    ]
    assert lines[-1].startswith("FAIL")
    assert lines[-1].endswith(", 1 XFAIL, 1 XPASS")


def test_a_failure_on_one_of_two_models_is_known_there(gander: Callable, folder: Path) -> None:
    """A check that passes on the other model is not called an error: it fails somewhere."""
    (folder / "picky.py").write_text("""
from gander.optimized import Engine as Right

class Engine(Right):
    def load(self, checkpoint):
        super().load(checkpoint)
        self.wrong = checkpoint.config.head_size == 32

    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps) * (1 + self.wrong)
""")
    models = ("-m", "golden:adversarial", "-m", "golden:narrow")
    typed = gander("check", "-e", "py:picky:Engine", "--only", "path.repeat", "--only", "path.clone", "--json",
                   "--brief", *models, *known("path.clone  heads of 32"))  # fmt: skip
    statuses = [[check["status"] for check in model["checks"]] for model in json.loads(typed.out)["models"]]
    assert typed.status == 0
    assert statuses == [["PASS", "PASS"], ["PASS", "XFAIL"]]


def test_incomplete_is_no_failure(gander: Callable) -> None:
    """What was not compared is not known to fail."""
    typed = gander("check", "-e", "py:misbehaving:NoTaps", *NARROW, "--only", "layer.isolated", "--json",
                   *known("layer.isolated  it has no taps"))  # fmt: skip
    report = json.loads(typed.out)
    assert (typed.status, report["status"], report["xfail"]) == (2, "INCOMPLETE", 0)


def test_a_known_failure_is_not_made_small(gander: Callable, folder: Path) -> None:
    searching = tuple(word for word in FORGETFUL if word != "--brief")
    assert gander(*searching, *NARROW, *known("path.clone  issue 12")).status == 0
    assert [path.name for path in folder.iterdir()] == ["known.txt"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("path.clone", "known.txt, line 2: 'path.clone' has no reason"),
        ("path.clne  typo", "known.txt, line 2: 'path.clne' matches no check that is run\n  expected: did you mean"),
        ("golden.*  no traces are asked for", "'golden.*' matches no check that is run"),
    ],
)
def test_a_line_that_means_nothing(gander: Callable, line: str, message: str) -> None:
    typed = gander(*FORGETFUL, *NARROW, *known("# known", line))
    assert typed.status == 2
    assert message in typed.err
    assert typed.out == ""


def test_a_check_that_cannot_be_asked_of_the_model_is_none_that_ran(gander: Callable) -> None:
    """INT8 was not asked for, so the line says nothing."""
    typed = gander(*FORGETFUL, *NARROW, "--only", "int8", *known("int8.cost  issue 14"))
    assert typed.status == 2
    assert "'int8.cost' matches no check that is run" in typed.err


@pytest.mark.parametrize(("content", "message"), [(None, "cannot read known.txt"), (b"path.clone \xff", "is no text")])
def test_a_file_that_cannot_be_read(gander: Callable, content: bytes | None, message: str) -> None:
    if content is not None:
        Path("known.txt").write_bytes(content)
    typed = gander(*FORGETFUL, *NARROW, "--xfail", "known.txt")
    assert typed.status == 2
    assert message in typed.err
