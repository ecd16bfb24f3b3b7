"""The reference, run in the ways that checks need: recorded, in another precision, and on an engine's own values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..checkpoint import Checkpoint
from ..reference import Tap, forward
from .engine import Array, Arrays
from .tolerances import jitter, round_to

__all__ = ["Oracle", "Run"]


@dataclass(frozen=True)
class Run:
    """What a run showed: every tap by name in execution order, logits among them, and the state after it."""

    taps: Arrays
    state: Arrays

    @property
    def logits(self) -> Array:
        """(T, V)."""
        return self.taps["logits"]


def recording(into: Arrays, then: Tap) -> Tap:
    """A tap that keeps what it sees in `into` and goes on with what `then` makes of it."""

    def tap(name: str, value: Array) -> Array:
        value = then(name, value)
        into[name] = value
        return value

    return tap


class Oracle:
    """The reference on one checkpoint. Weights are widened once for each precision."""

    def __init__(self, checkpoint: Checkpoint, dtype: str) -> None:
        self.config = checkpoint.config
        self._checkpoint = checkpoint
        self._dtype = dtype  # the engine's
        self._weights: dict[type[np.floating], Mapping[str, Array]] = {}

    def value(self, tokens: Sequence[int], start: Mapping[str, Array]) -> Run:
        """The reference in float64: what is right."""
        return self._run(np.float64, tokens, start, lambda name, value: value)

    def yardstick(self, tokens: Sequence[int], start: Mapping[str, Array]) -> Run:
        """The reference in the engine's precision (float64 is measured in float32, see tolerances.bounds)."""
        return self._run(np.float32, tokens, start, round_to(self._dtype))

    def isolated(self, tokens: Sequence[int], start: Mapping[str, Array], taps: Mapping[str, Array]) -> tuple[Run, Run]:
        """Value and yardstick of each formula on the engine's own inputs.

        Every formula's result is recorded, then the engine's tap takes its place as input of the next: an error shows
        where it is made and nowhere else.
        """
        value, yardstick = (
            self._run_isolated(kind, tokens, start, taps, round_to(dtype), jitter(dtype))
            for kind, dtype in ((np.float64, "float64"), (np.float32, self._dtype))
        )
        return value, yardstick

    def _run(self, kind: type[np.floating], tokens: Sequence[int], start: Mapping[str, Array], then: Tap) -> Run:
        taps: Arrays = {}
        begin = {name: value.astype(kind) for name, value in start.items()}
        _, state = forward(self._of(kind), self.config, tokens, begin, recording(taps, then))
        return Run(taps, state)

    def _run_isolated(
        self,
        kind: type[np.floating],
        tokens: Sequence[int],
        start: Mapping[str, Array],
        taps: Mapping[str, Array],
        rounding: Tap,
        inputs: Tap,
    ) -> Run:
        own: Arrays = {}
        record = recording(own, rounding)

        def tap(name: str, value: Array) -> Array:
            record(name, value)
            return inputs(name, taps[name].astype(kind)) if name in taps else own[name]

        begin = {name: value.astype(kind) for name, value in start.items()}
        _, state = forward(self._of(kind), self.config, tokens, begin, tap)
        return Run(own, state)

    def _of(self, kind: type[np.floating]) -> Mapping[str, Array]:
        if kind not in self._weights:
            self._weights[kind] = self._checkpoint.weights(kind)
        return self._weights[kind]
