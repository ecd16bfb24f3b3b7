"""int8.*: a quantised engine does what the scheme says, to the last bit, and pays no more for it than the scheme costs.

The scheme and its reasons are in docs/int8.md. What is wrong is named, where it is known: `conformance/schemes.py`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ... import reference
from ...traces import op_of, path_name
from ..compare import Tally, compare
from ..context import Context, end_to_end
from ..engine import Array, Arrays
from ..ops import INT8_OPS
from ..oracle import Oracle, Run
from ..projections import projections
from ..registry import check
from ..schemes import SCHEMES, explained, products, right
from ..tolerances import bounds, cost_allowed, round_to


def in_int8(context: Context) -> bool:
    """Whether the run is quantised."""
    return context.mode.quantize


# --- codes -------------------------------------------------------------------------------------------------------

LARGEST = {"float16": 65504.0}  # what is beyond it is no input of such an engine


def constructed(dtype: str) -> dict[str, Array]:
    """Matrices that tell one scheme from another, exact in the engine's dtype."""
    random, codes = np.random.default_rng(0), np.arange(-126, 127)
    halves = np.concatenate([[127], codes[:-1] + 0.5]).astype(np.float32)
    near = np.concatenate([[127], np.nextafter(halves[1:], np.float32(0)), np.nextafter(halves[1:], np.float32(200))])
    scales = random.uniform(1, 2, (64, 1)) * 2.0 ** random.integers(-9, 3, (64, 1))
    ordinary = random.standard_normal((48, 300)) * 10 ** random.uniform(-2, 2, (48, 1)) * random.uniform(0.2, 3, 300)
    smallest, largest = 127 * 2.0**-126, LARGEST.get(dtype, 3e38)  # the smallest maximum whose row is not zero
    made = {
        "halves": np.stack([halves, 2 * halves, -halves / 4, halves[::-1]]),
        "next to halves": np.stack([near, -near, near / 2]),
        "halves of any scale": np.concatenate([127 * scales, (codes[:-1] + 0.5) * scales], axis=1),
        "ordinary": ordinary,
        "few": ordinary[:2, :7],
        "negative maxima": np.stack([[-128, 3, 127, 1.5], [-1, 0.99, 0.1, -1], [-127, 126.5, -126.5, 2.5]]),
        "one element": np.array([[5], [-3], [0], [-0.0], [1e-3], [7e-30], [1e-40]]),
        "zeros": np.stack([np.zeros(9), np.arange(9.0), np.full(9, -0.0), -np.arange(9.0)]),
        "nearly zeros": smallest * np.outer([1e-8, 1e-7, 1e-4, 0.5, 0.9, 1, 1.5, 3, 100], np.linspace(-1, 1, 9)),
        "largest numbers": largest * np.stack([np.linspace(-1, 0.5, 9), np.linspace(-0.9, 1, 9) / 2]),
    }
    return {name: round_to(dtype)(name, x.astype(np.float32)) for name, x in made.items()}


EDGES = frozenset({"one element", "zeros", "nearly zeros", "largest numbers"})  # a scheme is told by the others


@check(
    "int8.codes",
    "codes and scales are the scheme's to the last bit",
    blind="what becomes of the codes in a product, and whether the run uses them",
    needs=("int8",),
    when=in_int8,
)
def codes(context: Context, tally: Tally) -> str | None:
    """On matrices that tell one scheme from another, and on the model's own projections."""
    made = constructed(context.dtype)
    weights = context.checkpoint.weights(np.float32)
    quantised = [name for name, value in reference.quantise(weights).items() if isinstance(value, reference.Int8)]
    own = {name: round_to(context.dtype)(name, weights[name]) for name in quantised}
    for op, argument, cases in (("quantise_rows", "weight", made | own), ("quantise_vector", "x", made)):
        wrong: dict[str, str] = {}
        given: Arrays = {}
        for name, x in cases.items():
            context.progress(f"{op} {name}")
            got, want = context.engine.apply(op, {argument: x.copy()}), INT8_OPS[op]({argument: x})
            whole = _whole(tally, f"{op}: codes", got.get("codes"), want["codes"], name)
            if whole is not None:
                given[name] = whole
                if not np.array_equal(whole, want["codes"]):
                    wrong[name] = _first_wrong(x, whole, want)
            tally.equal(f"{op}: scale", _scale(got.get("scale"), want["scale"]), want["scale"], path=name)
        scheme = explained({name: (cases[name], given[name]) for name in given if name not in EDGES}) if wrong else ""
        for name, message in wrong.items():
            known = scheme and np.array_equal(SCHEMES[scheme](cases[name])[0], given[name])
            tally.fault(f"{op}: codes", message, path=name, hint=f"codes of {scheme}" if known else "")
    return f"{len(made)} constructed matrices, {len(own)} projections"


def _whole(tally: Tally, where: str, got: object, want: Array, path: str) -> Array | None:
    """The engine's codes or sums in float64, if they are what they should be; counted, or found wanting."""
    tally.expected += 1
    if got is None:
        tally.missing(where, "was not given by the engine", path=path)
        return None
    tally.compared += 1
    if isinstance(got, np.ndarray) and got.dtype.kind in "iuf" and got.shape == want.shape:
        return got.astype(np.float64)
    kind = f"{got.dtype} array of shape {got.shape}" if isinstance(got, np.ndarray) else type(got).__name__
    tally.fault(where, f"is a {kind}, but should be an array of integers of shape {want.shape}", path=path)
    return None


def _scale(got: object, want: Array) -> object:
    """Where all codes are zero the scale multiplies nothing: any finite one will do."""
    if isinstance(got, np.ndarray) and got.dtype.kind == "f" and got.shape == want.shape:
        return np.where((want == 0) & np.isfinite(got), want, got)
    return got


def _first_wrong(x: Array, got: Array, want: Arrays) -> str:
    differ = got != want["codes"]
    row, column = np.argwhere(differ)[0]
    scale = want["scale"][row]
    ratio = f"{x[row, column]:.9g} / {scale:.9g} = {x[row, column] / scale:.9g}" if scale else "its row counts as zero"
    return (
        f"{differ.sum()} of {got.size} differ, the first at row {row}, column {column}: "
        f"{got[row, column]:g}, but should be {want['codes'][row, column]} ({ratio})"
    )


def _unchanged(y: Array) -> Array:
    return y


def _relu2(y: Array) -> Array:
    return np.maximum(y, 0) ** 2


# --- sums and products -------------------------------------------------------------------------------------------


@check(
    "int8.sums",
    "sums of codes are exact, products within float32's rounding",
    blind="whether the run goes through the same code as `apply`",
    needs=("int8",),
    when=in_int8,
)
def sums(context: Context, tally: Tally) -> str | None:
    """Among them sums that neither 16 bits nor float32 hold, and a token of NaN among others."""
    cases = _factors(context.dtype)
    for name, (x, weight) in cases.items():
        inputs = {"x": x, "weight": weight}
        got = context.engine.apply("int8_linear", {key: value.copy() for key, value in inputs.items()})
        op = INT8_OPS["int8_linear"]
        want, plain = op({**inputs, "x": x.astype(np.float64)}), op(inputs)
        whole = _whole(tally, "int8_linear: sums", got.get("sums"), want["sums"], name)
        if whole is not None and not np.array_equal(whole, want["sums"]):
            t, r = np.argwhere(whole != want["sums"])[0]
            message = f"{(whole != want['sums']).sum()} of {whole.size} differ, the first at row {r}: "
            message += f"{whole[t, r]:g}, but should be {want['sums'][t, r]}"
            tally.fault("int8_linear: sums", message, path=name, token=int(t))
        bound = bounds(want["y"], [plain["y"]], context.dtype)
        hint = _product(x, weight, got.get("y"), bound)
        tally.tensor("int8_linear: y", got.get("y"), want["y"], bound, path=name, hint=hint)
    x, weight = cases["ordinary"][0].copy(), cases["ordinary"][1]
    x[1, 3] = np.nan
    y = context.engine.apply("int8_linear", {"x": x, "weight": weight.copy()}).get("y")
    tally.expected += 1
    tally.compared += 1
    if not isinstance(y, np.ndarray) or not np.array_equal(np.isnan(y).all(axis=-1), np.arange(len(x)) == 1):
        tally.fault("int8_linear: y", "should be NaN for the token that holds one, and for no other", path="a NaN")
    return f"{len(cases) + 1} products"


def _factors(dtype: str) -> dict[str, tuple[Array, Array]]:
    """x (T, in) and weight (out, in), exact in the engine's dtype, their product within it."""
    random = np.random.default_rng(0)

    def normal(rows: int, columns: int) -> Array:
        x = random.standard_normal((rows, columns)) * 10 ** random.uniform(-2, 2, (rows, 1))
        return round_to(dtype)("", x.astype(np.float32))

    signs = np.where(random.random((3, 4095)) < 0.5, -1, 1).astype(np.float32)
    ones = np.ones((2, 4095), np.float32)  # 4095 · 127² is odd, and beyond 2²⁴
    halves = constructed(dtype)["halves"]
    cases = {
        "ordinary": (normal(5, 192), normal(64, 192)),
        "halves": (halves, halves),
        "a token": (normal(1, 65), normal(33, 65)),
        "many tokens": (normal(33, 208), normal(70, 208)),
        "wide": (normal(17, 3072), normal(10, 3072)),
        "the largest sums": (np.concatenate([ones, -ones]), np.concatenate([ones, signs])),
        "zeros": (np.concatenate([normal(1, 64), np.zeros((2, 64), np.float32)]), normal(7, 64) * np.eye(7, 1)),
    }
    small = np.float32(2.0**-10 if dtype == "float16" else 1)
    return {name: (round_to(dtype)("", x * small), weight.astype(np.float32)) for name, (x, weight) in cases.items()}


def _product(x: Array, weight: Array, got: object, bound: Array, after: Callable[[Array], Array] = _unchanged) -> str:
    """Whose product a wrong one is, if that is known. `after` is what is done to it before it is shown."""
    if got is None:
        return ""
    return next(
        (f"product of {name}" if name else "" for name, y in products(x, weight) if compare(got, after(y), bound).ok),
        "",
    )


# --- the model ---------------------------------------------------------------------------------------------------


@check(
    "int8.projections",
    "every projection is quantised as it should be, on the engine's own inputs; and nothing else is",
    blind="what an engine does when nobody asks for taps",
    needs=("taps",),
    when=in_int8,
)
def every_projection(context: Context, tally: Tally) -> str | None:
    """In one call, and step by step. The same input has the same codes: what is left is float32's rounding."""
    weights = context.checkpoint.weights(np.float32)
    matrices = list(projections(context.config.blocks))
    for parts in context.paths[:2]:
        path = path_name(parts)
        context.progress(path)
        got = context.usable(context.engine_run(context.layer_tokens, parts), len(context.layer_tokens))
        for name, before, behind in matrices:
            if before not in got or behind not in got:
                tally.expected += 1
                tally.missing(behind if before in got else before, "was not given in its shape", path=path)
                continue
            _projection(context, tally, got[before], weights[name], behind, got[behind], path)
        if len(parts) == 1:
            for name, message in _others(context, weights, got):
                tally.fault(name, message, path=path)
    return f"{len(matrices)} projections"


def _projection(context: Context, tally: Tally, x: Array, weight: Array, behind: str, got: Array, path: str) -> None:
    x, got = x.reshape(len(x), -1), got.reshape(len(got), -1)
    after = _relu2 if behind.endswith("ffn.k") else _unchanged
    matrix = reference.quantise_rows(weight)
    want = after(reference.int8_linear(x.astype(np.float64), matrix))
    bound = bounds(want, [after(reference.int8_linear(x.astype(np.float32), matrix))], context.dtype)
    if not tally.tensor(behind, got, want, bound, path=path):
        tally.findings[-1] = replace(tally.findings[-1], hint=_product(x, weight, got, bound, after))


# Matrices that stay as they are, and the taps that would tell if they did not.
_LEFT = re.compile(r"emb\.weight|blocks\.\d+\.att\.[wavg][12]")
_TELLING = frozenset({"emb", "att.w", "att.a", "att.g", "att.v_mix"})


def _others(context: Context, weights: Mapping[str, Array], got: Arrays) -> Iterator[tuple[str, str]]:
    """The taps that are nearer to what quantised matrices give than to what the matrices themselves do."""
    kinds: tuple[Callable[[Array], Array], ...] = (
        lambda matrix: matrix,
        lambda matrix: right(matrix)[1],
        lambda matrix: right(matrix.T)[1].T,
    )
    plain, by_row, by_column = (
        _isolated(context, {name: kind(w) if _LEFT.fullmatch(name) else w for name, w in weights.items()}, got)
        for kind in kinds
    )
    for name in plain:
        if op_of(name) in _TELLING and name in got:
            error, *others = (np.mean((run[name] - got[name]) ** 2) for run in (plain, by_row, by_column))
            if min(others) < error:
                yield name, "is made with quantised matrices: the embedding and LoRA pairs are to be left as they are"


def _isolated(context: Context, weights: Mapping[str, Array], got: Arrays) -> Arrays:
    """What each formula makes of the engine's own inputs."""
    shown: Arrays = {}

    def tap(name: str, value: Array) -> Array:
        shown[name] = value
        return got.get(name, value)

    reference.forward(weights, context.config, context.layer_tokens, context.zero, tap, context.mode.attention)
    return shown


# --- the cost ----------------------------------------------------------------------------------------------------


@check(
    "int8.cost",
    "what quantisation costs against float64 is what the scheme costs, and no more",
    blind="a fault that costs less than quantisation may",
    when=in_int8,
)
def cost(context: Context, tally: Tally) -> str | None:
    """KL of the engine's next-token distributions from those of the model that is not quantised, over forced tokens."""
    tokens, parts = context.tokens, (len(context.tokens),)
    want, costs = context.shared(("cost", tokens), partial(_own_costs, context, tokens, parts))
    # Without taps, as it is used: the other checks of a quantised engine ask for them.
    shown = end_to_end(context.engine, tokens, context.engine.initial_state(), parts, taps=False)
    got = _log_softmax(shown["logits"])
    paid, allowed = _divergence(want, got).mean(), cost_allowed(costs)
    tally.expected += 1
    tally.compared += 1
    tally.worst = max(tally.worst, float(paid / allowed))
    if not paid <= allowed:
        least = min(float(each.mean()) for each in costs)
        tally.fault("logits", f"mean KL {paid:.2e}, the scheme's own is {least:.2e}, allowed is {allowed:.2e}")
    agree = (got.argmax(-1) == want.argmax(-1)).mean()
    return (
        f"{len(tokens)} forced tokens: KL {paid:.2e}, the scheme's own {costs[0].mean():.2e}; top-1 {agree:.1%} agree; "
        f"perplexity {_perplexity(got, tokens):.6g}, was {_perplexity(want, tokens):.6g}"
    )


def _own_costs(context: Context, tokens: tuple[int, ...], parts: tuple[int, ...]) -> tuple[Array, list[Array]]:
    """Log probabilities of the model that is not quantised, and what the scheme itself costs, token by token."""
    unquantised = Oracle(context.checkpoint, context.dtype, replace(context.mode, quantize=False))
    want = _log_softmax(unquantised.value(tokens, context.zero, parts).logits)
    return want, [_divergence(want, _log_softmax(run.logits)) for run in _runs(context, tokens, parts)]


def _runs(context: Context, tokens: tuple[int, ...], parts: tuple[int, ...]) -> list[Run]:
    """The quantised reference; for a 16-bit engine in its precision, which has a cost of its own."""
    if context.dtype in ("float32", "float64"):
        return [context.oracle.value(tokens, context.zero, parts)]
    return list(context.oracle.yardsticks(tokens, context.zero, parts))


def _log_softmax(logits: Array) -> Array:
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def _divergence(want: Array, got: Array) -> Array:
    """KL(want ‖ got) of each token, of log probabilities (T, V) → (T)."""
    return (np.exp(want) * (want - got)).sum(axis=-1)


def _perplexity(log_probabilities: Array, tokens: Sequence[int]) -> float:
    """e to the mean surprise at each next token."""
    rows = np.arange(len(tokens) - 1)
    return float(np.exp(-log_probabilities[rows, list(tokens[1:])].mean()))
