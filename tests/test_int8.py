"""INT8: what the scheme promises, and that the fast engine is the reference to the last bit."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from gander import reference
from gander.conformance.checks.int8 import constructed
from gander.errors import InputError
from gander.golden import open_model
from gander.optimized import Engine, int8
from gander.optimized.compiled import set_threads
from gander.reference.int8 import SMALLEST
from gander.traces import op_of

MODEL = open_model("golden:narrow")
CASES = constructed("float32")
QUANTISED = {"att.xr", "att.xk", "att.xv", "att.gated", "ffn.xk", "ffn.k", "ln_out"}  # what goes into a projection


def drawn(seed, rows=40, columns=97):
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, columns)) * 10.0 ** random.uniform(-30, 30, (rows, 1))).astype(np.float32)


ALL = {**CASES, **{f"drawn {seed}": drawn(seed) for seed in range(5)}}


@pytest.mark.parametrize("name", ALL)
def test_codes_are_near_and_symmetric(name):
    w = ALL[name]
    codes, scale = reference.quantise_rows(w)
    assert codes.dtype == np.int8 and scale.dtype == np.float32
    assert codes.min() >= -127
    s = scale.astype(np.float64)[:, None]
    error = np.abs(w - codes * s)
    # Half a step; and a quotient near 127 is rounded by up to 2⁻¹⁸ of a step before it is rounded to a whole number.
    assert (error <= s * (0.5 + 2.0**-17))[scale > 0].all()
    assert (np.abs(codes).max(axis=1) == np.where(scale > 0, 127, 0)).all()
    for row, each in zip(w[scale > 0], codes[scale > 0], strict=True):
        largest = np.argmax(np.abs(row))
        assert each[largest] == 127 * np.sign(row[largest])
    np.testing.assert_array_equal(reference.quantise_rows(-w).codes, -codes)
    np.testing.assert_array_equal(reference.quantise_vector(w)[0], codes)


def test_a_row_without_a_normal_scale_is_zero():
    smallest = np.float32(127 * 2.0**-126)
    below = np.nextafter(np.float32(126.9 * 2.0**-126), np.float32(0))
    for largest, kept in (
        (0.0, False),
        (-0.0, False),
        (1e-45, False),
        (1e-38, False),
        (below, False),
        (smallest, True),
    ):
        codes, scale = reference.quantise_rows(np.array([[largest, -largest / 2], [1, 2]], np.float32))
        assert (scale[0] > 0) == kept == codes[0].any()
        assert scale[0] == 0 or scale[0] >= SMALLEST
        np.testing.assert_array_equal(codes[1], [64, 127])  # 63.5 is a half: to even


def test_halves_go_to_even():
    codes, scale = reference.quantise_rows(np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5]], np.float32))
    np.testing.assert_array_equal(codes, [[127, 0, 2, 2, 0, -2, 126]])
    assert scale[0] == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite(bad):
    x = np.array([[1, 2, 3], [1, bad, 3], [0, 0, 0]], np.float32)
    for quantise in (reference.quantise_rows, lambda w: int8.quantise_rows(torch.from_numpy(w))):
        with pytest.raises(InputError, match="cannot be quantised: row 1 holds NaN or infinity"):
            quantise(x)
    codes, scale = reference.quantise_vector(x)
    assert np.isnan(scale).tolist() == [False, True, False]
    assert not codes[1].any()
    matrix = reference.quantise_rows(np.eye(3, dtype=np.float32))
    assert np.isnan(reference.linear(x, matrix)).all(axis=1).tolist() == [False, True, False]
    y = int8.linear(torch.from_numpy(x), int8.quantise_rows(torch.eye(3)))
    np.testing.assert_array_equal(y.numpy(), reference.linear(x, matrix))


def test_every_precision_has_the_same_codes():
    """And in float64 the product is exact: of two float32 scales, and a whole number below 2³²."""
    x, w = np.random.default_rng(1).standard_normal((2, 9, 300)).astype(np.float32)
    codes = [reference.quantise_vector(x.astype(kind)) for kind in (np.float32, np.float64, np.longdouble)]
    for each in codes[1:]:
        np.testing.assert_array_equal(each[0], codes[0][0])
        np.testing.assert_array_equal(each[1], codes[0][1])
    matrix = reference.quantise_rows(w)
    y = {kind: reference.linear(x.astype(kind), matrix) for kind in (np.float32, np.float64, np.longdouble)}
    assert all(value.dtype == kind for kind, value in y.items())
    assert (np.abs(y[np.float64] - y[np.longdouble]) <= 2.0**-53 * np.abs(y[np.longdouble])).all()
    assert (np.abs(y[np.float32] - y[np.float64]) <= 3.1 * 2.0**-24 * np.abs(y[np.float64])).all()


def test_sums_are_exact():
    for columns in (1, 1024, 4095, 133_144):
        ones = np.full((1, columns), 127, np.int8)
        (total,) = reference.int8_sums(ones, ones)[0]
        assert total == 127 * 127 * columns < 2**31


@pytest.mark.parametrize("name", ALL)
def test_the_fast_codes_are_the_references(name):
    want, got = reference.quantise_rows(ALL[name]), int8.quantise_rows(torch.from_numpy(ALL[name]))
    np.testing.assert_array_equal(got.codes, want.codes)
    np.testing.assert_array_equal(got.scale, want.scale)
    codes, scale = int8.quantise_vector(torch.from_numpy(ALL[name]))
    np.testing.assert_array_equal(codes, want.codes)
    np.testing.assert_array_equal(scale, want.scale)


# Rows on either side of every choice that the engine makes, and widths around its slices; the last two for threads.
SHAPES = [(t, k, r) for t in (1, 2, int8.FEW, int8.FEW + 1, 40) for k, r in ((1, 1), (3, 5), (192, 208), (1025, 70))]
SHAPES += [(1, 768, 3000), (3, 3072, 768), (70, 2049, 1030)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_fast_product_is_the_references(shape, threads):
    rows, columns, out = shape
    x, w = drawn(rows, rows, columns) / np.float32(1e25), drawn(out, out, columns) / np.float32(1e10)
    x[0], w[-1] = 0, 0
    w[0] = 1e-40
    matrix, fast = reference.quantise_rows(w), int8.quantise_rows(torch.from_numpy(w))
    sums = np.empty((rows, out), np.int32)
    set_threads(threads)
    y = int8.linear(torch.from_numpy(x), fast, sums)
    codes, _ = reference.quantise_vector(x)
    np.testing.assert_array_equal(sums, reference.int8_sums(codes, matrix.codes))
    np.testing.assert_array_equal(y.numpy(), reference.int8_linear(x, matrix))
    np.testing.assert_array_equal(int8.linear(torch.from_numpy(x), fast).numpy(), y.numpy())


def test_the_largest_sums_do_not_wrap():
    matrix = int8.Int8(np.full((3, 133_144), 127, np.int8), np.ones(3, np.float32))
    x = torch.ones(int8.FEW + 1, 133_144)
    for rows in (1, int8.FEW + 1):
        sums = np.empty((rows, 3), np.int32)
        int8.linear(x[:rows], matrix, sums)
        assert (sums == 127 * 127 * 133_144).all()


def test_projections_are_quantised_and_nothing_else():
    weights = MODEL.weights(np.float32)
    quantised = reference.quantise(weights)
    assert quantised.keys() == weights.keys()
    names = {op_of(name) for name, value in quantised.items() if isinstance(value, reference.Int8)}
    assert names == {
        "att.receptance.weight",
        "att.key.weight",
        "att.value.weight",
        "att.output.weight",
        "ffn.key.weight",
        "ffn.value.weight",
        "head.weight",
    }
    for name, value in quantised.items():
        if not isinstance(value, reference.Int8):
            assert value is weights[name]
    attention = reference.quantise({"moba.0.att.key.weight": np.eye(2), "moba.0.ln1.weight": np.ones(2)})
    assert [isinstance(value, reference.Int8) for value in attention.values()] == [True, False]


def run(engine, tokens, parts):
    """Taps of calls put end to end, and the state after them."""
    state, shown = engine.initial_state(), {}
    for part in parts:
        taps, tokens_, tokens = {}, tokens[:part], tokens[part:]
        taps["logits"] = engine.forward(tokens_, state, taps=taps)
        for name, value in taps.items():
            shown.setdefault(name, []).append(value)
    return {name: np.concatenate(values) for name, values in shown.items()}, engine.export_state(state)


@pytest.mark.parametrize("parts", [(40,), (1,) * 40, (17, 1, 2, 20)], ids=["prefill", "step", "split"])
def test_the_engine_is_the_quantised_reference(parts):
    """On the engine's own inputs of projections, which have the same codes; all else is from the tokens on.

    Left to itself, the reference has other codes from the first value on that is so near to a half that rounding
    decides, and other logits, by a tenth of what quantisation costs and more: see docs/int8.md.
    """
    engine, tokens = Engine(quantize=True), np.random.default_rng(0).integers(0, MODEL.config.vocab, 40).tolist()
    engine.load(MODEL)
    got, got_state = run(engine, tokens, parts)
    want = {}

    def tap(name, value):
        want[name] = value
        return got[name].astype(np.float64) if op_of(name) in QUANTISED else value

    weights = reference.quantise(MODEL.weights())
    _, state = reference.forward(weights, MODEL.config, tokens, reference.initial_state(MODEL.config), tap)
    for name, value in (want | state).items():
        worst = np.abs((got | got_state)[name] - value).max() / np.abs(value).max()
        assert worst < 200 * 2.0**-24, (name, worst)  # tests/test_optimized.py says why 200


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_take_the_same_codes(dtype):
    """Weights are quantised as the checkpoint has them, activations as they are in 16 bits."""
    engine, plain = Engine(dtype, quantize=True), Engine(quantize=True)
    for each in (engine, plain):
        each.load(MODEL)
    for block, p in engine._weights.blocks.items():
        for name, value in p.items():
            if isinstance(value, int8.Int8):
                np.testing.assert_array_equal(value.codes, plain._weights.blocks[block][name].codes)
    got, _ = run(engine, [1, 2, 3, 4], (4,))
    x = got["blocks.1.ffn.xk"]
    matrix = reference.quantise_rows(MODEL.weights()["blocks.1.ffn.key.weight"])
    want = np.maximum(reference.linear(x, matrix), 0) ** 2
    assert np.abs(got["blocks.1.ffn.k"] - want).max() <= 4 * 2.0**-8 * want.max()


def test_no_dequantised_copy_is_kept():
    engine = Engine(quantize=True)
    engine.load(MODEL)
    engine.forward([1, 2, 3], engine.initial_state())
    weights = engine._weights
    matrices = [value for p in weights.blocks.values() for value in p.values() if isinstance(value, int8.Int8)]
    assert len(matrices) == 6 * MODEL.config.layers
    assert isinstance(weights.head, int8.Int8)
    shapes = {tuple(matrix.codes.shape) for matrix in [*matrices, weights.head]}
    for p in weights.blocks.values():
        packed = p.pop("packed")
        for codes, _ in (*packed.projections, packed.output, packed.ffn_key, packed.ffn_value):
            assert any(codes is matrix.codes for matrix in matrices)
        for value in p.values():
            assert isinstance(value, int8.Int8) or tuple(value.shape) not in shapes | {shape[::-1] for shape in shapes}


def test_weights_that_are_not_finite_are_named():
    tensors = dict(MODEL.tensors)
    tensors["blocks.1.ffn.value.weight"] = tensors["blocks.1.ffn.value.weight"].clone()
    tensors["blocks.1.ffn.value.weight"][3, 2] = torch.inf
    bad = replace(MODEL, tensors=tensors)
    for use in (Engine(quantize=True).load, lambda checkpoint: reference.quantise(checkpoint.weights())):
        with pytest.raises(InputError, match=r"blocks\.1\.ffn\.value\.weight cannot be quantised: row 3 holds NaN"):
            use(bad)


def test_other_devices_are_refused():
    with pytest.raises(InputError, match="INT8 on 'meta'"):
        Engine(device="meta", quantize=True)


def test_threads_change_nothing():
    logits = []
    for threads in (1, 2, 64):
        engine = Engine(quantize=True)
        engine.load(MODEL)
        try:
            engine.set_threads(threads)
            logits.append(run(engine, [5, 6, 7], (1, 1, 1))[0]["logits"])
        finally:
            engine.set_threads(None)
    np.testing.assert_array_equal(logits[1], logits[0])
    np.testing.assert_array_equal(logits[2], logits[0])


@pytest.mark.parametrize("name", ["narrow", "adversarial", "hybrid"])
def test_a_compiled_step_shows_what_the_formulas_show_one_by_one(name):
    """From the same state: nearly the same one would have other codes."""
    shown, states = [], []
    before = None
    for compiled in (False, True):
        engine = Engine(quantize=True, compiled=compiled)
        engine.load(open_model(f"golden:{name}"))
        if before is None:
            state = engine.initial_state()
            engine.forward([3, 7, 9], state)
            before = engine.export_state(state)
        state = engine.import_state(before)
        shown.append({})
        engine.forward([11], state, taps=shown[-1])
        states.append(engine.export_state(state))
    assert list(shown[0]) == list(shown[1])
    for one_by_one, compiled in (shown, states):
        for tap, want in one_by_one.items():
            assert compiled[tap].shape == want.shape
            assert np.abs(compiled[tap] - want).max() <= 64 * 2.0**-24 * max(1, np.abs(want).max()), tap


def test_only_a_quantised_engine_pays_for_numba():
    program = "import sys, gander.optimized; assert 'numba' not in sys.modules, 'numba is imported'"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
