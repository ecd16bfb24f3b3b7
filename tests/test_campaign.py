"""Independent cases: wherever they run, whoever dies on the way, however often they stop, the report is the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import campaigns
import pytest

from gander.conformance import campaign
from gander.conformance.apart import CONVERTER
from gander.conformance.campaign import How, run_cases
from gander.conformance.results import CheckResult, Errors, Finding, Given, ModelReport
from gander.errors import InputError

NUMBERS = [["1", "2"], ["3"], ["4", "5"]]
SQUARES = {"1": 1, "2": 4, "3": 9, "4": 16, "5": 25}
OF = {"command": "squares"}
CHECK = "check", "-m", "golden:narrow", "--only", "op.gate", "--only", "op.decay", "--only", "load", "--json"


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("CAMPAIGN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("MORTAL_DIED", str(tmp_path / "died"))
    return tmp_path / "log"


def without_times(text: str) -> Any:
    def stripped(x: Any) -> Any:
        if isinstance(x, dict):
            return {key: stripped(value) for key, value in x.items() if key != "seconds"}
        return [stripped(value) for value in x] if isinstance(x, list) else x

    return stripped(json.loads(text))


@pytest.mark.parametrize("how", [How(), How(processes=2), How(workers=2)], ids=["here", "pool", "dask"])
def test_every_case_is_run_once_wherever_it_is(how: How, log: Path) -> None:
    assert dict(run_cases(campaigns.squares, NUMBERS, how, of=OF)) == SQUARES
    assert sorted(line.split()[1] for line in log.read_text().splitlines()) == list(SQUARES)


def test_an_interrupted_campaign_goes_on_where_it_stopped(log: Path, tmp_path: Path) -> None:
    how = How(resume=tmp_path / "done.jsonl")
    with pytest.raises(KeyboardInterrupt):
        list(run_cases(campaigns.stopped, NUMBERS, how, of=OF))
    with (tmp_path / "done.jsonl").open("a") as file:
        file.write('{"case": "3", "resu')  # as a machine that loses its power leaves it
    log.unlink()
    assert dict(run_cases(campaigns.squares, NUMBERS, how, of=OF)) == SQUARES
    assert [line.split()[1] for line in log.read_text().splitlines()] == ["3", "4", "5"]
    log.unlink()
    assert dict(run_cases(campaigns.squares, NUMBERS, how, of=OF)) == SQUARES
    assert not log.exists()


def test_what_was_begun_with_other_sources_or_another_command_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = How(resume=tmp_path / "done.jsonl")
    list(run_cases(campaigns.squares, NUMBERS, how, of=OF))
    with pytest.raises(InputError, match="begun with other command"):
        list(run_cases(campaigns.squares, NUMBERS, how, of={"command": "cubes"}))
    monkeypatch.setattr(campaign, "sources", lambda: "others")
    with pytest.raises(InputError, match="begun with other sources"):
        list(run_cases(campaigns.squares, NUMBERS, how, of=OF))
    assert len((tmp_path / "done.jsonl").read_text().splitlines()) == 6, "a refused file was changed"


@pytest.mark.parametrize("content", [b"", b"no json", b'{"schema": "gander.result/1"}\n', b"[1]\n", b"\xff\xfe"])
def test_a_file_that_is_no_campaign_is_refused_and_left_alone(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_bytes(content)
    with pytest.raises(InputError, match="is no campaign to resume"):
        list(run_cases(campaigns.squares, NUMBERS, How(resume=file), of=OF))
    assert file.read_bytes() == content


def test_a_worker_that_dies_has_its_case_run_again_and_the_report_is_the_same(gander: Callable, tmp_path: Path) -> None:
    """The engine ends its process in the middle of a check, the first time."""
    engine = "--engine", "py:campaigns:Mortal"
    on_dask = gander(*CHECK, *engine, "--workers", 2)
    assert (tmp_path / "died").exists(), "no worker died"
    assert on_dask.status == 0, on_dask.out + on_dask.err
    here = gander(*CHECK, *engine)  # it dies only once
    assert without_times(on_dask.out) == without_times(here.out)


def test_a_case_that_every_worker_dies_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import dask

    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), pytest.raises(InputError, match="died: 7"):
        list(run_cases(campaigns.fatal, [["7"]], How(workers=1), of=OF))


def test_a_check_that_was_stopped_goes_on_with_what_is_missing(gander: Callable, tmp_path: Path) -> None:
    file = tmp_path / "done.jsonl"
    whole = gander(*CHECK, "--resume", file)
    lines = file.read_text().splitlines(keepends=True)
    assert [json.loads(line)["case"] for line in lines[1:]] == [
        f"{id} golden:narrow" for id in ("load.census", "load.engine", "op.decay", "op.gate")
    ]
    known = json.loads(lines[1])
    known["result"]["report"]["checks"][0]["note"] = "not run again"
    file.write_text(lines[0] + json.dumps(known) + "\n" + lines[2])
    again = gander(*CHECK, "--resume", file)
    expected, found = without_times(whole.out), without_times(again.out)
    assert found["models"][0]["checks"][0].pop("note") == "not run again"
    expected["models"][0]["checks"][0].pop("note")
    assert found == expected


def test_a_failing_engine_fails_the_same_in_pieces(gander: Callable, tmp_path: Path) -> None:
    """Findings, what was not run for want of a model, and the exit status."""
    for engine in ("py:misbehaving:LeaksBetweenCalls", "py:misbehaving:RaisesOnLoad", "py:misbehaving:RaisesOnClose"):
        asked = "check", "-m", "golden:narrow", "--only", "path.reset", "--only", "path.repeat", "--brief", "--json"
        whole = gander(*asked, "--engine", engine)
        pieces = gander(*asked, "--engine", engine, "--resume", tmp_path / engine.replace(":", "."))
        assert pieces.status == whole.status
        assert without_times(pieces.out) == without_times(whole.out)


def test_results_come_back_as_they_were() -> None:
    """Through JSON, infinities and bytes included."""
    given = Given((1, 2), (2,), "zero")
    check = CheckResult(
        "op.gate", 1, 2, float("inf"), (Finding("a", "b", token=3, given=given),), 0.5,
        lacks=("taps",), paths={"step": 0.25}, errors=(Errors("a", 1.5, (2,), b"\x00\xff", 0),),
    )  # fmt: skip
    report = ModelReport("golden:narrow", "f", (check,), ("op.gate",))
    assert CONVERTER.structure(json.loads(json.dumps(CONVERTER.unstructure(report))), ModelReport) == report


def test_mutants_are_scored_the_same_by_workers_and_after_a_stop(gander: Callable, tmp_path: Path) -> None:
    """Tokenizers, since they are quick."""
    asked = "mutants", "score", "--only", "tokenizer.n*", "--only", "tokenizer.trie", "--json"
    plain = gander(*asked)
    assert plain.status == 0
    file = tmp_path / "done.jsonl"
    assert gander(*asked, "--workers", 2, "--resume", file).out == plain.out
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    assert gander(*asked, "--resume", file).out == plain.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workers", 2, "--scheduler", "tcp://127.0.0.1:1"), "--scheduler has workers of its own"),
        (("--scheduler", "nowhere"), "no Dask scheduler answers at nowhere"),
        (("--resume", "no/such/folder/file"), "no folder no/such/folder"),
    ],
)
def test_requests_that_make_no_sense(options: tuple, said: str, gander: Callable) -> None:
    typed = gander(*CHECK, *options)
    assert typed.status == 2
    assert said in typed.err


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, gander: Callable) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    typed = gander(*CHECK, "--workers", 2)
    assert typed.status == 2
    assert "gander-rwkv[dask]" in typed.err
