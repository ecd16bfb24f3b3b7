"""golden.*: the engine against stored traces. The slow reference is not run, but as yardstick of a 16-bit engine."""

from collections.abc import Callable, Iterator

import numpy as np

from ...errors import InputError
from ...golden import GoldenTrace, start_of
from ...traces import Trace, parse_path
from ..compare import Tally
from ..context import Context, Expected, begin, end_to_end
from ..engine import Array, Arrays
from ..registry import check
from ..tolerances import TIE, TRACE, trace_bounds


def _holding(holds: str) -> Callable[[Context], bool]:
    """Whether the model has a stored trace that holds taps, logits or state."""
    return lambda context: context.golden is not None and any(holds in trace.holds for trace in context.golden.traces)


OTHERS = "other texts, and models of which nothing is stored"


@check(
    "golden.taps",
    "every tap of the stored traces",
    blind=OTHERS,
    needs=("taps",),
    when=_holding("taps"),
)
def taps(context: Context, tally: Tally) -> str | None:
    """From random start states, where the engine can import one."""
    for entry, trace in _traces(context, tally, "taps"):
        names = [name for name in trace.tensors if name != "logits" and ".state." not in name]
        _compare(context, tally, entry, trace, names)
    return None


@check(
    "golden.logits",
    "the logits of the stored traces",
    blind=OTHERS,
    when=_holding("logits"),
)
def logits(context: Context, tally: Tally) -> str | None:
    """Logits are causal: one long trace stands for every shorter text."""
    for entry, trace in _traces(context, tally, "logits"):
        _compare(context, tally, entry, trace, ["logits"])
    return None


@check(
    "golden.state",
    "the final state of the stored traces",
    blind="an error that later tokens have decayed away; models of which nothing is stored",
    needs=("state",),
    when=_holding("state"),
)
def state(context: Context, tally: Tally) -> str | None:
    """After the last token."""
    for entry, trace in _traces(context, tally, "state"):
        _compare(context, tally, entry, trace, [name for name in trace.tensors if ".state." in name])
    return None


@check(
    "golden.tokens",
    "greedy choice after each token; a tie nearer than the bound is no failure",
    blind="whatever leaves the likeliest token the likeliest",
    when=_holding("logits"),
)
def tokens(context: Context, tally: Tally) -> str | None:
    """Teacher-forced: every choice is made after the stored tokens, so one near tie does not end the comparison."""
    chosen = ties = 0
    for entry, trace in _traces(context, tally, "logits"):
        want = trace.tensors["logits"]
        got = _run(context, entry, trace)["logits"]
        second, first = np.sort(want, axis=-1)[:, -2:].T
        bound = TIE * _bounds(context, entry, trace, "logits")
        near = first - second <= 2 * bound  # either of the two may be off
        wrong = ~near & ~(got.argmax(-1) == want.argmax(-1))
        wrong |= ~np.isfinite(got).all(-1)  # argmax of NaN is no choice
        tally.expected += 1
        tally.compared += 1
        chosen, ties = chosen + len(want), ties + int(near.sum())
        if wrong.any():
            t = int(np.argmax(wrong))
            gap = f"the reference prefers it by {first[t] - second[t]:.1e}"
            message = f"chooses {got[t].argmax()}, but should choose {want[t].argmax()} ({gap})"
            tally.fault("token", f"{message}; {wrong.sum()} of {len(want)} choices differ", path=entry.file, token=t)
        elif near.all() and context.dtype in TRACE:  # 16 bits may be too few to tell any two apart
            tally.missing("token", "every choice is a near tie: nothing was compared", path=entry.file)
    return f"{chosen} choices, {ties} near ties"


def _traces(context: Context, tally: Tally, holds: str) -> Iterator[tuple[GoldenTrace, Trace]]:
    """The model's stored traces that hold taps, logits or state, known to be the files that the manifest means."""
    assert context.golden is not None
    for entry in context.golden.traces:
        if holds not in entry.holds:
            continue
        if entry.start != "zero" and "state" not in context.capabilities:
            tally.missing(entry.file, f"starts from {entry.start}, and the engine cannot import a state")
            continue
        try:
            trace = context.stored(entry)
        except InputError as error:
            tally.missing(entry.file, f"cannot be used: {error.problem}")
        else:
            yield entry, trace


def _run(context: Context, entry: GoldenTrace, trace: Trace) -> Arrays:
    """What the engine shows on a trace's tokens from its start, its final state included."""

    def run() -> Arrays:
        state = begin(context.engine, context.config, entry.start)
        with_taps = "taps" in entry.holds and "taps" in context.capabilities
        parts = parse_path(trace.path, len(trace.tokens))
        shown = end_to_end(context.engine, trace.tokens, state, parts, taps=with_taps)
        return shown | context.export(state)

    return context.once(("golden", entry.file), run)


def _bounds(context: Context, entry: GoldenTrace, trace: Trace, name: str) -> Array:
    if context.dtype in TRACE:
        return trace_bounds(trace.tensors[name], TRACE[context.dtype], token_axis=".state." not in name)

    def yardstick() -> Expected:
        parts = parse_path(trace.path, len(trace.tokens))
        return context.plain(trace.tokens, start_of(context.config, entry.start), parts)

    _, taps, state = context.once(("bounds", entry.file), yardstick)
    return taps[name] if name in taps else state[name]


def _compare(context: Context, tally: Tally, entry: GoldenTrace, trace: Trace, names: list[str]) -> None:
    got = _run(context, entry, trace)
    for name in names:
        bound = _bounds(context, entry, trace, name)
        want = trace.tensors[name]
        tally.tensor(name, got.get(name), want, bound, path=entry.file, token_axis=".state." not in name)
