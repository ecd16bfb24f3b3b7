"""The reference, run in the ways that checks need: recorded, in another precision, and on an engine's own values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint
from ..reference import Tap, forward, quantise
from ..traces import cut
from .engine import Array, Arrays
from .mode import Mode
from .numbers import Formats, System, bounded, plain, rounded, values
from .projections import is_input
from .tolerances import DRAWS, error_bounds, jitter, round_to

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

# Is called for each formula's result on an engine's own inputs: the engine's, the reference's, the bound of each row.
Watch = Callable[[Array, Array, Array], None]


def _as_it_is(name: str, value: Array) -> Array:
    return value


def _but_inputs_of_products(move: Tap) -> Tap:
    return lambda name, value: value if is_input(name) else move(name, value)


# Parameters beyond which weights are not kept, but widened whenever a formula asks for one: 2 GB in float64. Memory
# then depends on the largest matrix, whatever the model. Of a part of a model none are kept: it is for small memory.
KEPT = 250_000_000


class _Widened(Mapping[str, Any]):
    """A checkpoint's weights in a number system, each made when it is asked for."""

    def __init__(self, checkpoint: Checkpoint, system: System, *, quantized: bool) -> None:
        self._checkpoint, self._system, self._quantized = checkpoint, system, quantized

    def __getitem__(self, name: str) -> Any:
        held: Mapping[str, Any] = {name: self._checkpoint.weight(name, self._system.kind)}
        return self._system(name, (quantise(held) if self._quantized else held)[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint.names)

    def __len__(self) -> int:
        return len(self._checkpoint.names)


class Oracle:
    """The reference on one checkpoint, in the engine's mode. Weights are widened once for each number system, but those
    of a large model again and again.

    `parts` are the calls that the tokens go in by; for most attention policies it does not matter.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: str, mode: Mode) -> None:
        self.config = checkpoint.config
        self.forward = forward
        self._checkpoint = checkpoint
        self._mode = mode
        self._formats = formats = Formats(dtype)  # the engine's
        self._exact, self._bounded = plain(np.float64), bounded(dtype)
        self._weights: dict[System, Mapping[str, Array]] = {}

        def handed_on(name: str, value: Any) -> Any:
            return value.handed_on(formats.of(name))

        # float64 is measured in float32, see tolerances.bounds. INT8 makes its codes of plain numbers.
        float32, wide = plain(np.float32), dtype in ("float32", "float64")
        self._yardsticks: list[tuple[System, Tap]] = [
            (float32, round_to(dtype)) if wide or mode.quantize else (rounded(dtype), handed_on),
            *((float32, jitter(dtype, draw)) for draw in range(1, DRAWS)),
        ]

    def value(self, tokens: Sequence[int], start: Mapping[str, Array], parts: Sequence[int]) -> Run:
        """The reference in float64: what is right."""
        return self._run(self._exact, tokens, start, parts)

    def yardsticks(self, tokens: Sequence[int], start: Mapping[str, Array], parts: Sequence[int]) -> Iterator[Run]:
        """The reference in the engine's precision: rounded where it would round, and jittered. Each is run when it is
        asked for."""
        return (self._run(system, tokens, start, parts, move) for system, move in self._yardsticks)

    def isolated(
        self,
        tokens: Sequence[int],
        start: Mapping[str, Array],
        parts: Sequence[int],
        taps: Mapping[str, Array],
        watch: Watch | None = None,
    ) -> tuple[Run, Arrays]:
        """Each formula on the engine's own inputs: its value, and the bound of each row of its result.

        Every formula's result is recorded, then the engine's tap takes its place as input of the next: an error shows
        where it is made and nowhere else. Who will not wait for the whole run may `watch` it.
        """

        def bound(name: str, result: Any) -> Array:
            limits: Array = error_bounds(result, self._formats.of(name)).max(axis=-1)
            return limits

        def replaced(name: str, got: Array, result: Any) -> None:
            if watch is not None:
                watch(got, result.value, bound(name, result))

        run = self._run(self._bounded, tokens, start, parts, given=taps, replaced=replaced)
        return _plain(run), {name: bound(name, x) for name, x in run.taps.items()}

    def with_codes(
        self, tokens: Sequence[int], start: Mapping[str, Array], parts: Sequence[int], taps: Mapping[str, Array]
    ) -> tuple[Run, Iterator[Run]]:
        """Value and yardsticks from the tokens on, but each quantised product on the engine's own input.

        From nearly the same input other codes may come, and a code makes more of a difference than all rounding: two
        right engines soon part. With the engine's input they have its codes, and bounds are as without INT8. What the
        reference itself would have put in is shown, to be compared.
        """
        inputs = {name: value for name, value in taps.items() if is_input(name)}
        yardsticks = [(system, _but_inputs_of_products(move)) for system, move in self._yardsticks]
        value = self._run(self._exact, tokens, start, parts, given=inputs)
        return value, (self._run(system, tokens, start, parts, move, inputs) for system, move in yardsticks)

    @np.errstate(all="ignore")  # an engine's infinities and NaN are the comparison's to judge
    def _run(
        self,
        system: System,
        tokens: Sequence[int],
        start: Mapping[str, Array],
        parts: Sequence[int],
        move: Tap = _as_it_is,
        given: Mapping[str, Array] = NOTHING,
        replaced: Callable[[str, Array, Any], None] = lambda name, got, value: None,
    ) -> Run:
        """Every formula's result, and the state. `move` is what becomes of a value before the next formula gets it.

        A moved value is what the run shows. Where the engine's tap is `given`, that is moved and goes on instead, and
        the run shows what the formula made; both are told to `replaced`.
        """
        shown: dict[str, list[Array]] = {}
        begin = 0  # of the call

        def tap(name: str, value: Array) -> Array:
            if name not in given:
                value = move(name, value)
                shown.setdefault(name, []).append(value)
                return value
            shown.setdefault(name, []).append(value)
            got = given[name][begin : begin + len(value)]
            replaced(name, got, value)
            return move(name, system(name, got))

        state = {name: system(name, value) for name, value in start.items()}
        for begin, call in cut(tokens, parts):  # noqa: B007, the tap looks at it
            _, state = self.forward(self._of(system), self.config, call, state, tap, self._mode.attention)
        taps = {name: calls[0] if len(calls) == 1 else np.concatenate(calls) for name, calls in shown.items()}
        run = Run(taps, state)
        return run if system is self._bounded else _plain(run)

    def _of(self, system: System) -> Mapping[str, Array]:
        if system not in self._weights:
            widened = _Widened(self._checkpoint, system, quantized=self._mode.quantize)
            few = self._checkpoint.parameters <= KEPT and not self._checkpoint.whole
            self._weights[system] = dict(widened) if few else widened
        return self._weights[system]


def _plain(run: Run) -> Run:
    """With numpy's own arrays for its values."""
    taps, state = ({name: values(x) for name, x in shown.items()} for shown in (run.taps, run.state))
    return Run(taps, state)
