"""The reference, run in the ways that checks need: recorded, in another precision, and on an engine's own values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..checkpoint import Checkpoint
from ..reference import Tap, forward, quantise
from ..traces import cut
from .engine import Array, Arrays
from .mode import Mode
from .projections import is_input, is_product
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


NOTHING: Arrays = {}


def _as_it_is(name: str, value: Array) -> Array:
    return value


def _but_inputs_of_products(move: Tap) -> Tap:
    return lambda name, value: value if is_input(name) else move(name, value)


class Oracle:
    """The reference on one checkpoint, in the engine's mode. Weights are widened once for each precision.

    `parts` are the calls that the tokens go in by; for most attention policies it does not matter.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: str, mode: Mode) -> None:
        self.config = checkpoint.config
        self._checkpoint = checkpoint
        self._mode = mode
        self._dtype = dtype  # the engine's
        self._jitters = [jitter(dtype, draw) for draw in range(1, DRAWS)]
        self._weights: dict[type[np.floating], Mapping[str, Array]] = {}

    def value(self, tokens: Sequence[int], start: Mapping[str, Array], parts: Sequence[int]) -> Run:
        """The reference in float64: what is right."""
        return self._run(np.float64, tokens, start, parts, _as_it_is)

    def yardsticks(self, tokens: Sequence[int], start: Mapping[str, Array], parts: Sequence[int]) -> list[Run]:
        """The reference in the engine's precision (float64 is measured in float32, see tolerances.bounds)."""
        return [self._run(np.float32, tokens, start, parts, move) for move in (round_to(self._dtype), *self._jitters)]

    def isolated(
        self, tokens: Sequence[int], start: Mapping[str, Array], parts: Sequence[int], taps: Mapping[str, Array]
    ) -> tuple[Run, list[Run]]:
        """Value and yardsticks of each formula on the engine's own inputs.

        Every formula's result is recorded, then the engine's tap takes its place as input of the next: an error shows
        where it is made and nowhere else.
        """
        value, runs = self._on_taps(tokens, start, parts, taps, (_as_it_is, *self._jitters))
        if self._mode.quantize:  # a product of moved inputs would have other codes
            exact = {name: value for name, value in runs[0].taps.items() if is_product(name)}
            runs = [Run(run.taps | exact, run.state) for run in runs]
        return value, runs

    def with_codes(
        self, tokens: Sequence[int], start: Mapping[str, Array], parts: Sequence[int], taps: Mapping[str, Array]
    ) -> tuple[Run, list[Run]]:
        """Value and yardsticks from the tokens on, but each quantised product on the engine's own input.

        From nearly the same input other codes may come, and a code makes more of a difference than all rounding: two
        right engines soon part. With the engine's input they have its codes, and bounds are as without INT8. What the
        reference itself would have put in is shown, to be compared.
        """
        inputs = {name: value for name, value in taps.items() if is_input(name)}
        moves = [_but_inputs_of_products(move) for move in (round_to(self._dtype), *self._jitters)]
        return self._on_taps(tokens, start, parts, inputs, moves)

    def _on_taps(
        self,
        tokens: Sequence[int],
        start: Mapping[str, Array],
        parts: Sequence[int],
        taps: Mapping[str, Array],
        moves: Sequence[Tap],
    ) -> tuple[Run, list[Run]]:
        value = self._run(np.float64, tokens, start, parts, _as_it_is, taps)
        return value, [self._run(np.float32, tokens, start, parts, move, taps) for move in moves]

    def _run(
        self,
        kind: type[np.floating],
        tokens: Sequence[int],
        start: Mapping[str, Array],
        parts: Sequence[int],
        move: Tap,
        given: Mapping[str, Array] = NOTHING,
    ) -> Run:
        """Every formula's result, and the state. `move` is what becomes of a value before the next formula gets it.

        A moved value is what the run shows. Where the engine's tap is `given`, that is moved and goes on instead, and
        the run shows what the formula made.
        """
        shown: dict[str, list[Array]] = {}
        begin = 0  # of the call

        def tap(name: str, value: Array) -> Array:
            if name not in given:
                value = move(name, value)
                shown.setdefault(name, []).append(value)
                return value
            shown.setdefault(name, []).append(value)
            return move(name, given[name][begin : begin + len(value)].astype(kind))

        state = {name: value.astype(kind) for name, value in start.items()}
        for begin, call in cut(tokens, parts):  # noqa: B007, the tap looks at it
            _, state = forward(self._of(kind), self.config, call, state, tap, self._mode.attention)
        taps = {name: calls[0] if len(calls) == 1 else np.concatenate(calls) for name, calls in shown.items()}
        return Run(taps, state)

    def _of(self, kind: type[np.floating]) -> Mapping[str, Array]:
        if kind not in self._weights:
            weights = self._checkpoint.weights(kind)
            self._weights[kind] = quantise(weights) if self._mode.quantize else weights
        return self._weights[kind]
