"""layer.*: every tap of every layer, on four ways to cut the tokens into calls.

Isolated, the reference's formula gets the engine's own inputs: an error shows where it is made. Cumulative, both start
from the tokens: an error shows everything it leads to.
"""

from dataclasses import replace
from functools import partial

from ...traces import path_name
from ..compare import Tally
from ..context import Context
from ..finer import finer_weights
from ..guard import EngineFault, Guard
from ..registry import check
from ..whole import compare_run


@check(
    "layer.isolated",
    "every tap against the reference's formula on the engine's own inputs",
    blind="what an engine does when nobody asks for taps; an error that is below the bound wherever it is made",
    needs=("taps",),
)
def isolated(context: Context, tally: Tally) -> str | None:
    """The guilty formula, by name."""
    tally.rows = {}
    for parts in context.paths:
        context.progress(path_name(parts))
        got = context.engine_run(context.layer_tokens, parts)
        usable = context.usable(got, len(context.layer_tokens))
        value, bound = context.isolated(context.layer_tokens, parts, usable)
        tally.tensors(got, value.taps, bound, path=path_name(parts), hint="isolated: its inputs agree")
    return _paths(context)


@check(
    "layer.cumulative",
    "every tap against the reference from the tokens on",
    blind="a small error deep in the model, where honest rounding has grown as large",
    needs=("taps",),
)
def cumulative(context: Context, tally: Tally) -> str | None:
    """The first finding is where the runs part; those behind it may only have inherited the error."""
    tally.rows = {}
    for parts in context.paths:
        context.progress(path_name(parts))
        got = context.engine_run(context.layer_tokens, parts)
        value, bound, _ = context.expected(context.layer_tokens, parts, got)
        tally.tensors(got, value.taps, bound, path=path_name(parts), hint="cumulative: may be inherited")
    return _paths(context)


@check(
    "layer.weights",
    "weights that need all of float32 are not rounded on the way in",
    blind="more than nine tokens in one call show, and in 16 bits a weight that is rounded once too often",
)
def weights(context: Context, tally: Tally) -> str | None:
    """On a second engine, the model with every weight a little larger: golden weights are exact in 16 bits, these not.

    For a 16-bit engine they are rounded to its dtype first, since it may.
    """
    finer = context.shared("finer weights", partial(finer_weights, context.checkpoint, context.dtype))
    tokens, parts = context.tokens[:9], (9,)
    try:
        engine = Guard(context.another(), context.config.vocab)
        engine.load(finer)
        beside = replace(context, engine=engine, checkpoint=finer)
        state = engine.initial_state()
        compare_run(beside, tally, tokens, parts, beside.run(tokens, state, parts), state, "prefill, finer weights")
        engine.close()
    except EngineFault as fault:
        raise EngineFault(fault.where, f"{fault.message} (a second engine beside the first)") from fault
    return None


def _paths(context: Context) -> str:
    return f"{len(context.layer_tokens)} tokens: " + ", ".join(path_name(parts) for parts in context.paths)
