"""The reference, run in the ways that checks need: recorded, in another precision, and on an engine's own values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..checkpoint import Checkpoint
from ..reference import Tap, forward
from .engine import Array, Arrays
from .tolerances import DRAWS, jitter, round_to

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


def _as_it_is(name: str, value: Array) -> Array:
    return value


class Oracle:
    """The reference on one checkpoint. Weights are widened once for each precision."""

    def __init__(self, checkpoint: Checkpoint, dtype: str) -> None:
        self.config = checkpoint.config
        self._checkpoint = checkpoint
        self._dtype = dtype  # the engine's
        self._jitters = [jitter(dtype, draw) for draw in range(1, DRAWS)]
        self._weights: dict[type[np.floating], Mapping[str, Array]] = {}

    def value(self, tokens: Sequence[int], start: Mapping[str, Array]) -> Run:
        """The reference in float64: what is right."""
        return self._run(np.float64, tokens, start, _as_it_is)

    def yardsticks(self, tokens: Sequence[int], start: Mapping[str, Array]) -> list[Run]:
        """The reference in the engine's precision (float64 is measured in float32, see tolerances.bounds)."""
        return [self._run(np.float32, tokens, start, move) for move in (round_to(self._dtype), *self._jitters)]

    def isolated(
        self, tokens: Sequence[int], start: Mapping[str, Array], taps: Mapping[str, Array]
    ) -> tuple[Run, list[Run]]:
        """Value and yardsticks of each formula on the engine's own inputs.

        Every formula's result is recorded, then the engine's tap takes its place as input of the next: an error shows
        where it is made and nowhere else.
        """
        value = self._run(np.float64, tokens, start, _as_it_is, taps)
        moves = (_as_it_is, *self._jitters)
        return value, [self._run(np.float32, tokens, start, move, taps) for move in moves]

    def _run(
        self,
        kind: type[np.floating],
        tokens: Sequence[int],
        start: Mapping[str, Array],
        move: Tap,
        given: Mapping[str, Array] | None = None,
    ) -> Run:
        """Every formula's result, and the state. `move` is what becomes of a value before the next formula gets it.

        Cumulative, a moved value is what the run shows; isolated, the engine's taps, `given`, are moved instead, and
        the run shows what the formulas make of them.
        """
        shown: Arrays = {}

        def tap(name: str, value: Array) -> Array:
            if given is None:
                value = shown[name] = move(name, value)
                return value
            shown[name] = value
            return move(name, given[name].astype(kind)) if name in given else value

        begin = {name: value.astype(kind) for name, value in start.items()}
        _, state = forward(self._of(kind), self.config, tokens, begin, tap)
        return Run(shown, state)

    def _of(self, kind: type[np.floating]) -> Mapping[str, Array]:
        if kind not in self._weights:
            self._weights[kind] = self._checkpoint.weights(kind)
        return self._weights[kind]
