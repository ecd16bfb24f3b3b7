"""The golden models have the properties that they were made for; start states and random models too."""

from functools import cache

import numpy as np
import pytest
import torch

from gander.checkpoint import write
from gander.errors import InputError
from gander.golden import CACHED, NAMES, RANDOM_SIZES, open_model, read_manifest, start_of, start_state
from gander.golden.recipes import RECIPES
from gander.golden.record import run
from gander.reference import initial_state
from gander.traces import state_tensors

EPS = 64e-5  # GroupNorm's
# (block, head) by oddity
FAINT = {"adversarial": {(0, 1), (2, 1)}, "narrow": {(0, 1), (2, 1)}, "vocab": {(0, 1)}, "hybrid": {(0, 1)}}
NEAR_ZERO_KEY = {"adversarial": {(1, 2)}, "narrow": {(1, 2)}, "vocab": set(), "hybrid": {(1, 0)}}
CLAMPED_KEY = {"adversarial": {(2, 0)}, "narrow": {(2, 0)}, "vocab": set(), "hybrid": set()}
NO_KEY = {"adversarial": {(3, 1)}, "narrow": {(0, 4)}, "vocab": set(), "hybrid": set()}


@cache
def model(name):
    return open_model(f"golden:{name}")


@cache
def weights(name):
    return model(name).weights()


@cache
def shown(name):
    """Every tap over the tokens of the stored long trace, from zeros."""
    traces = read_manifest().find(model(name).fingerprint()).traces
    tokens = next(trace.tokens for trace in traces if ".tokens." in trace.file)
    return run(model(name), tokens)


def blocks(name):
    return range(model(name).config.layers)


def heads(name, tap):
    """{(block, head): values (T, N)}."""
    config = model(name).config
    return {(i, h): shown(name)[f"blocks.{i}.{tap}"][:, h] for i in blocks(name) for h in range(config.heads)}


def test_shapes():
    a, n, v, x = (RECIPES[name].config for name in NAMES)
    assert (a.heads, a.head_size, a.layers, a.vocab) == (3, 64, 4, 512)
    assert (a.rank_w, a.rank_a, a.rank_v, a.rank_g) == (17, 19, 23, 29)
    assert (n.heads, n.head_size) == (5, 32) and not np.isclose(n.group_norm_eps, n.head_size * n.layer_norm_eps)
    assert v.vocab == 65536
    assert (x.layers, x.attention_layers, x.width, x.ffn) == (6, 2, 128, 4 * 128)
    for config in (a, n, v):
        assert config.layers >= 3 and config.heads != config.head_size and config.ffn != 4 * config.width
        assert config.width == config.heads * config.head_size
        ranks = (config.rank_w, config.rank_a, config.rank_v, config.rank_g)
        assert len(set(ranks)) == 4 and all(rank % 2 for rank in ranks)


@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_is_constant_and_no_bias_zero(name):
    for tensor, value in weights(name).items():
        assert np.unique(value).size > 4, tensor
        if tensor.endswith("bias"):
            assert np.abs(value).mean() > 0.05, tensor


@pytest.mark.parametrize("name", NAMES)
def test_magnitudes_stay_sane(name):
    assert 0.5 < shown(name)["logits"].std() < 2
    for i in blocks(name):
        assert 0.5 < shown(name)[f"blocks.{i}.out"].std() < 3
        for branch in ("att.out", "ffn.out"):  # neither is lost in the residual stream
            assert shown(name)[f"blocks.{i}.{branch}"].std() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_decays_cover_their_range(name):
    for i in blocks(name):
        w = shown(name)[f"blocks.{i}.att.w"]
        assert 0.5452 < w.min() < 0.57 and 0.998 < w.max() < 1
        assert weights(name)[f"blocks.{i}.att.w0"].min() < -5.5 and weights(name)[f"blocks.{i}.att.w0"].max() > 2.5


@pytest.mark.parametrize("name", NAMES)
def test_lora_activations_reach_far_out_but_not_all(name):
    # vocab is there for its vocabulary, hybrid for its attention: they reach 50 only
    far = 88.8 if name in ("adversarial", "narrow") else 50  # beyond 88.7 a float32's exponential overflows
    for i in blocks(name):
        p = {key.removeprefix(f"blocks.{i}.att."): value for key, value in weights(name).items()}
        x = {letter: shown(name)[f"blocks.{i}.att.x{letter}"] for letter in "wagv"}
        inputs = {
            "tanh of w": x["w"] @ p["w1"],
            "sigmoid of g": x["g"] @ p["g1"],
            "sigmoid of a": p["a0"] + x["a"] @ p["a1"] @ p["a2"],
        }
        if i:
            inputs["sigmoid of v"] = p["v0"] + x["v"] @ p["v1"] @ p["v2"]
        for what, value in inputs.items():
            assert value.max() > far or value.min() < -far, (i, what)
            assert np.median(np.abs(value)) < 2, (i, what)


@pytest.mark.parametrize("name", NAMES)
def test_faint_heads_show_the_eps_of_group_norm(name):
    for head, y in heads(name, "att.wkv").items():
        variance = y.var(axis=-1)
        if head in FAINT[name]:
            assert 1e-7 < np.median(variance) < 5e-6 and variance.max() < EPS / 10, head
        elif head not in NEAR_ZERO_KEY[name] | CLAMPED_KEY[name]:  # which write next to nothing either
            assert np.median(variance) > 10 * EPS, head


@pytest.mark.parametrize("name", NAMES)
def test_removal_keys_have_the_lengths_they_should(name):
    k_k = {i: weights(name)[f"blocks.{i}.att.k_k"].reshape(model(name).config.heads, -1) for i in blocks(name)}
    for (i, h), k in heads(name, "att.k").items():
        length = np.linalg.norm(k * k_k[i][h], axis=-1)
        kk = np.linalg.norm(heads(name, "att.kk")[i, h], axis=-1)
        if (i, h) in NEAR_ZERO_KEY[name]:
            assert (length > 1e-10).all() and (length < 5e-9).all()
            assert np.allclose(kk, 1)
        elif (i, h) in CLAMPED_KEY[name]:
            assert (length > 1e-13).all() and (length < 0.9e-12).all()
            assert np.allclose(kk, length / 1e-12)
        elif (i, h) in NO_KEY[name]:
            assert (length == 0).all() and (kk == 0).all()
        else:
            assert (length > 0.1).all() and np.allclose(kk, 1)


def test_attention_scores_are_uneven_and_in_one_head_beyond_what_float32_can_raise_e_to():
    seen = shown("hybrid")
    for n, h in ((0, 0), (0, 1), (1, 0), (1, 1)):
        scores = seen[f"moba.{n}.q"][:, h] @ seen[f"moba.{n}.k"][:, h].T / 8
        scores = scores[np.tril_indices(len(scores))]
        assert scores.std() > 0.5
        assert scores.min() > 88.8 if (n, h) == (1, 1) else np.abs(scores).max() < 10


def test_narrow_tells_the_two_group_norm_epsilons_apart():
    y = heads("narrow", "att.wkv")[0, 1]
    ours, theirs = (1 / np.sqrt(y.var(axis=-1) + eps) for eps in (64e-5, 32e-5))
    assert np.median(theirs / ours) > 1.3


def test_vocab_has_distinct_rows_at_both_ends():
    emb = weights("vocab")["emb.weight"]
    assert len(np.unique(emb, axis=0)) == len(emb) == 65536
    assert len(np.unique(weights("vocab")["head.weight"], axis=0)) == 65536


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_always_the_same_and_survives_a_file(name, tmp_path):
    stored = next(entry for entry in read_manifest().models if entry.name == name)
    assert model(name).fingerprint() == stored.fingerprint
    write(model(name), tmp_path / "m.safetensors", "rwkvx" if name == "hybrid" else "official")
    assert open_model(str(tmp_path / "m.safetensors")).fingerprint() == stored.fingerprint


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("golden:adversaria", "did you mean 'adversarial'"),
        ("golden:", "one of 'adversarial', 'hybrid', 'narrow', 'vocab'"),
        ("random:1B", "did you mean"),
        ("random:x", "'13.3B'"),
        ("no/such/file.pth", "no/such/file.pth"),
    ],
)
def test_unknown_models_are_refused(spec, message):
    with pytest.raises(InputError, match=message):
        open_model(spec)


# Measured counts of released models, in millions. Those of RWKV-X count layer 0's v0, v1 and v2, which are not used.
PARAMETERS = {"0.1B": 191.03, "0.4B": 450.77, "1.5B": 1527.40, "2.9B": 2947.74, "7.2B": 7199.14, "13.3B": 13269.25}
PARAMETERS |= {"X-0.2B": 219.41, "X-3.6B": 3577.31}


@pytest.mark.parametrize("size", RANDOM_SIZES)
def test_random_models_have_the_size_of_the_released_ones(size, monkeypatch):
    from gander.checkpoint import shapes
    from gander.golden import recipes

    monkeypatch.setattr(recipes, "synthesize", lambda config, fill, seed, **rest: (config, fill))
    config, fill = recipes.make_random(size)
    count = sum(int(np.prod(shape)) for shape in shapes(config).values())
    unused = config.width * (1 + 2 * config.rank_v) if config.attention_layers else 0
    assert round((count + unused) / 1e6, 2) == PARAMETERS[size]
    assert all(fill(name).scale > 0 and not fill(name).parts for name in shapes(config))


def test_random_models_say_something():
    checkpoint = open_model("random:0.1B")
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {torch.bfloat16}
    assert all(torch.equal(value.half().float(), value.float()) for value in checkpoint.tensors.values())
    logits = run(checkpoint, [0, 65535, 300])["logits"]
    assert 0.5 < logits.std() < 2


@pytest.mark.parametrize("name", NAMES)
def test_start_states(name):
    config = model(name).config
    state = start_state(config, 5)
    assert {key: value.shape for key, value in state.items()} == {
        tensor.name: tensor.shape({**config.dims, "M": CACHED})
        for tensor in state_tensors(config.layers, config.attention_layers)
    }
    for key, value in state.items():
        assert value.dtype == np.float64
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert np.array_equal(torch.from_numpy(value).to(dtype).double().numpy(), value)
        if key.endswith("wkv"):
            for head, s in enumerate(value):  # [value, key]
                assert np.abs(s - s.T).max() > np.abs(s).max() / 2
                assert np.isclose(np.abs(s).max(), (2**-1, 2**-12, 2**-5)[head % 3], rtol=0.01)
        else:
            assert 0.5 < value.std() < 0.65
    again, other = start_of(config, "random:5"), start_state(config, 6)
    assert all(np.array_equal(state[key], again[key]) for key in state)
    assert not any(np.array_equal(state[key], other[key]) for key in state)
    zero = start_of(config, "zero")
    assert zero.keys() == initial_state(config).keys() and not any(value.any() for value in zero.values())
