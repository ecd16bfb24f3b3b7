"""The reference's RWKV-X against a witness that shares no code with it: PyPI rwkv-x, policy by policy."""

from types import SimpleNamespace

import numpy as np
import pytest
from installed import needs

from gander.checkpoint import write
from gander.golden import open_model
from gander.reference import forward, initial_state
from gander.traces import Dense, Memory, Package

BOUND = 1e-4  # of the spread of logits, for float32 and for the 0.606531 that the package writes for e^(-1/2)
FULL = {"prefill_attn_mode": "full", "decoding_attn_mode": "full"}
PACKAGE = {"prefill_attn_mode": "chunk", "decoding_attn_mode": "sparse"}

pytestmark = needs("rwkv_x")


@pytest.fixture(scope="module")
def hybrid():
    return open_model("golden:hybrid")


def config_of(policy, modes):
    """What `model_old.py` wants to be told."""
    policy = policy if isinstance(policy, Package) else Package()
    return SimpleNamespace(
        attn_chunk_size=policy.chunk,
        attn_topk=policy.top_k,
        short_sequence_criteria=policy.short,
        enable_kv_cache_management=policy.evict_at > 0,
        max_kv_cache_size=policy.evict_at,
        min_kv_cache_size=policy.keep,
        kv_cache_window_size=policy.window,
        head_size=64,
        **modes,
    )


def calls_of(tokens, parts):
    ends = np.cumsum(parts)
    return [list(tokens[end - part : end]) for part, end in zip(parts, ends, strict=True)]


def compared(checkpoint, policy, model, parts, record_property):
    """Logits of every call, and the final state, of both."""
    rng = np.random.default_rng(5)
    tokens = [int(token) for token in rng.integers(0, checkpoint.config.vocab, sum(parts))]
    weights, state, theirs = checkpoint.weights(), initial_state(checkpoint.config), None
    worst, every = 0.0, []
    for call in calls_of(tokens, parts):
        logits, state = forward(weights, checkpoint.config, call, state, attention=policy)
        rows, theirs = model.forward(call, theirs, full_output=True)
        rows = rows.double().numpy().reshape(logits.shape)
        worst, every = max(worst, float(np.abs(rows - logits).max())), [*every, logits]
    worst /= float(np.concatenate(every).std())
    for n, attention in enumerate(theirs["attn"]):
        for ours, name in (("k", "k_cache"), ("v", "v_cache"), ("ffn_x", "ffn_x_prev")):
            want, got = state[f"moba.{n}.state.{ours}"], attention[name].double().numpy()
            got = got.reshape(want.shape)  # raises where as many keys are not kept
            if want.size:
                assert np.abs(got - want).max() <= BOUND * np.abs(want).max(), (n, ours)
    for at, tensor in enumerate(theirs["rwkv"]):
        want = state[f"blocks.{at // 3}.state.{('att_x', 'wkv', 'ffn_x')[at % 3]}"]
        assert np.abs(tensor.double().numpy() - want).max() <= BOUND * np.abs(want).max(), at
    record_property("logits", worst)
    path = "+".join(map(str, parts)) if len(parts) < 6 else f"{parts[0]}+{parts[1]}+… ({len(parts)} calls)"
    print(f"{policy} {path}: logits {worst:.1e} of their spread")
    assert worst <= BOUND


SPARSE = Package(chunk=4, top_k=2, short=8)
EVICTING = Package(chunk=4, top_k=2, short=8, evict_at=24, keep=16, window=5)
ONLY_EVICTING = Package(chunk=4, top_k=2, short=10_000, evict_at=24, keep=16, window=5)


@pytest.mark.parametrize("parts", [(29,), (1,) * 29, (9, 1, 1, 14, 1, 1)], ids=["prefill", "step", "split"])
@pytest.mark.parametrize(
    ("policy", "modes"),
    [(Dense(), FULL), (SPARSE, PACKAGE), (EVICTING, PACKAGE), (ONLY_EVICTING, PACKAGE)],
    ids=["dense", "package", "package, evicting", "evicting"],
)
def test_model_old_says_the_same(policy, modes, parts, hybrid, tmp_path, record_property):
    from rwkv_x.model_old import RWKV_X

    if policy in (EVICTING, ONLY_EVICTING):  # a cache that is cut down again and again, and by a call of several tokens
        parts = (*parts, *(1,) * 12, 13, *(1,) * 9)
    write(hybrid, tmp_path / "model.pth", "rwkvx")
    model = RWKV_X(str(tmp_path / "model.pth"), "cpu fp32", config_of(policy, modes))
    compared(hybrid, policy, model, parts, record_property)


@pytest.mark.parametrize("parts", [(29,), (29, *(1,) * 9), (5, 1, 24, 1, 1), (1, 1, 20, 1)], ids=str)
def test_the_memory_model_says_the_same(parts, hybrid, tmp_path, record_property):
    from rwkv_x.model import RWKV_X, RWKV_X_Memory_Config

    write(hybrid, tmp_path / "model.pth", "rwkvx")
    model = RWKV_X(str(tmp_path / "model.pth"), "cpu fp32", RWKV_X_Memory_Config(memory_keep_tokens=7))
    compared(hybrid, Memory(tokens=7), model, parts, record_property)
