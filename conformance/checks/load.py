"""load.*: is every tensor of the checkpoint used, and does the engine take it?"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch

from ...checkpoint import all_zero
from ...reference import forward, initial_state
from ..compare import Tally
from ..context import Context, expected
from ..engine import Array
from ..guard import EngineFault, Guard
from ..oracle import Oracle
from ..registry import check

LOAD_ENGINE = "load.engine"


class _Watched(Mapping[str, Array]):
    """Weights that count how often each is read. Iterating over names and values is not reading."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self._weights, self.read = weights, Counter[str]()

    def __getitem__(self, name: str) -> Array:
        self.read[name] += 1
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


@check("load.census", "every tensor of the checkpoint is used, and none is all zeros")
def census(context: Context, tally: Tally) -> str | None:
    """A model whose tensor is zero cannot show a fault in whatever multiplies it: that is INCOMPLETE."""
    weights = context.checkpoint.weights(np.float32)
    watched = _Watched(weights)
    forward(watched, context.config, [0], initial_state(context.config, np.float32))
    zero = all_zero(context.checkpoint)
    for name in weights:
        tally.expected += 1
        if not watched.read[name]:
            tally.fault(name, "is in the checkpoint, but the model does not use it")
        elif name in zero:
            tally.missing(name, "is all zeros: nothing that multiplies it is tested, or it was lost in conversion")
        else:
            tally.compared += 1
    return None


@check(LOAD_ENGINE, "the engine takes the weights and answers one token")
def engine(context: Context, tally: Tally) -> str | None:
    """If this fails nothing else can be asked."""
    logits = context.engine.forward([0], context.engine.initial_state())
    tally.expected += 1
    tally.compared += 1
    if not np.isfinite(logits).all():
        tally.fault("logits", f"{(~np.isfinite(logits)).sum()} of {logits.size} are not finite after one token")
    return None


@check("load.precision", "weights that need all of float32 are not rounded on the way in")
def precision(context: Context, tally: Tally) -> str | None:
    """On a second engine, the model with every weight a little larger: golden weights are exact in 16 bits, these not.

    For a 16-bit engine they are rounded to its dtype first, since it may.
    """
    dtype = getattr(torch, context.dtype)
    tensors = {
        name: (tensor.float() * (1 + 2**-12)).to(dtype).float() for name, tensor in context.checkpoint.tensors.items()
    }
    finer = replace(context.checkpoint, tensors=tensors)
    tokens, zero = context.tokens[:9], initial_state(context.config)
    value, bound, _ = expected(Oracle(finer, context.dtype), tokens, zero, context.dtype)
    try:
        engine = Guard(context.another(), context.config.vocab)
        engine.load(finer)
        logits = engine.forward(tokens, engine.initial_state())
        engine.close()
    except EngineFault as fault:
        raise EngineFault(fault.where, f"{fault.message} (a second engine beside the first)") from fault
    tally.tensor("logits", logits, value.logits, bound["logits"], path="prefill, finer weights")
    return None
