"""`gander check` on engines that misbehave: the check fails and names the fault, and the run goes on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def check(gander: Callable) -> Callable:
    """`gander check --json` of a class of tests/misbehaving.py, on one model; the report and the exit status."""

    def run(name: str, *only: str) -> tuple[dict, int]:
        options = [word for id in only for word in ("--only", id)]
        typed = gander(
            "check", "-m", "golden:adversarial", "-e", f"py:misbehaving:{name}", "--json", "--brief", *options
        )
        assert typed.err == ""
        return json.loads(typed.out), typed.status

    return run


def first_finding(report: dict, id: str) -> dict:
    (check,) = (check for check in report["models"][0]["checks"] if check["id"] == id)
    return check["findings"][0]


def test_a_right_engine_passes_everything(check: Callable) -> None:
    report, status = check("Right")
    assert status == 0, [finding for model in report["models"] for c in model["checks"] for finding in c["findings"]]
    assert report["compared"] == report["expected"] > 3000
    assert {"load", "op", "layer", "golden", "path"} == {c["id"].split(".")[0] for c in report["models"][0]["checks"]}


# Class, the check that must find it, where, and what is said.
FAULTY = [
    ("NanAtOnce", "load.engine", "logits", "are not finite after one token"),
    ("RoundsWeights", "layer.weights", "blocks.0.state.wkv", "max |Δ|"),
    ("OffByAThousandth", "layer.cumulative", "emb", "max |Δ|"),
    ("OffByAThousandth", "golden.taps", "emb", "max |Δ|"),
    ("OffByAThousandth", "golden.logits", "logits", "max |Δ|"),
    ("OffByAThousandth", "golden.state", "blocks.0.state.att_x", "max |Δ|"),
    ("SwapsTheBestTwo", "golden.tokens", "token", "but should choose"),
    ("NanLogits", "golden.tokens", "token", "but should choose"),
    ("NotCausal", "op.token_shift", "op.token_shift: causality", "max |Δ|"),
    ("WrongForFastDecay", "op.wkv7", "op.wkv7: y", "max |Δ|"),
    ("NanForLongTexts", "op.wkv7", "op.wkv7: y", "is nan at channel"),
    ("WrongForZeroKeys", "op.wkv7", "op.wkv7: y", "max |Δ|"),
    ("WrongFromToken100", "layer.cumulative", "ln_out", "max |Δ|"),
    ("WrongAt33", "path.length", "logits", "max |Δ|"),
    ("WrongBeyond200", "path.length", "logits", "max |Δ|"),
    ("StateRounded", "path.start", "blocks.0.state.wkv", "max |Δ|"),
    ("ExportIsAView", "path.start", "blocks.0.state.att_x", "max |Δ|"),
    ("BatchLastRow", "path.batch", "logits", "max |Δ|"),
    ("BatchSwapsStates", "path.batch", "blocks.0.state.wkv", "max |Δ|"),
    ("BatchDecode", "path.batch", "blocks.0.state.wkv", "max |Δ|"),
    ("BatchOfOne", "path.batch", "blocks.0.state.wkv", "max |Δ|"),
    ("BatchSharesPrefix", "path.batch", "blocks.0.state.wkv", "max |Δ|"),
    ("BatchDropsARow", "path.batch", "forward_batch", "returned 4 results for 5 rows"),
    ("LeaksIntoState", "path.repeat", "blocks.0.state.wkv", "max |Δ|"),
    ("LeaksAfterAnotherText", "path.repeat", "logits", "max |Δ|"),
    ("CloneFollows", "path.clone", "blocks.0.state.wkv", "max |Δ|"),
    ("CloneLeads", "path.clone", "blocks.0.state.wkv", "max |Δ|"),
    ("WrongWithFourThreads", "path.threads", "logits", "max |Δ|"),
    ("Raises", "path.split", "forward", "raised RuntimeError: three is too many"),
    ("WrongShape", "load.engine", "forward", "returned logits of shape (512,), but should return (1, 512)"),
    ("LastRowOnly", "path.split", "forward", "returned logits of shape (1, 512), but should return (6, 512)"),
    ("NotAnArray", "load.engine", "forward", "returned list, but should return a numpy array of floats"),
    ("NanLogits", "path.split", "logits", "is nan at channel 7"),
    ("NanTap", "layer.isolated", "blocks.1.att.kk", "is nan at channel 3"),
    ("TapOfWrongShape", "layer.isolated", "blocks.2.att.wkv", "has shape (130, 192), but should be (130, 3, 64)"),
    ("TapShared", "layer.isolated", "blocks.0.att.g", "max |Δ|"),
    ("StateTransposed", "path.start", "blocks.0.state.wkv", "max |Δ|"),
    ("StateIgnored", "path.start", "blocks.0.state.wkv", "max |Δ|"),
    ("Forgetful", "path.split", "blocks.0.state.wkv", "max |Δ|"),
    ("CloneShares", "path.clone", "blocks.0.state.wkv", "max |Δ|"),
    ("SnapshotShares", "path.snapshot", "blocks.0.state.wkv", "max |Δ|"),
    ("RollbackOneShort", "path.snapshot", "blocks.0.state.wkv", "max |Δ|"),
    ("ResetForgetsShift", "path.reset", "blocks.0.state.wkv", "max |Δ|"),
    ("BatchShares", "path.batch", "logits", "max |Δ|"),
    ("BatchPads", "path.batch", "blocks.0.state.wkv", "max |Δ|"),
    ("LeaksBetweenCalls", "path.repeat", "logits", "max |Δ|"),
    ("ChunkBoundary", "path.chunk", "blocks.0.state.wkv", "max |Δ|"),
    ("WrongOp", "op.l2norm", "op.l2norm: kk", "max |Δ|"),
]


@pytest.mark.parametrize(("name", "id", "where", "message"), FAULTY, ids=[f"{row[0]}-{row[1]}" for row in FAULTY])
def test_fault_is_named(check: Callable, name: str, id: str, where: str, message: str) -> None:
    report, status = check(name, id)
    assert status == 1
    finding = first_finding(report, id)
    assert finding["where"] == where
    assert message in finding["message"]
    assert not finding["missing"]


def test_nan_at_the_first_token_does_not_hide_its_cause(check: Callable) -> None:
    """The engine took the weights and answered: what it answered is for the other checks to explain."""
    report, status = check("NanAtOnce", "load.engine", "layer.isolated")
    assert status == 1
    assert first_finding(report, "layer.isolated")["where"] == "blocks.1.att.kk"


def test_the_run_goes_on_after_an_engine_raised(check: Callable) -> None:
    """The checks that ask for no call of three tokens pass."""
    report, status = check("Raises", "path.split", "path.start", "layer.cumulative", "path.clone")
    verdicts = {c["id"]: c["status"] for c in report["models"][0]["checks"]}
    assert status == 1
    assert verdicts == {
        "path.split": "FAIL",
        "path.start": "FAIL",
        "layer.cumulative": "PASS",
        "path.clone": "PASS",
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RaisesOnLoad", "raised MemoryError: no room"),
        ("RaisesWhenMade", "raised OSError when it was made: no such device"),
        ("UnknownCapability", "claims an unknown capability 'tapes': did you mean 'taps'"),
        ("UnknownDtype", "has an unknown dtype 'fp32'"),
        ("NotAnEngine", "is no engine: it lacks name, dtype, capabilities, load, initial_state, forward, close"),
    ],
)
def test_an_engine_that_cannot_be_used_fails_once(check: Callable, name: str, message: str) -> None:
    """load.engine says why, even if it was not asked for; nothing else is run, nothing else is called a failure."""
    report, status = check(name, "path.split")
    assert status == 1
    assert message in first_finding(report, "load.engine")["message"]
    assert {c["id"]: c["status"] for c in report["models"][0]["checks"]} == {
        "load.engine": "FAIL",
        "path.split": "INCOMPLETE",
    }


def test_an_engine_that_cannot_be_closed_fails(check: Callable) -> None:
    report, status = check("RaisesOnClose", "load")
    assert status == 1
    assert first_finding(report, "load.close")["message"] == "raised OSError: cannot unmap"


def test_a_missing_tap_is_incomplete(check: Callable) -> None:
    """Exit 2, and the count says that something is missing."""
    report, status = check("TapMissing", "layer.isolated")
    assert status == 2
    finding = first_finding(report, "layer.isolated")
    assert (finding["where"], finding["missing"]) == ("blocks.2.att.norm", True)
    assert report["compared"] == report["expected"] - 4  # one tap on each of four paths


def test_a_missing_state_is_incomplete(check: Callable) -> None:
    report, status = check("StateMissing", "path.split")
    assert status == 2
    assert first_finding(report, "path.split")["where"] == "blocks.1.state.wkv"
    assert report["compared"] < report["expected"]


def test_a_check_of_what_is_not_offered_is_not_applicable(check: Callable) -> None:
    """Which is counted, and never a pass."""
    report, status = check("NoTaps", "layer.isolated", "path.split")
    assert (status, report["status"], report["not_applicable"]) == (2, "INCOMPLETE", 1)
    assert {c["id"]: c["status"] for c in report["models"][0]["checks"]} == {
        "layer.isolated": "N/A",
        "path.split": "PASS",
    }


def test_it_says_what_is_not_offered_and_how_to_leave_it_out(gander: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    only = "--only", "op.gate", "--only", "op.decay", "--only", "load"
    typed = gander("check", "-m", "golden:narrow", "-e", "py:misbehaving:NoApply", *only)
    assert typed.status == 2
    said = " ".join(typed.out.split())
    assert "Not applicable: the engine does not offer 'apply' (apply: one formula on its own) op.decay, op.gate" in said
    assert "2 not applicable (--skip leaves them out)" in said


def test_an_engine_that_hangs_on_import_is_named(
    gander: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    typed = gander("check", "-m", "golden:narrow", "-e", "py:hanging:Engine", "--import-timeout", "0.2")
    assert typed.status == 1
    assert "did not finish importing 'hanging' within 0.2 s (--import-timeout)" in " ".join(typed.out.split())


def test_an_engine_whose_module_raises_is_named(
    gander: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raising.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    typed = gander("check", "-m", "golden:narrow", "-e", "py:raising:Engine", "--only", "load")
    assert typed.status == 1
    assert "raised ZeroDivisionError on import" in typed.out
