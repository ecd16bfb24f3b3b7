"""layer.*: every tap of every layer, on four ways to cut the tokens into calls.

Isolated, the reference's formula gets the engine's own inputs: an error shows where it is made. Cumulative, both start
from the tokens: an error shows everything it leads to.
"""

from ...traces import taps
from ..compare import Tally
from ..context import Context, path_name
from ..registry import check
from ..tolerances import bounds


@check("layer.isolated", "every tap against the reference's formula on the engine's own inputs", needs=("taps",))
def isolated(context: Context, tally: Tally) -> str | None:
    """The guilty formula, by name."""
    dims = {**context.config.dims, "T": len(context.layer_tokens)}
    shapes = {tap.name: tap.shape(dims) for tap in taps(context.config.layers)}
    for parts in context.paths:
        context.progress(path_name(parts))
        got = context.engine_run(context.layer_tokens, parts)
        usable = {name: value for name, value in got.items() if getattr(value, "shape", None) == shapes.get(name)}
        value, yardsticks = context.oracle.isolated(context.layer_tokens, context.zero, usable)
        bound = {
            name: bounds(want, [run.taps[name] for run in yardsticks], context.dtype)
            for name, want in value.taps.items()
        }
        tally.tensors(got, value.taps, bound, path=path_name(parts), hint="isolated: its inputs agree")
    return _paths(context)


@check("layer.cumulative", "every tap against the reference from the tokens on", needs=("taps",))
def cumulative(context: Context, tally: Tally) -> str | None:
    """The first finding is where the runs part; those behind it may only have inherited the error."""
    value, bound, _ = context.value(context.layer_tokens)
    for parts in context.paths:
        context.progress(path_name(parts))
        got = context.engine_run(context.layer_tokens, parts)
        tally.tensors(got, value.taps, bound, path=path_name(parts), hint="cumulative: may be inherited")
    return _paths(context)


def _paths(context: Context) -> str:
    return f"{len(context.layer_tokens)} tokens: " + ", ".join(path_name(parts) for parts in context.paths)
