"""What an honest engine may be off by is derived, not chosen: it covers honest engines, and little besides."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from gander import reference
from gander.checkpoint import Checkpoint, Config
from gander.checkpoint.synthetic import synthesize
from gander.conformance.checks.op import PROPERTIES, Sizes
from gander.conformance.numbers import Bounded, Formats, System, bounded, plain, rounded, values
from gander.conformance.numbers.bounded import REACH
from gander.conformance.numbers.rounded import nearest
from gander.conformance.ops import OPS
from gander.conformance.tolerances import DEVIATIONS, MARGIN, error_bounds, round_to
from gander.golden import RECIPES, start_state
from gander.reference import forward, quantise
from gander.traces import DENSE, parse_attention

Array = np.ndarray
DTYPES = ("float32", "bfloat16", "float16")
REGIMES = [(name, regime) for name, property in PROPERTIES.items() for regime in property.regimes]


def drawn(name: str, regime: str, seed: int, dtype: str = "float32", T: int = 9) -> dict[str, Array]:
    """Inputs of an op, exact in `dtype`."""
    sizes = Sizes(T=1 if regime == "long" else T, H=2, N=16 + seed % 20, rank=7, seed=seed, regime=regime)
    inputs = PROPERTIES[name].draw(sizes, np.random.default_rng(seed))
    return {
        key: x if x.dtype.kind == "i" else round_to(dtype)(key, x.astype(np.float32)).astype(np.float64)
        for key, x in inputs.items()
    }


def answer(name: str, inputs: dict[str, Array], system: System) -> dict[str, Array]:
    """An op's outputs in some number system."""
    return OPS[name]({key: system(key, x) for key, x in inputs.items()})


def model(name: str) -> Checkpoint:
    """A small model of a golden one's recipe."""
    hybrid = name == "hybrid"
    sizes = (1, 64, 1, 64, 256, 40) if hybrid else (2, 48, 2, 24, 70, 40)
    config = Config(*sizes, rank_w=7, rank_a=9, rank_v=8, rank_g=11, attention_layers=int(hybrid))
    recipe = replace(RECIPES[name], config=config, odd=())
    return synthesize(config, recipe.fill, 3, source="test")


def run(
    checkpoint: Checkpoint, system: System, given: dict[str, Array] | None = None, *, int8: bool = False, policy=DENSE
) -> dict[str, Array]:
    """Taps and final state of a model from a random state, on a run's own values or on those `given`."""
    weights = checkpoint.weights(system.kind)
    held = {name: system(name, x) for name, x in (quantise(weights) if int8 else weights).items()}
    shown: dict[str, Array] = {}

    def tap(name: str, value: Array) -> Array:
        shown[name] = value
        return value if given is None else system(name, given[name])

    state = {name: system(name, x) for name, x in start_state(checkpoint.config, 1).items()}
    tokens = np.random.default_rng(2).integers(0, 40, 13).tolist()
    _, after = forward(held, checkpoint.config, tokens, state, tap, policy)
    return shown | after


# --- the value ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "regime"), REGIMES)
def test_the_value_of_a_formula_is_float64s_to_the_last_bit(name: str, regime: str) -> None:
    inputs = drawn(name, regime, seed=3)
    want = answer(name, inputs, plain(np.float64))
    for key, got in answer(name, inputs, bounded("float32")).items():
        np.testing.assert_array_equal(got.value, want[key])


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("name", ["adversarial", "hybrid"])
def test_the_values_of_a_model_are_float64s_to_the_last_bit(name: str, int8: bool) -> None:
    checkpoint = model(name)
    want = run(checkpoint, plain(np.float64), int8=int8)
    got = run(checkpoint, bounded("float32"), want, int8=int8)
    assert got.keys() == want.keys()
    for key, value in got.items():
        np.testing.assert_array_equal(value.value, want[key], err_msg=key)


@pytest.mark.parametrize(
    "policy", ["capped:length=5", "moba:chunk=4,top_k=2", "package:chunk=4,top_k=2,short=6", "memory:tokens=4"]
)
def test_every_attention_policy_is_bounded(policy: str) -> None:
    checkpoint, parsed = model("hybrid"), parse_attention(policy)
    want = run(checkpoint, plain(np.float64), policy=parsed)
    got = run(checkpoint, bounded("float32"), want, policy=parsed)
    np.testing.assert_array_equal(got["moba.0.att"].value, want["moba.0.att"])
    assert (error_bounds(got["moba.0.att"], Formats("float32").handed_on) > 0).all()


@pytest.mark.parametrize("make", [bounded, rounded])
def test_an_empty_cache_has_sums_and_means(make: Callable[[str], System]) -> None:
    nothing = make("float32")("k", np.zeros((0, 4, 8)))
    assert nothing.mean(axis=1).shape == nothing.sum(axis=1).shape == (0, 8)


def test_float64_itself_is_good_to_1e_13() -> None:
    """The same formulas in 80 bits: what float64 loses is nothing to what float32 may."""
    if np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("no longer type here")
    checkpoint = model("adversarial")
    want, got = run(checkpoint, plain(np.longdouble)), run(checkpoint, plain(np.float64))
    for name, value in want.items():
        error = np.abs(got[name] - value).max() / np.sqrt(np.mean(value**2))
        assert error < 1e-13, (name, error)


# --- the bound ---------------------------------------------------------------------------------------------------


def off(want: Bounded, got: Array, dtype: str, name: str) -> tuple[Array, Array]:
    """Errors and bounds."""
    return np.abs(got - want.value), error_bounds(want, Formats(dtype).of(name))


def honest(name: str, dtype: str) -> Iterator[tuple[str, Array, Array]]:
    """Errors of honest runs of an op, and their bounds."""
    for seed, regime in enumerate(PROPERTIES[name].regimes * 3):
        inputs = drawn(name, regime, seed, dtype)
        wanted = answer(name, inputs, bounded(dtype))
        for order in (None, np.random.default_rng(seed)):
            outputs = answer(name, inputs, rounded(dtype, order))
            for key, got in outputs.items():
                yield key, *off(wanted[key], got.handed_on(Formats(dtype).of(key)).value, dtype, key)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROPERTIES)
def test_no_honest_run_is_out_of_bounds(name: str, dtype: str) -> None:
    for key, error, bound in honest(name, dtype):
        assert (error <= bound).all(), (key, (error / bound).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROPERTIES)
def test_no_bound_is_vacuous(name: str, dtype: str) -> None:
    """At the median it is tens of times the error: eight deviations are twelve times the median of a normal one."""
    ratios: dict[str, list[Array]] = {}
    for key, error, bound in honest(name, dtype):
        ratios.setdefault(key, []).append(bound[error > 0] / error[error > 0])
    for key, found in ratios.items():
        assert 3 < np.median(np.concatenate(found)) < 100, key


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_honest_model_is_out_of_bounds(dtype: str) -> None:
    checkpoint, formats = model("adversarial"), Formats(dtype)
    shown: dict[str, Array] = {}
    made = rounded(dtype)

    def tap(name: str, value: Array) -> Array:
        shown[name] = value.handed_on(formats.of(name))
        return shown[name]

    weights = {name: made(name, x) for name, x in checkpoint.weights(np.float32).items()}
    state = {name: made(name, x) for name, x in start_state(checkpoint.config, 1).items()}
    tokens = np.random.default_rng(2).integers(0, 40, 13).tolist()
    _, after = forward(weights, checkpoint.config, tokens, state, tap)
    taps = {name: values(x) for name, x in shown.items()}
    for name, want in run(checkpoint, bounded(dtype), taps).items():
        if name.endswith("_x"):  # the last row of a tap
            continue
        error, bound = off(want, values({**taps, **after}[name]), dtype, name)
        assert (error <= bound).all(), (name, (error / bound).max())


@pytest.mark.parametrize("regime", ["ordinary", "slow", "repeated"])
def test_the_bound_of_a_state_does_not_run_away(regime: str) -> None:
    """A bound on elements alone is 10¹² times the error after 130 tokens."""
    for T in (16, 130):
        inputs = drawn("wkv7", regime, 5, T=T)
        want = answer("wkv7", inputs, bounded("float32"))["state"]
        error, bound = off(want, answer("wkv7", inputs, rounded("float32"))["state"].value, "float32", "state")
        assert (error <= bound).all()
        assert np.median(bound / error) < 60


def test_a_float64_engine_is_held_to_float64() -> None:
    inputs = drawn("channel_mix", "ordinary", 1)
    single, double = (answer("channel_mix", inputs, bounded(dtype))["y"] for dtype in ("float32", "float64"))
    ratio = error_bounds(single, Formats("float32").handed_on) / error_bounds(double, Formats("float64").handed_on)
    np.testing.assert_allclose(ratio, 2.0**29, rtol=1e-6)


def test_the_deviations_of_a_bound_are_those_that_e_to_the_x_is_told_for() -> None:
    assert DEVIATIONS * MARGIN == REACH


# --- what is out of bounds ---------------------------------------------------------------------------------------


def decay_of_four_digits(**inputs: Array) -> Array:
    return reference.decay(**inputs) ** (0.6065 * math.exp(0.5))


def clamp_of_1e_11(k: Array, k_k: Array) -> Array:
    z = k * k_k
    return z / np.maximum(np.sqrt((z * z).sum(axis=-1, keepdims=True)), 1e-11)


def unbiased(x: Array, weight: Array, bias: Array) -> Array:
    size = x.shape[-1]
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).sum(axis=-1, keepdims=True) / (size - 1) + 1e-5) * weight + bias


def fused_epsilon(k: Array, k_k: Array) -> Array:
    z = k * k_k
    return z / np.sqrt((z * z).sum(axis=-1, keepdims=True) + 1e-6)


def residual_in_float16(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    difference = (first - v).astype(np.float16).astype(np.float64)
    return v + difference * reference.sigmoid(v0 + reference.lora(xv, v1, v2))


def approximate_tanh(xw: Array, w0: Array, w1: Array, w2: Array) -> Array:
    """tanh by a fraction that is good to 1e-4."""

    def tanh(x: Array) -> Array:
        x = np.clip(x, -4.97, 4.97)
        return (
            x * (135135 + x**2 * (17325 + x**2 * (378 + x**2))) / (135135 + x**2 * (62370 + x**2 * (3150 + 28 * x**2)))
        )

    return np.exp(-math.exp(-0.5) * reference.sigmoid(w0 + reference.lora(xw, w1, w2, tanh)))


WRONG: dict[str, tuple[str, str, Callable[..., Array]]] = {
    "GroupNorm's eps is 1e-5": ("group_norm", "tiny", lambda **x: reference.group_norm(**x, eps=1e-5)),
    "GroupNorm's eps is 16e-5": ("group_norm", "ordinary", lambda **x: reference.group_norm(**x, eps=16e-5)),
    "the decay's constant has four digits": ("decay", "ordinary", decay_of_four_digits),
    "the l2 norm's clamp is 1e-11": ("l2norm", "tiny", clamp_of_1e_11),
    "the l2 norm's eps is inside": ("l2norm", "tiny", fused_epsilon),
    "the variance is unbiased": ("layer_norm", "ordinary", unbiased),
    "the value residual is in float16": ("v_first", "ordinary", residual_in_float16),
    "tanh is a fraction": ("decay", "saturated", approximate_tanh),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_formula_is_out_of_bounds(fault: str) -> None:
    name, regime, formula = WRONG[fault]
    inputs = drawn(name, regime, seed=2)
    ((key, want),) = answer(name, inputs, bounded("float32")).items()
    error, bound = off(want, formula(**inputs), "float32", key)
    assert (error > bound).any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_decay_of_16_bits_is_out_of_bounds(dtype: str) -> None:
    inputs = drawn("decay", "ordinary", 1, dtype)
    want = answer("decay", inputs, bounded(dtype))["w"]
    error, bound = off(want, round_to(dtype)("", want.value.astype(np.float32)), dtype, "w")
    assert (error > bound).any()


# --- rounded -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROPERTIES)
def test_rounded_to_float32_is_the_reference_in_float32(name: str) -> None:
    inputs = drawn(name, "ordinary", 4)
    want = answer(name, inputs, plain(np.float32))
    for key, got in answer(name, inputs, rounded("float32")).items():
        np.testing.assert_array_equal(got.value, want[key])
        assert got.value.dtype == np.float32


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)])
def test_rounding_is_to_the_nearest_and_halves_to_even(dtype: str, kind: torch.dtype) -> None:
    halves = np.arange(1, 2, 2.0**-12)
    x = np.concatenate([halves, -halves * 1e-3, halves * 1.7e38, [0.0, -0.0, np.inf, np.nan, 1e-40]]).astype(np.float32)
    want = torch.from_numpy(x).to(kind).float().numpy()
    np.testing.assert_array_equal(nearest(x, Formats(dtype).handed_on), want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_keep_decay_and_state_in_float32(dtype: str) -> None:
    decay = answer("decay", drawn("decay", "ordinary", 1, dtype), rounded(dtype))["w"]
    output = answer("wkv7", drawn("wkv7", "ordinary", 1, dtype), rounded(dtype))
    for wide in (decay, output["state"]):
        assert (nearest(wide.value, Formats(dtype).handed_on) != wide.value).any()
    np.testing.assert_array_equal(nearest(output["y"].value, Formats(dtype).handed_on), output["y"].value)
