"""One engine, one model, and what several checks share: the tokens, the paths, and runs that need not be repeated."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ..checkpoint import Checkpoint, Config
from ..errors import InputError
from ..golden import CACHED, GoldenSet, GoldenTrace, Manifest, start_of, start_state
from ..reference import initial_state
from ..traces import Capped, Trace, cut
from .engine import Array, Arrays
from .guard import EngineFault, Guard
from .mode import Mode
from .oracle import Oracle, Run
from .tolerances import bounds

__all__ = ["Context", "Expected", "begin", "bounds_of", "digest", "end_to_end", "golden_of", "joined", "splits"]

LAYER = 130  # tokens of the layer checks: beyond two chunks of 64, and not a multiple of anything
LENGTH = 300  # of the longest call: the fastest decay over 256 tokens is below float32's smallest number
LARGE = 50_000_000  # parameters
SHORT = 34


Kept = TypeVar("Kept")

# A run of the reference, and the bounds of its taps and of its final state.
Expected = tuple[Run, Mapping[str, Array], Mapping[str, Array]]


@dataclass
class Context:
    """What a check is given."""

    engine: Guard
    dtype: str
    capabilities: frozenset[str]
    checkpoint: Checkpoint
    mode: Mode
    golden: GoldenSet | None  # the stored traces of this model, if there are any
    seed: int
    progress: Callable[[str], None]
    another: Callable[[], Any]  # makes one more engine, with nothing loaded

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.checkpoint, self.dtype, self.mode)
        self.config = self.checkpoint.config
        self._kept: dict[Hashable, Any] = {}
        attention = self.mode.attention
        if isinstance(attention, Capped) and attention.full == "refuse" and attention.length < LENGTH + CACHED:
            raise InputError(
                f"attention {attention}: the checks' longest text would be refused",
                expected=f"a length of at least {LENGTH + CACHED}",
                mend=f"--attention capped:length={LENGTH + CACHED},full=refuse",
            )

    @property
    def required(self) -> frozenset[str]:
        """The capabilities without which the engine cannot run this model in this mode."""
        attention = {"attention"} if self.config.attention_layers else set()
        return frozenset(attention | ({"int8"} if self.mode.quantize else set()))

    @cached_property
    def large(self) -> bool:
        """Whether a token costs so much that checks must do with fewer of them."""
        return self.checkpoint.parameters > LARGE

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the long runs: random, with repeats, the first and the last id among the first few."""
        random = np.random.default_rng(self.seed)
        tokens = random.integers(0, self.config.vocab, SHORT if self.large else LENGTH)
        tokens[[1, 4, 5]] = 0, self.config.vocab - 1, self.config.vocab - 1
        tokens[len(tokens) // 2 :: 7] = tokens[2]
        return tuple(int(token) for token in tokens)

    @cached_property
    def layer_tokens(self) -> tuple[int, ...]:
        """The tokens of the layer checks."""
        return self.tokens[:LAYER]

    @cached_property
    def paths(self) -> list[tuple[int, ...]]:
        """Ways to cut them into calls: one call, step by step, at 17, and around a single token in the middle."""
        n = len(self.layer_tokens)
        return [(n,), (1,) * n, (17, n - 17), (n // 2 - 1, 1, n // 2)]

    @cached_property
    def zero(self) -> Arrays:
        """The state before the first token."""
        return initial_state(self.config)

    def start(self, seed: int) -> Arrays:
        """A random, unsymmetric state, with no more keys than the attention's policy keeps."""
        attention = self.mode.attention
        cached = min(CACHED, attention.length) if isinstance(attention, Capped) else CACHED
        return start_state(self.config, seed, cached)

    def once(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What `make` gives, made once for each key: runs that several checks look at."""
        if key not in self._kept:
            self._kept[key] = make()
        kept: Kept = self._kept[key]
        return kept

    def shared(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What `make` gives, whatever the engine shows: the same for every engine."""
        return make()

    def stored(self, entry: GoldenTrace) -> Trace:
        """One of the model's stored traces, read once."""
        assert self.golden is not None
        golden = self.golden
        return self.once(("stored", entry.file), lambda: golden.read(entry))

    def calls(self, parts: Sequence[int], start: Mapping[str, Array]) -> tuple[int, ...]:
        """The calls in which the reference takes the tokens that the engine takes in `parts`: one over all of them
        where the attention's policy promises that it is the same, the engine's own where it is not, by design."""
        cached = len(start.get("moba.0.state.k", ()))
        same = self.mode.attention.same_as_one_call(cached, parts) or not self.config.attention_layers
        return (sum(parts),) if same else tuple(parts)

    def expected(
        self, tokens: Sequence[int], parts: Sequence[int], shown: Arrays, start: Mapping[str, Array] | None = None
    ) -> Expected:
        """The reference on `tokens`, which the engine took in `parts` from `start` (or zero).

        In INT8 each quantised product is on what the engine showed, so that it has the engine's codes.
        """
        begin = self.zero if start is None else start
        calls = self.calls(parts, begin)
        if self.mode.quantize:
            return self.with_codes(tokens, begin, calls, self.usable(shown, len(tokens)))
        if start is None:
            return self.once(("expected", tuple(tokens), calls), lambda: self.plain(tokens, self.zero, parts))
        return self.plain(tokens, start, parts)

    def plain(self, tokens: Sequence[int], start: Mapping[str, Array], parts: Sequence[int]) -> Expected:
        """The same, whatever the engine showed."""
        calls = self.calls(parts, start)

        def run() -> Expected:
            return self.bounded(self.oracle.value(tokens, start, calls), self.oracle.yardsticks(tokens, start, calls))

        return self.shared(("plain", tuple(tokens), calls, digest(start)), run)

    def with_codes(
        self, tokens: Sequence[int], start: Mapping[str, Array], calls: Sequence[int], taps: Arrays
    ) -> Expected:
        """The reference in INT8, on what the engine showed."""
        return self.bounded(*self.oracle.with_codes(tokens, start, calls, taps))

    def bounded(self, value: Run, yardsticks: Iterable[Run]) -> Expected:
        """A run, and the bounds of its taps and of its final state."""
        return value, *bounds_of(value, list(yardsticks), self.dtype)

    def isolated(self, tokens: Sequence[int], parts: Sequence[int], taps: Arrays) -> tuple[Run, Arrays]:
        """Each formula on the engine's own inputs, from a zero state, and the bounds."""
        return self.oracle.isolated(tokens, self.zero, self.calls(parts, self.zero), taps)

    def usable(self, shown: Arrays, tokens: int) -> Arrays:
        """What the engine shows, as far as a formula can take it."""
        dims = {**self.config.dims, "T": tokens}
        shapes = {tap.name: tap.shape(dims) for tap in self.config.taps}
        return {
            name: value for name, value in shown.items() if value.dtype.kind == "f" and value.shape == shapes.get(name)
        }

    def engine_run(self, tokens: tuple[int, ...], parts: tuple[int, ...]) -> Arrays:
        """The engine's taps from a zero state over calls of `parts` tokens, put end to end, run once."""

        def run() -> Arrays:
            return end_to_end(self.engine, tokens, self.engine.initial_state(), parts)

        return self.once(("engine", tokens, parts), run)

    def run(self, tokens: Sequence[int], state: Any, parts: Sequence[int]) -> Arrays:
        """The engine's logits over calls of `parts` tokens; in INT8 its taps too, for `with_codes`."""
        return end_to_end(self.engine, tokens, state, parts, taps=self.mode.quantize)

    def export(self, state: Any) -> Arrays:
        """The engine's state under the canonical names; empty if it does not offer to export it."""
        if "state" not in self.capabilities:
            return {}
        arrays = self.engine.export_state(state)
        if not isinstance(arrays, dict):
            raise EngineFault("export_state", f"returned {type(arrays).__name__}, but should return a dict of arrays")
        known = {tensor.name for tensor in self.config.state}
        unknown = sorted(set(arrays) - known)
        if unknown:
            raise EngineFault("export_state", f"returned {unknown[0]!r}, which is no state of this model")
        return arrays


def golden_of(manifest: Manifest, checkpoint: Checkpoint, mode: Mode) -> GoldenSet | None:
    """The stored traces of a model in a mode, if there are any. None are of INT8."""
    stored = None if mode.quantize else manifest.find(checkpoint.fingerprint())
    return stored and stored.run_as(str(mode.attention))


def digest(arrays: Mapping[str, Array]) -> int:
    """Of names and values, to tell whether others are the same."""
    return hash(tuple((name, value.tobytes()) for name, value in arrays.items()))


def bounds_of(value: Run, yardsticks: Sequence[Run], dtype: str) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """The bounds of a run's taps and of its final state for an engine of `dtype`; the more yardsticks, the wider."""
    taps = {name: bounds(want, [run.taps[name] for run in yardsticks], dtype) for name, want in value.taps.items()}
    state = {
        name: bounds(want, [run.state[name] for run in yardsticks], dtype, token_axis=False)
        for name, want in value.state.items()
    }
    return taps, state


def end_to_end(engine: Guard, tokens: Sequence[int], state: Any, parts: Sequence[int], *, taps: bool = True) -> Arrays:
    """The engine's taps and logits over calls of `parts` tokens, put end to end; but for what a call did not give."""
    calls = []
    for _, call in cut(tokens, parts):
        shown: Arrays = {}
        logits = engine.forward(call, state, taps=shown) if taps else engine.forward(call, state)
        calls.append({**shown, "logits": logits})
    return joined(calls)


def joined(calls: Sequence[Arrays]) -> Arrays:
    """What every one of several calls showed, end to end."""
    whole = {}
    for name in calls[0]:
        pieces = [call[name] for call in calls if name in call]
        if len(pieces) == len(calls):
            try:
                whole[name] = np.concatenate(pieces)
            except ValueError as error:
                message = f"gave tap {name!r} in shapes that do not follow each other: {error}"
                raise EngineFault("forward", message) from error
    return whole


def begin(engine: Guard, config: Config, start: str) -> Any:
    """The engine's state for a trace's `start`: zero, or random:SEED."""
    return engine.initial_state() if start == "zero" else engine.import_state(start_of(config, start))


def splits(n: int) -> list[tuple[int, ...]]:
    """Every way to cut n tokens into calls: 2ⁿ⁻¹ of them, one call first, step by step last."""
    if n == 0:
        return [()]
    return [(first, *rest) for first in range(n, 0, -1) for rest in splits(n - first)]
