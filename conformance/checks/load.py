"""load.*: is every tensor of the checkpoint used, and does the engine take it?"""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from ...checkpoint import Checkpoint, all_zero
from ...reference import forward, initial_state
from ..compare import Tally
from ..context import Context
from ..engine import Array
from ..registry import check

LOAD_ENGINE = "load.engine"


class _Watched(Mapping[str, Array]):
    """Weights, widened when they are read, and how often each is. Iterating over names is not reading."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self.read = checkpoint, Counter[str]()

    def __getitem__(self, name: str) -> Array:
        self.read[name] += 1
        return self._checkpoint.weight(name, np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint.names)

    def __len__(self) -> int:
        return len(self._checkpoint.names)


@check(
    "load.census",
    "every tensor of the checkpoint is used, and none is all zeros",
    blind="how the engine reads them: it is about the file",
)
def census(context: Context, tally: Tally) -> str | None:
    """A model whose tensor is zero cannot show a fault in whatever multiplies it: that is INCOMPLETE."""
    watched = _Watched(context.checkpoint)
    forward(watched, context.config, [0], initial_state(context.config, np.float32))
    zero = all_zero(context.checkpoint)
    for name in watched:
        tally.expected += 1
        if not watched.read[name]:
            tally.fault(name, "is in the checkpoint, but the model does not use it")
        elif name in zero:
            tally.missing(name, "is all zeros: nothing that multiplies it is tested, or it was lost in conversion")
        else:
            tally.compared += 1
    return None


@check(
    LOAD_ENGINE,
    "the engine takes the weights and answers one token",
    blind="anything but that there is an answer of the right shape, of numbers",
)
def engine(context: Context, tally: Tally) -> str | None:
    """If this fails nothing else can be asked."""
    logits = context.engine.forward([0], context.engine.initial_state())
    tally.expected += 1
    tally.compared += 1
    if not np.isfinite(logits).all():
        tally.fault("logits", f"{(~np.isfinite(logits)).sum()} of {logits.size} are not finite after one token")
    return None
