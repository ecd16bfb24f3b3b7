"""No engine is timed before it is proved right: what a worker shows is compared with the reference.

gander's own engines are held to the bounds of `gander check`, peers to those of a stored trace (an INT8 peer, whose
scheme is another: to lose no more than gander's documented scheme does). A prompt too long for the reference, and
several sequences at once, are compared with the fast engine in float32, itself proved, on another path.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..conformance.mode import Mode
from ..conformance.oracle import Oracle
from ..conformance.tolerances import TRACE, bounds, row_errors, trace_16_bit, trace_bounds
from ..reference import initial_state, longest_match
from ..traces import parse_attention
from ..vocabulary import find_vocabulary
from .inputs import CHANGED, Inputs
from .machine import TEXT
from .rows import Entry
from .runners import Array, tokens_of

__all__ = ["Proof", "Wrong"]

CALLS = (17, 1)  # a prompt that is longer than a chunk, and a step
LONGEST = 8192  # tokens of a proof: four chunks of moba, which chooses three; longer prompts have nothing new

Show = Callable[..., dict[str, Array]]  # what a worker shows, see runners.py


class Wrong(Exception):
    """What a contender computes is not what it should."""


@dataclass(frozen=True)
class _Right:
    """Logits, and how far an engine may be from them: a row each."""

    logits: Array
    bound: Array

    @property
    def relative(self) -> float:
        """The largest bound, by its row's standard deviation."""
        return float((self.bound / self.logits.std(axis=-1)).max())


class Proof:
    """Keeps what the reference said: it is slow."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._known: dict[Any, Any] = {}

    def prove(self, entry: Entry, show: Show, verified: Callable[[Entry], Show]) -> None:
        """Wrong, if the entry's worker is. `verified` gives the fast engine in float32 in the mode of the entry."""
        if entry.runner == "tokenizer":
            self._agree(
                entry, show()["ids"].tolist() == self._once("ids", self._ids), "ids that are not the literal one's"
            )
        elif entry.runner == "diff":
            shown = show()
            self._agree(entry, bool(shown["same"]), "a difference between traces that are the same")
            self._agree(entry, shown["found"] == CHANGED, "no difference where there is one")
        elif "model" in entry.options:
            self._engine(entry, show, verified)

    def _engine(self, entry: Entry, show: Show, verified: Callable[[Entry], Show]) -> None:
        right = self._proved(entry, show)
        what, *parts = entry.work or ("decode",)
        if what == "decode":
            return
        n = parts[0] if what == "batch" else min(parts[0], LONGEST)
        other = {"batch": "alone", "prefill": "pieces"}[what]
        got = show(what, n)["logits"]

        def proved() -> Array:
            mine = self._float32(entry)
            theirs = verified(mine)
            self._proved(mine, theirs)
            return theirs(other, n)["logits"]

        want = self._once((other, n, entry.options["model"], entry.options.get("attention")), proved)
        error = float((row_errors(got, want) / want.std(axis=-1)).max())
        if not error <= right.relative:
            raise Wrong(f"{entry.label}: {what} of {n}: {_off(error, right.relative, 'the float32 engine')}")

    def _proved(self, entry: Entry, show: Show) -> _Right:
        shown = show("calls", *CALLS)
        right = self._right(entry, shown)
        errors = row_errors(shown["logits"], right.logits)
        if entry.options.get("dtype") == "q8_0":  # codes differ all over: it is their sum that tells
            errors = np.full(len(errors), np.sqrt(np.mean((shown["logits"] - right.logits) ** 2)))
        over = np.flatnonzero(~(errors <= right.bound))
        if over.size:
            t = int(over[0])
            deviation = right.logits[t].std()
            off = _off(errors[t] / deviation, right.bound[t] / deviation, "the reference")
            raise Wrong(f"{entry.label}: token {t}: {off}")
        return right

    def _right(self, entry: Entry, shown: dict[str, Array]) -> _Right:
        model, dtype = entry.options["model"], entry.options.get("dtype", "float32")
        if entry.options.get("quantize"):
            return self._right_in(entry, dtype, shown)
        if entry.runner in ("optimized", "load"):
            return self._once(("own", model, dtype, self._mode(entry)), lambda: self._right_in(entry, dtype, None))
        value = self._once(("value", model), lambda: self._oracle(entry, "float32").value(*self._run(entry)).logits)
        if dtype == "q8_0":
            quantised = self._once(("int8", model), lambda: self._in_int8(entry))
            return _Right(value, np.full(len(value), np.sqrt(np.mean((quantised - value) ** 2))))
        if dtype in TRACE or dtype == "f32":
            return _Right(value, trace_bounds(value, TRACE["float32"]))
        layers = self._inputs.model(model).config.layers
        return _Right(value, trace_bounds(value, trace_16_bit("float16", layers)))

    def _right_in(self, entry: Entry, dtype: str, taps: dict[str, Array] | None) -> _Right:
        """By the bounds of `gander check`; with the engine's taps, in INT8 on its own codes."""
        oracle, run = self._oracle(entry, dtype), self._run(entry)
        if taps is None:
            value, yardsticks = oracle.value(*run), oracle.yardsticks(*run)
        else:
            value, yardsticks = oracle.with_codes(*run, taps)
        return _Right(value.logits, bounds(value.logits, [yardstick.logits for yardstick in yardsticks], dtype))

    def _in_int8(self, entry: Entry) -> Array:
        oracle = Oracle(self._inputs.model(entry.options["model"]), "float32", Mode(quantize=True))
        return oracle.value(*self._run(entry)).logits

    def _oracle(self, entry: Entry, dtype: str) -> Oracle:
        return Oracle(self._inputs.model(entry.options["model"]), dtype, self._mode(entry))

    def _run(self, entry: Entry) -> tuple[list[int], Any, tuple[int, ...]]:
        config = self._inputs.model(entry.options["model"]).config
        return tokens_of(config.vocab, sum(CALLS)), initial_state(config), CALLS

    @staticmethod
    def _mode(entry: Entry) -> Mode:
        attention = entry.options.get("attention")
        quantize = bool(entry.options.get("quantize"))
        return Mode(parse_attention(attention), quantize) if attention else Mode(quantize=quantize)

    @staticmethod
    def _float32(entry: Entry) -> Entry:
        kept = {name: entry.options[name] for name in ("model", "attention") if name in entry.options}
        return Entry("gander float32", "optimized", {**kept, "dtype": "float32"})

    @staticmethod
    def _ids() -> list[int]:
        from ..conformance.tokenizers import mixed_text

        vocabulary = find_vocabulary()
        return list(longest_match(mixed_text(vocabulary, TEXT).encode(), vocabulary.ids, vocabulary.longest))

    @staticmethod
    def _agree(entry: Entry, agrees: bool, found: str) -> None:
        if not agrees:
            raise Wrong(f"{entry.label}: {found}")

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


def _off(error: float, bound: float, right: str) -> str:
    return f"logits are off {right}'s by {error:.1e} of their standard deviation, bound {bound:.1e}"
