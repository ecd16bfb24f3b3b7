"""A failure is made small and kept: `gander check --replay FILE` fails again, in the same place."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gander.conformance.cases import Case, Model, compare_case, reduced, source_of
from gander.conformance.compare import Tally
from gander.conformance.mode import PLAIN
from gander.conformance.results import CheckResult, Finding, ModelReport, Report
from gander.conformance.runner import context_of
from gander.conformance.shrink import _made
from gander.golden import RECIPES
from gander.optimized import Engine
from gander.reports import as_data, print_report
from gander.traces import op_of

# Engines with one fault each. `Fixed` is what the last of them becomes when it is mended.
FAULTS = """
from gander.optimized import Engine as Fixed

class ShiftLost(Fixed):
    def forward(self, tokens, state, *, taps=None):
        before = state.att_x.clone()
        logits = super().forward(tokens, state, taps=taps)
        state.att_x.copy_(before)
        return logits

class Transposed(Fixed):
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        state.wkv.copy_(state.wkv.mT.clone())
        return logits

class WideAndDeep(Fixed):  # nothing that is made small shows it, nor does the first block alone
    def load(self, checkpoint):
        super().load(checkpoint)
        self.wrong = checkpoint.config.width > 64 and checkpoint.config.layers > 1
    def export_state(self, state):
        arrays = super().export_state(state)
        if self.wrong:
            arrays["blocks.1.state.ffn_x"] *= 2
        return arrays

class NoTaps(ShiftLost):
    capabilities = Fixed.capabilities - {"taps"}
"""

REPLAY = re.compile(r"^      replay: gander check --replay (\.gander/replays/[0-9a-f]{8}\.json)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the commands are typed; the faulty engines are importable."""
    (tmp_path / "port").mkdir()
    (tmp_path / "port" / "kept_faults.py").write_text(FAULTS)
    monkeypatch.syspath_prepend(tmp_path / "port")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def failing(gander: Callable, engine: str, *only: str, model: str = "golden:narrow") -> tuple[str, dict[str, Any]]:
    """The replay file of a run that fails, and what is in it."""
    typed = gander("check", "-m", model, "-e", f"py:{engine}", *(word for id in only for word in ("--only", id)))
    assert typed.status == 1, typed.out + typed.err
    (file,) = REPLAY.findall(typed.out)
    return file, json.loads(Path(file).read_text())


def first(gander: Callable, file: str | Path) -> tuple[int, str]:
    """The exit status of a replay, and the tap or state that is wrong first."""
    typed = gander("check", "--json", "--replay", file)
    assert typed.err == ""
    (check,) = json.loads(typed.out)["models"][0]["checks"]
    assert check["replay"] == f"gander check --replay {file}"
    return typed.status, op_of(check["findings"][0]["where"]) if check["findings"] else ""


@pytest.mark.parametrize(
    ("engine", "check", "place"),
    [
        ("kept_faults:ShiftLost", "layer.isolated", "att.xr"),  # found on 130 tokens
        ("kept_faults:Transposed", "layer.isolated", "att.wkv"),
        ("kept_faults:ShiftLost", "path.length", "state.att_x"),
        ("kept_faults:Transposed", "layer.cumulative", "att.wkv"),
        ("misbehaving:Forgetful", "path.split", "state.wkv"),
        ("misbehaving:StateRounded", "path.start", "state.wkv"),
        ("misbehaving:RoundsWeights", "layer.weights", "state.wkv"),
        ("misbehaving:OffByAThousandth", "golden.logits", "logits"),
    ],
)
def test_a_fault_is_kept_on_three_tokens_at_most(gander: Callable, engine: str, check: str, place: str) -> None:
    """And on one block of one head. The replay fails in the same place."""
    file, kept = failing(gander, engine, check, model="golden:adversarial")
    assert len(kept["tokens"]) == sum(kept["calls"]) <= 3
    assert (kept["model"]["sizes"]["layers"], kept["model"]["sizes"]["heads"]) == (1, 1)
    assert kept["found"]["check"] == check
    assert op_of(kept["found"]["where"]) == place
    assert first(gander, file) == (1, place)


def test_a_replay_passes_when_the_fault_is_mended(gander: Callable, folder: Path) -> None:
    file, kept = failing(gander, "kept_faults:Transposed", "path.split")
    kept["engine"] = "py:kept_faults:Fixed"
    (folder / "mended.json").write_text(json.dumps(kept))
    assert first(gander, "mended.json") == (0, "")
    assert first(gander, file) == (1, "state.wkv")


def test_the_file_says_what_it_is(gander: Callable) -> None:
    _, kept = failing(gander, "kept_faults:ShiftLost", "path.split")
    assert kept["schema"] == "gander.replay/1"
    assert "gander check --replay" in kept["about"]
    assert "the final state and the logits" in kept["about"]
    assert (kept["engine"], kept["dtype"], kept["attention"]) == ("py:kept_faults:ShiftLost", None, "dense")
    assert kept["model"]["source"] == "recipe:adversarial"
    assert kept["start"] == "zero"
    assert kept["found"]["message"].startswith("max |Δ|")


def test_the_same_failure_is_the_same_file(gander: Callable, folder: Path) -> None:
    first_file, _ = failing(gander, "kept_faults:ShiftLost", "path.split")
    again, _ = failing(gander, "kept_faults:ShiftLost", "path.split")
    assert again == first_file
    assert [path.name for path in (folder / ".gander" / "replays").iterdir()] == [Path(first_file).name]


def test_a_fault_that_needs_length_keeps_its_length(gander: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one token more than it needs, and one block all the same."""
    monkeypatch.setattr("gander.conformance.kept.SECONDS", {False: 300.0})  # however busy the machine is
    file, kept = failing(gander, "misbehaving:WrongBeyond200", "path.length")
    assert kept["calls"] == [201]
    assert kept["model"]["sizes"]["layers"] == 1
    assert first(gander, file) == (1, "logits")


def test_a_fault_of_a_chunk_size_keeps_the_chunk(gander: Callable) -> None:
    file, kept = failing(gander, "misbehaving:ChunkBoundary", "path.chunk")
    assert (len(kept["tokens"]), kept["chunk"]) == (1, 7)
    assert first(gander, file) == (1, "state.wkv")


def test_a_checkpoint_is_cut_behind_the_block_that_shows_it(gander: Callable, folder: Path) -> None:
    """The file names the checkpoint; one that was changed since is another model."""
    gander("golden", "export", "narrow", "model.pth", "--to", "official")
    file, kept = failing(gander, "kept_faults:WideAndDeep", "path.split", model="model.pth")
    assert kept["model"]["source"] == "model.pth"
    assert kept["model"]["sizes"] == {"attention_layers": 0, "layers": 2}
    assert first(gander, file) == (1, "state.ffn_x")
    (folder / "model.pth").unlink()
    gander("golden", "export", "adversarial", "model.pth", "--to", "official")
    typed = gander("check", "--replay", file)
    assert typed.status == 2
    assert "is of another model.pth: the model has changed since" in typed.err
    assert "put the old checkpoint back" in typed.err
    (folder / "model.pth").unlink()
    typed = gander("check", "--replay", file)
    assert (typed.status, "model.pth" in typed.err) == (2, True)


@pytest.mark.parametrize(
    ("engine", "check"), [("CloneShares", "path.clone"), ("WrongOp", "op.l2norm"), ("Raises", "path.split")]
)
def test_what_is_no_run_of_a_text_keeps_its_command(gander: Callable, folder: Path, engine: str, check: str) -> None:
    typed = gander("check", "-m", "golden:narrow", "-e", f"py:misbehaving:{engine}", "--only", check)
    assert typed.status == 1
    command = f"replay: gander check --engine py:misbehaving:{engine} --model golden:narrow --only {check}"
    assert command in typed.out
    assert not (folder / ".gander").exists()


def test_the_search_ends_in_time(gander: Callable, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time at all, nothing is found: the failure is shown with its command."""
    monkeypatch.setattr("gander.conformance.kept.SECONDS", {False: 0.0})
    typed = gander("check", "-m", "golden:narrow", "-e", "py:kept_faults:ShiftLost", "--only", "path.split")
    assert typed.status == 1
    assert "replay: gander check --engine py:kept_faults:ShiftLost" in typed.out
    assert not (folder / ".gander").exists()


def test_brief(gander: Callable, folder: Path) -> None:
    typed = gander("check", "-m", "golden:narrow", "-e", "py:kept_faults:ShiftLost", "--only", "path.split", "--brief")
    assert typed.status == 1
    assert "replay: gander check --engine py:kept_faults:ShiftLost" in typed.out
    assert not (folder / ".gander").exists()


def test_a_folder_that_cannot_be_written_is_said_in_a_line(gander: Callable, folder: Path) -> None:
    (folder / ".gander").write_text("a file, where the folder would be")
    typed = gander("check", "-m", "golden:narrow", "-e", "py:kept_faults:ShiftLost", "--only", "path.split")
    assert typed.status == 1
    assert typed.err.splitlines() == ["no replay file was written: .gander/replays: Not a directory"]
    assert "replay: gander check --engine py:kept_faults:ShiftLost" in typed.out


def test_what_the_engine_no_longer_offers_is_incomplete(gander: Callable, folder: Path) -> None:
    _, kept = failing(gander, "kept_faults:ShiftLost", "layer.isolated")
    kept["engine"] = "py:kept_faults:NoTaps"
    (folder / "kept.json").write_text(json.dumps(kept))
    typed = gander("check", "--replay", "kept.json")
    assert typed.status == 2
    assert "the engine does not offer 'taps'" in " ".join(typed.out.split())


GOOD: dict[str, Any] = {
    "schema": "gander.replay/1", "about": "", "gander": "0.1.0", "engine": "optimized", "dtype": None,
    "attention": "dense", "quantize": False, "start": "zero", "tokens": [1, 2, 3], "calls": [2, 1], "chunk": None,
    "compare": "final", "seed": 0, "found": {"check": "path.split", "where": "logits", "message": "max"},
    "model": {"source": "golden:narrow", "sizes": {}, "finer": False, "fingerprint": "0"},
}  # fmt: skip
MODEL = GOOD["model"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        (json.dumps(GOOD)[:100], "is not JSON"),
        ("[1, 2]", "is no replay file"),
        ('{"version": 1, "models": []}', "is no replay file"),
        (GOOD | {"schema": "gander.replay/2"}, "has the schema 'gander.replay/2'\n  expected: 'gander.replay/1'"),
        ({name: value for name, value in GOOD.items() if name != "tokens"}, "it has no 'tokens'"),
        (GOOD | {"tokens": "1,2,3"}, "'tokens' is '1,2,3', not of type list"),
        (GOOD | {"tokens": [1, -2, 3]}, "a token is -2"),
        (GOOD | {"calls": [2, 2]}, "do not cut its 3 tokens"),
        (GOOD | {"calls": [3, 0]}, "a call is 0"),
        (GOOD | {"start": "one"}, "start 'one' is none of"),
        (GOOD | {"compare": "finel"}, "compare 'finel' is unknown: did you mean 'final'?"),
        (GOOD | {"dtype": "fp32"}, "dtype 'fp32' is unknown"),
        (GOOD | {"attention": "ful"}, "no attention policy is called 'ful'"),
        (GOOD | {"engine": "optimised"}, "no engine 'optimised'"),
        (GOOD | {"seed": True}, "'seed' is True, not of type int"),
        (GOOD | {"model": MODEL | {"source": "golden:narow"}}, "no golden model is called 'narow'"),
        (GOOD | {"model": MODEL | {"source": "recipe:narow"}}, "no golden model is called 'narow'"),
        (GOOD | {"model": MODEL | {"sizes": {"width": 64}}}, "a size of 'golden:narrow' is called 'width'"),
        (GOOD | {"model": MODEL | {"sizes": {"layers": "2"}}}, "the model's layers is '2'"),
        (GOOD | {"model": MODEL | {"source": "recipe:narrow", "sizes": {"width": 10**9}}}, "width is 1000000000"),
        (GOOD | {"model": MODEL | {"source": "recipe:narrow", "sizes": {"width": 7}}}, "is not its heads times"),
        (GOOD, "is of another golden:narrow: the model has changed since"),
    ],
)
def test_a_file_that_is_none(gander: Callable, folder: Path, content: object, message: str) -> None:
    """What is wrong, and no traceback."""
    (folder / "wrong.json").write_text(content if isinstance(content, str) else json.dumps(content))
    typed = gander("check", "--replay", "wrong.json")
    assert typed.status == 2
    assert message in typed.err
    assert typed.out == ""


@pytest.mark.parametrize("option", [("--model", "golden:narrow"), ("--engine", "reference"), ("--brief",)])
def test_the_file_says_it_all(gander: Callable, option: tuple[str, ...]) -> None:
    typed = gander("check", "--replay", "any.json", *option)
    assert typed.status == 2
    assert f"leave out {option[0]}, or --replay" in typed.err


def test_a_folder_is_no_file(gander: Callable) -> None:
    typed = gander("check", "--replay", ".")
    assert typed.status == 2
    assert "cannot read .: Is a directory" in typed.err


CASES = st.tuples(st.sampled_from(sorted(RECIPES)), st.lists(st.integers(0, 63), min_size=1, max_size=4), st.data())


@settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(CASES, st.sampled_from(["isolated", "cumulative", "final"]), st.booleans())
def test_a_right_engine_fails_on_no_model_that_is_made(drawn: Any, compare: str, finer: bool) -> None:
    """Or a replay would show something that is no fault."""
    name, tokens, data = drawn
    source, sizes = data.draw(st.sampled_from(_made(RECIPES[name].config)))
    start = "zero" if compare == "isolated" else data.draw(st.sampled_from(["zero", "random:3", "finer:3"]))
    parts = data.draw(st.sampled_from([(len(tokens),), (1,) * len(tokens)]))
    case = Case(Model(source, sizes, finer), tuple(tokens), parts, start, compare)
    model = reduced(source_of(case.model), case.model, "float32")
    context, tally = context_of(Engine(), model, PLAIN, Engine), Tally()
    context.engine.load(model)
    compare_case(context, tally, case)
    assert not tally.findings
    assert tally.compared


def test_what_is_likely_follows_the_first_finding(capsys: pytest.CaptureFixture[str]) -> None:
    """On the console and in JSON."""
    from rich.console import Console

    likely = "GroupNorm eps 1e-5 instead of 64e-5 (explains 99.8 % of the difference)"
    findings = (Finding("blocks.2.att.norm", "max |Δ| 3.1e-3, bound 4.0e-6 (775×)"), Finding("logits", "is nan"))
    check = CheckResult("layer.isolated", 2, 2, 775.0, findings, 0.1, likely=likely, replay=".gander/replays/7f3a.json")
    report = Report("mine", "float32", "", "0", "gander check", (ModelReport("golden:narrow", "0", (check,)),), 0.1)
    print_report(report, Console(width=100))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    at = lines.index("FAIL  blocks.2.att.norm")
    assert lines[at + 1 : at + 4] == [
        "      max |Δ| 3.1e-3, bound 4.0e-6 (775×)",
        f"      likely: {likely}",
        "      replay: gander check --replay .gander/replays/7f3a.json",
    ]
    assert sum("likely:" in line for line in lines) == 1
    (shown,) = as_data(report)["models"][0]["checks"]
    assert shown["likely"] == likely
