"""The reference against witnesses that share no code with it: PyPI `rwkv`, and logits that rwkv.cpp recorded."""

import json
from pathlib import Path

import numpy as np
import pytest
from installed import needs

from gander.checkpoint import load, write
from gander.golden import NAMES, open_model, read_manifest
from gander.reference import forward, initial_state

TINY = Path(__file__).parents[2] / "shared" / "data" / "tiny-rwkv7-834k"
BOUND = 1e-4  # of the spread of logits, for float32 and for the 0.606531 that rwkv writes for e^(-1/2)

needs_rwkv = needs("rwkv")
needs_tiny = pytest.mark.skipif(not TINY.is_dir(), reason=f"no trained model at {TINY}")


@pytest.fixture
def open_rwkv(tmp_path, monkeypatch):
    """PyPI rwkv on a checkpoint, in float32 on the CPU."""
    monkeypatch.setenv("RWKV_V7_ON", "1")  # both are read when the module is imported
    monkeypatch.setenv("RWKV_JIT_ON", "0")

    def open_(checkpoint):
        from rwkv.model import RWKV

        write(checkpoint, tmp_path / "model.pth", "official")
        return RWKV(model=str(tmp_path / "model"), strategy="cpu fp32")

    return open_


def state_error(ours, theirs):
    """The largest difference between two states, relative to each tensor's largest number."""
    worst = 0.0
    for block in range(len(theirs) // 3):
        for place, part in enumerate(("att_x", "wkv", "ffn_x")):  # rwkv's order
            mine = ours[f"blocks.{block}.state.{part}"]
            their = theirs[3 * block + place].double().numpy()
            assert their.shape == mine.shape
            worst = max(worst, float(np.abs(mine - their).max() / np.abs(mine).max()))
    return worst


@needs_rwkv
@pytest.mark.parametrize("path", ["prefill", "step"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "hybrid"])
def test_rwkv_says_the_same(name, path, open_rwkv, record_property):
    checkpoint = open_model(f"golden:{name}")
    golden = read_manifest().find(checkpoint.fingerprint())
    tokens = list(next(trace.tokens for trace in golden.traces if ".tokens." in trace.file))
    logits, state = forward(checkpoint.weights(), checkpoint.config, tokens, initial_state(checkpoint.config))
    engine = open_rwkv(checkpoint)
    if path == "prefill":
        theirs, their_state = engine.forward(tokens, None, full_output=True)
        rows = theirs.double().numpy()
    else:
        their_state, rows = None, np.empty_like(logits)
        for t, token in enumerate(tokens):
            theirs, their_state = engine.forward([token], their_state)
            rows[t] = theirs.double().numpy()
    error = float(np.abs(rows - logits).max() / logits.std())
    state_off = state_error(state, their_state)
    record_property("logits", error)
    record_property("state", state_off)
    print(f"{name} {path}: logits {error:.1e} of their spread, state {state_off:.1e} of its largest number")
    assert rows.shape == logits.shape
    assert error <= BOUND
    assert state_off <= BOUND


@needs_rwkv
def test_the_witness_would_notice(open_rwkv):
    """One weight behind a faint head, 6 % off, is more than the bound allows."""
    checkpoint = open_model("golden:adversarial")
    tokens = list(range(100, 117))
    logits, _ = forward(checkpoint.weights(), checkpoint.config, tokens, initial_state(checkpoint.config))
    weight = checkpoint.tensors["blocks.2.att.ln_x.weight"]
    weight[70] *= 1 + 2**-4
    theirs, _ = open_rwkv(checkpoint).forward(tokens, None, full_output=True)
    assert np.abs(theirs.double().numpy() - logits).max() / logits.std() > BOUND


@needs_tiny
def test_a_trained_model_says_what_rwkv_cpp_recorded(record_property):
    recorded = json.loads((TINY / "expected_logits.json").read_text())
    checkpoint = load(TINY / "model.safetensors")
    start = initial_state(checkpoint.config)
    logits, _ = forward(checkpoint.weights(), checkpoint.config, recorded["tokens"], start)
    error = float(np.abs(logits[-1] - np.array(recorded["logits"])).max())
    record_property("error", error)
    print(f"tiny-rwkv7-834k: max |Δlogit| {error:.1e}")
    assert error <= 2e-6


@needs_rwkv
@needs_tiny
def test_a_trained_model_says_what_rwkv_says(open_rwkv, record_property):
    checkpoint = load(TINY / "model.safetensors")
    tokens = list(b'"in the beginning was the goose", said the gander.')
    logits, state = forward(checkpoint.weights(), checkpoint.config, tokens, initial_state(checkpoint.config))
    theirs, their_state = open_rwkv(checkpoint).forward(tokens, None, full_output=True)
    error = float(np.abs(theirs.double().numpy() - logits).max() / logits.std())
    record_property("logits", error)
    print(f"tiny-rwkv7-834k: logits {error:.1e} of their spread")
    assert error <= BOUND
    assert state_error(state, their_state) <= BOUND
