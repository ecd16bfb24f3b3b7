"""`gander check` on engines that misbehave: the check fails and names the fault, and the run goes on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

ENGINES = '''
import time
import numpy as np
from gander.optimized import Engine as Optimized

class Right(Optimized):
    name = "right"

class Raises(Optimized):
    def forward(self, tokens, state, *, taps=None):
        if len(tokens) == 3:
            raise RuntimeError("three is too many")
        return super().forward(tokens, state, taps=taps)

class RaisesOnLoad(Optimized):
    def load(self, checkpoint):
        raise MemoryError("no room")

class RaisesWhenMade(Optimized):
    def __init__(self):
        raise OSError("no such device")

class WrongShape(Optimized):
    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps)[-1]

class LastRowOnly(Optimized):
    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps)[-1:]

class NotAnArray(Optimized):
    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps).tolist()

class NanLogits(Optimized):
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if len(tokens) > 5:
            logits[5, 7] = np.nan
        return logits

class NanTap(Optimized):
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if taps is not None:
            taps["blocks.1.att.kk"][0, 1, 3] = np.nan
        return logits

class TapMissing(Optimized):
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if taps is not None:
            del taps["blocks.2.att.norm"]
        return logits

class TapOfWrongShape(Optimized):
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if taps is not None:
            taps["blocks.2.att.wkv"] = taps["blocks.2.att.wkv"].reshape(len(tokens), -1)
        return logits

class TapShared(Optimized):
    """A captured graph dumps all layers identical: each layer's tap is the last layer's."""
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if taps is not None:
            for i in range(3):
                taps[f"blocks.{i}.att.g"] = taps["blocks.3.att.g"]
        return logits

class StateMissing(Optimized):
    def export_state(self, state):
        arrays = super().export_state(state)
        del arrays["blocks.1.state.wkv"]
        return arrays

class StateTransposed(Optimized):
    """Both ways, so that export after import is the identity."""
    def export_state(self, state):
        return {n: a.swapaxes(-1, -2).copy() if a.ndim == 3 else a for n, a in super().export_state(state).items()}
    def import_state(self, arrays):
        return super().import_state({n: a.swapaxes(-1, -2) if a.ndim == 3 else a for n, a in arrays.items()})

class StateIgnored(Optimized):
    def import_state(self, arrays):
        return self.initial_state()

class Forgetful(Optimized):
    """Every call starts from zeros."""
    def forward(self, tokens, state, *, taps=None):
        self.reset(state)
        return super().forward(tokens, state, taps=taps)

class CloneShares(Optimized):
    def clone(self, state):
        return state

class SnapshotShares(Optimized):
    def snapshot(self, state):
        return state

class RollbackOneShort(Optimized):
    def forward(self, tokens, state, *, taps=None):
        self.before = state.clone()
        return super().forward(tokens, state, taps=taps)
    def rollback(self, state, snapshot):
        state.assign(self.before)

class ResetForgetsShift(Optimized):
    def reset(self, state):
        state.wkv.zero_()

class BatchShares(Optimized):
    """The last row's logits are written over the first's."""
    def forward_batch(self, rows, states):
        logits = super().forward_batch(rows, states)
        logits[0][:1] = logits[-1][:1]
        return logits

class BatchPads(Optimized):
    """Padding enters the state of shorter rows."""
    def forward_batch(self, rows, states):
        longest = max(map(len, rows))
        padded = [list(row) + [0] * (longest - len(row)) for row in rows]
        return [logits[:len(row)] for row, logits in zip(rows, super().forward_batch(padded, states))]

class LeaksBetweenCalls(Optimized):
    """A scratch buffer keeps something of the run before."""
    leak = 0.0
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps) + self.leak
        self.leak = 1e-7 * float(abs(logits).max())
        return logits

class ChunkBoundary(Optimized):
    """Chunks of seven lose the state's first row."""
    size = None
    def set_chunk(self, tokens):
        super().set_chunk(tokens)
        self.size = tokens
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if self.size == 7:
            state.wkv[:, :, :, 0] = 0
        return logits

class WrongOp(Optimized):
    def apply(self, op, inputs):
        outputs = super().apply(op, inputs)
        if op == "l2norm":
            z = inputs["k"] * inputs["k_k"]
            outputs["kk"] = z / np.sqrt((z * z).sum(-1, keepdims=True) + 1e-6)
        return outputs

class NoTaps(Optimized):
    capabilities = Optimized.capabilities - {"taps"}

class UnknownCapability(Optimized):
    capabilities = Optimized.capabilities | {"tapes"}

class UnknownDtype(Optimized):
    def __init__(self):
        super().__init__()
        self.dtype = "fp32"

class RaisesOnClose(Optimized):
    def close(self):
        raise OSError("cannot unmap")

class NotAnEngine:
    pass
'''


@pytest.fixture
def check(gander: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """`gander check --json` of a class above, on one model; the report and the exit status."""
    (tmp_path / "misbehaving.py").write_text(ENGINES)
    monkeypatch.syspath_prepend(tmp_path)

    def run(name: str, *only: str) -> tuple[dict, int]:
        options = [word for id in only for word in ("--only", id)]
        typed = gander("check", "-m", "golden:adversarial", "-e", f"py:misbehaving:{name}", "--json", *options)
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


@pytest.mark.parametrize(("name", "id", "where", "message"), FAULTY, ids=[row[0] for row in FAULTY])
def test_fault_is_named(check: Callable, name: str, id: str, where: str, message: str) -> None:
    report, status = check(name, id)
    assert status == 1
    finding = first_finding(report, id)
    assert finding["where"] == where
    assert message in finding["message"]
    assert not finding["missing"]


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


def test_a_capability_that_is_not_offered_is_incomplete(check: Callable) -> None:
    """And the message says how to leave the check out."""
    report, status = check("NoTaps", "layer.isolated", "path.split")
    assert status == 2
    assert "leave it out with --skip layer.isolated" in first_finding(report, "layer.isolated")["message"]


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
