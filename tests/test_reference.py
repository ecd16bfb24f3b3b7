"""The reference against things known about its formulas: other ways to write them, limits, and higher precision.

That it is *right* is what tests/test_witnesses.py shows, with programs that others wrote.
"""

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gander import reference
from gander.conformance.ops import OPS
from gander.golden import open_model, start_state

Array = np.ndarray


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


def recurrence(random: np.random.Generator, T: int = 9, H: int = 2, N: int = 5) -> dict[str, Array]:
    inputs = {name: random.standard_normal((T, H, N)) for name in ("r", "k", "v", "kk")}
    inputs["kk"] /= np.linalg.norm(inputs["kk"], axis=-1, keepdims=True)
    return inputs | {
        "w": random.uniform(0.55, 1, (T, H, N)),
        "a": random.uniform(0, 1, (T, H, N)),
        "state": random.standard_normal((H, N, N)),
    }


def three_terms(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, state: Array) -> tuple[Array, Array]:
    """The recurrence written out, number by number: s = S kk; S ← S·w − s (kk·a)ᵀ + v kᵀ; y = S r."""
    T, H, N = r.shape
    y, S = np.zeros((T, H, N)), state.copy()
    for t in range(T):
        for h in range(H):
            s = [sum(S[h, i, j] * kk[t, h, j] for j in range(N)) for i in range(N)]
            for i in range(N):
                for j in range(N):
                    S[h, i, j] = S[h, i, j] * w[t, h, j] - s[i] * kk[t, h, j] * a[t, h, j] + v[t, h, i] * k[t, h, j]
            for i in range(N):
                y[t, h, i] = sum(S[h, i, j] * r[t, h, j] for j in range(N))
    return y, S


def test_the_recurrence_is_its_three_terms(random: np.random.Generator) -> None:
    inputs = recurrence(random)
    for got, want in zip(reference.wkv7(**inputs), three_terms(**inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)


def test_the_recurrence_leaves_the_given_state_alone(random: np.random.Generator) -> None:
    inputs = recurrence(random)
    before = inputs["state"].copy()
    reference.wkv7(**inputs)
    assert (inputs["state"] == before).all()


def test_the_recurrence_forgets_what_a_key_held(random: np.random.Generator) -> None:
    """With a = 1, w = 1 and k = kk, writing v under a key replaces what was there: the delta rule's point."""
    inputs = recurrence(random, T=1)
    inputs |= {"a": np.ones_like(inputs["a"]), "w": np.ones_like(inputs["w"]), "k": inputs["kk"], "r": inputs["kk"]}
    y, _ = reference.wkv7(**inputs)
    np.testing.assert_allclose(y, inputs["v"], atol=1e-13)


@given(st.floats(-60, 60))
def test_decay_is_its_softplus_form(level: float) -> None:
    """exp(−exp(−softplus(−l) − 1/2)): how the training kernels write it."""
    got = reference.decay(np.zeros((1, 1)), np.array([level]), np.zeros((1, 1)), np.zeros((1, 1)))
    softplus = max(-level, 0) + math.log1p(math.exp(-abs(level)))
    assert got[0, 0] == pytest.approx(math.exp(-math.exp(-softplus - 0.5)), abs=5e-15)


def test_decay_stays_in_its_range() -> None:
    """(e^(−e^(−1/2)), 1), closed where float64 rounds."""
    levels = np.array([-1e4, -750.0, 0.0, 750.0, 1e4])
    got = reference.decay(np.zeros((1, 5)), levels, np.zeros((5, 1)), np.zeros((1, 5)))[0]
    assert got[0] == got[1] == 1.0
    assert got[2] == math.exp(-math.exp(-0.5) / 2)
    assert got[3] == got[4] == pytest.approx(0.545239, abs=1e-6)


@pytest.mark.parametrize(("norm", "factor"), [(0.0, 0.0), (1e-13, 0.1), (1e-12, 1.0), (1e-3, 1.0), (1e3, 1.0)])
def test_l2norm_clamps_below_1e_12(norm: float, factor: float) -> None:
    """And does not have fla's fused epsilon: a norm of 1e-3 gives a unit vector."""
    k = np.full((1, 1, 4), norm / 2)
    got = reference.l2norm(k, np.ones((1, 4)))
    assert np.linalg.norm(got) == pytest.approx(factor, rel=1e-12)


def test_sigmoid_is_exact_in_its_limits() -> None:
    with np.errstate(all="raise", under="ignore"):
        assert reference.sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]


def test_group_norm_is_layer_norm_of_each_head(random: np.random.Generator) -> None:
    y = random.standard_normal((3, 2, 8))
    weight, bias = random.standard_normal((2, 16))
    got = reference.group_norm(y, weight, bias)
    for h in range(2):
        part = slice(8 * h, 8 * h + 8)
        want = reference.layer_norm(y[:, h], weight[part], bias[part], 64e-5)
        np.testing.assert_allclose(got[:, part], want, rtol=1e-14)


def test_norms_use_the_biased_variance() -> None:
    x = np.array([[1.0, -1.0]])
    assert reference.layer_norm(x, np.ones(2), np.zeros(2), eps=0.0).tolist() == [[1.0, -1.0]]


def test_token_shift_starts_from_the_previous_row(random: np.random.Generator) -> None:
    x, previous = random.standard_normal((4, 3)), random.standard_normal(3)
    assert (reference.token_shift(x, previous, np.zeros(3)) == x).all()
    np.testing.assert_allclose(reference.token_shift(x, previous, np.ones(3)), [previous, *x[:-1]], atol=1e-15)


def test_every_op_answers_in_the_precision_it_was_asked_in(random: np.random.Generator) -> None:
    """float32 in, float32 out; longdouble in, longdouble out: no constant widens or narrows a formula."""
    shapes: Mapping[str, tuple[int, ...]] = {
        **dict.fromkeys(("x", "xw", "xa", "xg", "xv", "xk", "norm", "bonus", "g", "first"), (3, 8)),
        **dict.fromkeys(("weight", "bias", "previous", "mix", "w0", "a0", "v0"), (8,)),
        **dict.fromkeys(("down", "w1", "a1", "v1", "g1"), (8, 5)),
        **dict.fromkeys(("up", "w2", "a2", "v2", "g2"), (5, 8)),
        **dict.fromkeys(("r", "w", "k", "kk", "a", "y"), (3, 2, 4)),
        **dict.fromkeys(("k_k", "k_a", "r_k"), (2, 4)),
        "emb": (6, 8), "head": (6, 8), "state": (2, 4, 4), "key": (7, 8), "value": (8, 7),
    }  # fmt: skip
    for op in OPS.values():
        names = [name for name in op.inputs if name not in ("tokens", "eps")]
        for dtype in (np.float32, np.float64, np.longdouble):
            values = {
                name: random.standard_normal(
                    {"v_first": (3, 8)}.get(op.name, (3, 2, 4)) if name == "v" else shapes[name]
                ).astype(dtype)
                for name in names
            }
            if "tokens" in op.inputs:
                values["tokens"] = np.array([0, 5, 5])
            for output in op(values).values():
                assert output.dtype == dtype, op.name


def test_float64_is_good_to_thirteen_digits() -> None:
    """Against longdouble, every tap, on the model made to be hard."""
    if np.finfo(np.longdouble).eps == np.finfo(np.float64).eps:
        pytest.skip("longdouble is float64 on this machine")
    checkpoint = open_model("golden:adversarial")
    tokens = [0, 511, 511, 3, 77, 3, 200, 201, 0]
    runs: list[dict[str, Array]] = []
    for dtype in (np.float64, np.longdouble):
        seen: dict[str, Array] = {}

        def tap(name: str, value: Array, seen: dict[str, Array] = seen) -> Array:
            seen[name] = value
            return value

        start = {name: value.astype(dtype) for name, value in start_state(checkpoint.config, 1).items()}
        reference.forward(checkpoint.weights(dtype), checkpoint.config, tokens, start, tap)
        runs.append(seen)
    for name, value in runs[1].items():
        assert value.dtype == np.longdouble
        error = np.abs(runs[0][name] - value).max(-1)
        assert (error <= 1e-12 * np.abs(value).max()).all(), name


def test_a_tap_can_replace_what_goes_on() -> None:
    """What a tap returns is what the next formula gets: replaying a run's own taps reproduces it."""
    checkpoint = open_model("golden:narrow")
    weights, zero = checkpoint.weights(), reference.initial_state(checkpoint.config)
    seen: dict[str, Array] = {}
    plain, _ = reference.forward(weights, checkpoint.config, [1, 2, 3], zero, lambda n, v: seen.setdefault(n, v))
    replayed, _ = reference.forward(weights, checkpoint.config, [1, 2, 3], zero, lambda n, v: seen[n])
    muted, _ = reference.forward(weights, checkpoint.config, [1, 2, 3], zero, lambda n, v: v * (n != "emb"))
    assert (replayed == plain).all()
    assert not np.allclose(muted, plain)
