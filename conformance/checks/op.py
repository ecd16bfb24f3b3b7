"""op.*: one property test a formula, on inputs that Hypothesis draws and shrinks.

Each example is compared with the reference in float64, and obeys the laws of its formula: causality, linearity,
invariance. Laws scale by powers of two, which rounding cannot see, so they hold to the last bit or within the bound.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from ..compare import Tally
from ..context import Context
from ..engine import Array, Arrays
from ..guard import EngineFault
from ..numbers import Formats, bounded
from ..ops import OPS, Op
from ..registry import check
from ..results import Finding
from ..tolerances import error_bounds, round_to

EXAMPLES = 30


@dataclass(frozen=True)
class Sizes:
    """The sizes of one example, and the seed of its values."""

    T: int
    H: int
    N: int
    rank: int
    seed: int
    regime: str

    def __str__(self) -> str:
        return f"T={self.T} H={self.H} N={self.N} rank={self.rank} seed={self.seed} {self.regime}"


# Unit shapes first: Hypothesis shrinks toward them.
SIZES: dict[str, st.SearchStrategy[Any]] = {
    "T": st.sampled_from([1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 130]) | st.integers(1, 130),
    "H": st.integers(1, 5),
    "N": st.sampled_from([16, 32, 64, 128]) | st.integers(16, 128),
    "rank": st.integers(1, 40),
    "seed": st.integers(0, 2**16),
}

Draw = Callable[[Sizes, np.random.Generator], Arrays]
Law = Callable[["Case"], Iterator[tuple[str, Array, Array, Array | float]]]


@dataclass(frozen=True)
class Case:
    """One example, answered: what a law may look at."""

    ask: Callable[[Arrays], Arrays]  # the engine
    inputs: Arrays
    got: Arrays
    bound: Arrays  # of each output

    def twice(self, name: str) -> Array:
        """The bound on the difference of two answers, each within its own."""
        return 2 * self.bound[name]


@dataclass(frozen=True)
class Property:
    """How to draw inputs of an op in each regime, and the laws that its answers obey."""

    op: Op
    draw: Draw
    regimes: tuple[str, ...]
    laws: tuple[Law, ...] = ()


# --- inputs ------------------------------------------------------------------------------------------------------


def _normal(random: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    return random.standard_normal(shape) * scale


def _rows(s: Sizes, random: np.random.Generator, width: int) -> Array:
    """(T, width) rows of the regime: ordinary, tiny, nearly constant, or far from zero."""
    x = _normal(random, s.T, width)
    match s.regime:
        case "tiny":  # variance near the epsilon
            x *= 10 ** random.uniform(-4, -2, (s.T, 1))
        case "flat":  # nearly constant: what is left after the mean is what the mean's rounding leaves
            x[::2] = x[::2, :1] + 1e-4 * x[::2]
        case "offset":
            x += _normal(random, s.T, 1, scale=8)
    return x


def _low_rank(s: Sizes, random: np.random.Generator, prefix: str) -> Arrays:
    """x, bias and pair of a LoRA; "saturated" drives the pre-activations beyond ±88."""
    width = s.H * s.N
    wide = 40.0 if s.regime == "saturated" else 1.0
    return {
        f"x{prefix}": _normal(random, s.T, width),
        f"{prefix}0": _normal(random, width, scale=3 * wide),
        f"{prefix}1": _normal(random, width, s.rank, scale=wide / np.sqrt(width)),
        f"{prefix}2": _normal(random, s.rank, width, scale=3 * wide / np.sqrt(s.rank)),
    }


def _layer_norm(s: Sizes, random: np.random.Generator) -> Arrays:
    width = s.H * s.N
    return {"x": _rows(s, random, width), "weight": _normal(random, width), "bias": _normal(random, width)}


def _embedding(s: Sizes, random: np.random.Generator) -> Arrays:
    width, vocab = s.H * s.N, s.rank + 1
    tokens = random.integers(0, vocab, s.T)
    tokens[-1] = vocab - 1
    table = _rows(replace(s, T=vocab), random, width)
    return {"tokens": tokens, "emb": table, "weight": _normal(random, width), "bias": _normal(random, width)}


def _token_shift(s: Sizes, random: np.random.Generator) -> Arrays:
    width = s.H * s.N
    return {"x": _normal(random, s.T, width), "previous": _normal(random, width), "mix": random.uniform(0, 1, width)}


def _lora(s: Sizes, random: np.random.Generator) -> Arrays:
    drawn = _low_rank(s, random, "_")
    return {"x": drawn["x_"], "down": drawn["_1"], "up": drawn["_2"]}


def _gate(s: Sizes, random: np.random.Generator) -> Arrays:
    drawn = _low_rank(s, random, "g")
    if s.regime == "saturated":  # the sigmoid stands between the pair: it is the hidden layer that must go beyond ±88
        drawn["g1"] *= 2
    return {"xg": drawn["xg"], "g1": drawn["g1"], "g2": drawn["g2"]}


def _l2norm(s: Sizes, random: np.random.Generator) -> Arrays:
    k = _normal(random, s.T, s.H, s.N)
    match s.regime:
        case "tiny":  # norms from 1e-14 (below the clamp) to 1e-2
            k *= 10 ** random.uniform(-15, -3, (s.T, s.H, 1))
        case "zero":
            k[::2] = 0
    return {"k": k, "k_k": _normal(random, s.H, s.N)}


def _k_update(s: Sizes, random: np.random.Generator) -> Arrays:
    shape = (s.T, s.H, s.N)
    return {"k": _normal(random, *shape), "a": random.uniform(0, 1, shape), "k_a": _normal(random, s.H, s.N)}


def _v_first(s: Sizes, random: np.random.Generator) -> Arrays:
    drawn = _low_rank(s, random, "v")
    return {"v": _normal(random, s.T, s.H * s.N), "first": _normal(random, s.T, s.H * s.N), **drawn}


def _wkv7(s: Sizes, random: np.random.Generator) -> Arrays:
    if s.regime == "long":  # so long that the fastest decay leaves nothing that float32 can hold
        s = replace(s, T=300, N=min(s.N, 32), H=1)
    shape = (s.T, s.H, s.N)
    slowest, fastest = np.exp(-np.exp(-0.5) * 1e-4), np.exp(-np.exp(-0.5))  # 0.99994 and 0.54524, decay's own range
    low = slowest if s.regime == "slow" else fastest
    high = fastest if s.regime in ("fast", "long") else 1.0
    kk = _normal(random, *shape)
    kk /= np.linalg.norm(kk, axis=-1, keepdims=True)
    if s.regime == "zero":
        kk[:, ::2] = 0
    if s.regime == "repeated":  # the same removal key again and again: the hardest case for a chunked solve
        kk[:] = kk[:1]
    return {
        "r": _normal(random, *shape),
        "w": random.uniform(low, high, shape),
        "k": _normal(random, *shape) / np.sqrt(s.N),
        "v": _normal(random, *shape),
        "kk": kk,
        "a": random.uniform(0, 1, shape),
        "state": _normal(random, s.H, s.N, s.N),
    }


def _group_norm(s: Sizes, random: np.random.Generator) -> Arrays:
    width = s.H * s.N
    y = _rows(replace(s, T=s.T * s.H), random, s.N).reshape(s.T, s.H, s.N)
    return {"y": y, "weight": _normal(random, width), "bias": _normal(random, width)}


def _bonus(s: Sizes, random: np.random.Generator) -> Arrays:
    shape = (s.T, s.H, s.N)
    return {name: _normal(random, *shape) for name in ("r", "k", "v")} | {"r_k": _normal(random, s.H, s.N)}


def _gate_correction(s: Sizes, random: np.random.Generator) -> Arrays:
    return {name: _normal(random, s.T, s.H * s.N) for name in ("norm", "bonus", "g")}


def _channel_mix(s: Sizes, random: np.random.Generator) -> Arrays:
    width, ffn = s.H * s.N, s.rank + 7
    scale = 8.0 if s.regime == "large" else 1.0  # doubled and squared, still a float16
    return {
        "xk": _normal(random, s.T, width, scale=scale),
        "key": _normal(random, ffn, width) / np.sqrt(width),
        "value": _normal(random, width, ffn) / np.sqrt(ffn),
    }


def _head(s: Sizes, random: np.random.Generator) -> Arrays:
    width = s.H * s.N
    return _layer_norm(s, random) | {"head": _normal(random, s.rank + 2, width) / np.sqrt(width)}


# --- laws --------------------------------------------------------------------------------------------------------


def _causal(*names: str) -> Law:
    """What comes later changes nothing earlier: the last token of `names` is replaced, the other rows stay."""

    def law(case: Case) -> Iterator[tuple[str, Array, Array, Array | float]]:
        if len(case.inputs[names[0]]) > 1:
            changed = {name: np.concatenate([case.inputs[name][:-1], case.inputs[name][:1]]) for name in names}
            output = next(iter(case.bound))  # the first of the formula, in whatever order the engine gives them
            again = case.ask({**case.inputs, **changed})[output]
            yield "causality", again[:-1], case.got[output][:-1], case.twice(output)[:-1]

    return law


def _scales(power: int, *names: str, output: str) -> Law:
    """Doubling `names` multiplies the output by 2^power, exactly."""

    def law(case: Case) -> Iterator[tuple[str, Array, Array, Array | float]]:
        again = case.ask({**case.inputs, **{name: 2 * case.inputs[name] for name in names}})[output]
        title = "invariance" if power == 0 else "linearity" if power == 1 else f"degree {power}"
        yield title, again, 2.0**power * case.got[output], 2.0**power * case.twice(output)

    return law


def _heads_apart(case: Case) -> Iterator[tuple[str, Array, Array, Array | float]]:
    """Each head is normalised on its own: doubling the first head's values leaves the others as they were."""
    y = case.inputs["y"].copy()
    heads, size = y.shape[1:]
    if heads > 1:
        y[:, 0] *= 2
        again = case.ask({**case.inputs, "y": y})["o"]
        yield "heads apart", again[:, size:], case.got["o"][:, size:], case.twice("o")


def _between(low: float, high: float, output: str) -> Law:
    def law(case: Case) -> Iterator[tuple[str, Array, Array, Array | float]]:
        got = case.got[output]
        slack = case.bound[output].max()
        yield "range", got, np.clip(got.astype(np.float64), low, high), slack

    return law


def _first_is_fixed(case: Case) -> Iterator[tuple[str, Array, Array, Array | float]]:
    """A value that is v_first already stays what it is, whatever the mix."""
    again = case.ask({**case.inputs, "first": case.inputs["v"]})["v"]
    yield "fixed point", again, case.inputs["v"].astype(np.float64), case.bound["v"]


def _composes(case: Case) -> Iterator[tuple[str, Array, Array, Array | float]]:
    """Two calls with the state handed on are one call."""
    half = len(case.inputs["r"]) // 2
    if half:
        rows = {name: value for name, value in case.inputs.items() if name != "state"}
        state, parts = case.inputs["state"], []
        for piece in (slice(0, half), slice(half, None)):
            answer = case.ask({**{name: value[piece] for name, value in rows.items()}, "state": state})
            state = answer["state"]
            parts.append(answer["y"])
        yield "composition", np.concatenate(parts), case.got["y"], case.twice("y")
        yield "composition: state", state, case.got["state"], case.twice("state")


PROPERTIES = {
    property.op.name: property
    for property in (
        Property(OPS["layer_norm"], _layer_norm, ("ordinary", "tiny", "flat", "offset")),
        Property(OPS["embedding"], _embedding, ("ordinary", "tiny", "offset")),
        Property(OPS["token_shift"], _token_shift, ("ordinary",),
                 (_causal("x"), _scales(1, "x", "previous", output="y"))),
        Property(OPS["lora"], _lora, ("ordinary", "saturated"), (_scales(1, "x", output="y"), _causal("x"))),
        Property(OPS["decay"], lambda s, r: _low_rank(s, r, "w"), ("ordinary", "saturated"),
                 (_between(np.exp(-np.exp(-0.5)), 1.0, "w"), _causal("xw"))),
        Property(OPS["in_context_rate"], lambda s, r: _low_rank(s, r, "a"), ("ordinary", "saturated"),
                 (_between(0.0, 1.0, "a"), _causal("xa"))),
        Property(OPS["gate"], _gate, ("ordinary", "saturated"), (_scales(1, "g2", output="g"), _causal("xg"))),
        Property(OPS["l2norm"], _l2norm, ("ordinary", "tiny", "zero"), (_between(-1.0, 1.0, "kk"),)),
        Property(OPS["k_update"], _k_update, ("ordinary",), (_scales(1, "k", output="k"),)),
        Property(OPS["v_first"], _v_first, ("ordinary", "saturated"), (_first_is_fixed, _causal("v", "first", "xv"))),
        Property(OPS["wkv7"], _wkv7, ("ordinary", "fast", "slow", "zero", "repeated", "long"),
                 (_causal("r", "w", "k", "v", "kk", "a"), _scales(1, "v", "state", output="y"), _composes)),
        Property(OPS["group_norm"], _group_norm, ("ordinary", "tiny", "flat", "offset"), (_heads_apart,)),
        Property(OPS["bonus"], _bonus, ("ordinary",), (_scales(1, "v", output="b"),)),
        Property(OPS["gate_correction"], _gate_correction, ("ordinary",), (_scales(1, "g", output="o"),)),
        Property(OPS["channel_mix"], _channel_mix, ("ordinary", "large"),
                 (_scales(2, "xk", output="y"), _causal("xk"))),
        Property(OPS["head"], _head, ("ordinary", "tiny", "offset"), (_scales(1, "head", output="logits"),)),
    )
}  # fmt: skip


# --- the test ----------------------------------------------------------------------------------------------------


class _Disagreement(Exception):
    """An example that fails; Hypothesis makes it smaller and raises the smallest."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding


def _example(property: Property, sizes: Sizes, context: Context) -> Tally:
    """Compare one example, and its laws."""
    op, rounded = property.op, round_to(context.dtype)
    drawn = property.draw(sizes, np.random.default_rng(sizes.seed))
    # What the engine is given must be exact in its dtype: only its arithmetic is in question.
    inputs = {
        name: value if value.dtype.kind == "i" else rounded(name, value.astype(np.float32))
        for name, value in drawn.items()
    }

    def ask(asked: Arrays) -> Arrays:
        return context.engine.apply(op.name, {name: value.copy() for name, value in asked.items()})

    got, held, formats = ask(inputs), bounded(context.dtype), Formats(context.dtype)
    answer: Any = op({name: held(name, value) for name, value in inputs.items()})
    value = {name: want.value for name, want in answer.items()}
    bound = {name: error_bounds(want, formats.of(name)).max(axis=-1) for name, want in answer.items()}
    tally = Tally()
    where = f"op.{op.name}"
    for name, want in value.items():
        tally.tensor(f"{where}: {name}", got.get(name), want, bound[name], path=str(sizes), token_axis=name != "state")
    if not tally.findings:
        case = Case(ask, inputs, got, bound)
        for law in property.laws:
            for title, left, right, allowed in law(case):
                tally.tensor(f"{where}: {title}", left, right, allowed, path=str(sizes))
    return tally


def _check(property: Property) -> Callable[[Context, Tally], str | None]:
    def run(context: Context, tally: Tally) -> str | None:
        wrong: list[Finding] = []
        faults: list[EngineFault] = []  # the first ends the check: a program that dies is not made to die smaller

        @hypothesis.settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            derandomize=False,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
            report_multiple_bugs=False,
            verbosity=hypothesis.Verbosity.quiet,
        )
        @hypothesis.seed(context.seed)
        @hypothesis.given(st.builds(Sizes, **SIZES, regime=st.sampled_from(property.regimes)))
        def holds(sizes: Sizes) -> None:
            if faults and not wrong:
                return
            try:
                example = _example(property, sizes, context)
            except EngineFault as fault:
                faults.append(fault)
                return
            if example.findings:
                wrong.append(example.findings[0])
                raise _Disagreement(example.findings[0])
            tally.expected += example.expected
            tally.compared += example.compared
            tally.worst = max(tally.worst, example.worst)

        try:
            holds()
        except _Disagreement as smallest:
            tally.expected += 1
            tally.compared += not smallest.finding.missing
            tally.findings.append(smallest.finding)
        except hypothesis.errors.Flaky:
            tally.findings.append(replace(wrong[0], hint="not always: asked again, the engine answered otherwise"))
        for fault in faults:
            raise EngineFault(f"apply({property.op.name!r})", fault.message) from fault
        return f"{EXAMPLES} examples" + (f", laws: {len(property.laws)}" if property.laws else "")

    return run


# Of each of these.
BLIND = "whether the engine's own run calls the formula, where it should and with what: `apply` may be code of its own"

for _name, _property in PROPERTIES.items():
    _summary = (_property.op.function.__doc__ or "").splitlines()[0].rstrip(".")
    check(f"op.{_name}", _summary, blind=BLIND, needs=("apply",))(_check(_property))
