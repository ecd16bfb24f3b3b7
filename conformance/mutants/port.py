"""A right port, made of parts that a mutant can replace: the reference behind the verbs of an engine."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import MethodType
from typing import Any

import numpy as np

from ... import reference
from ...checkpoint import Checkpoint
from ...errors import InputError
from ...traces import DENSE, Policy
from ..engine import CAPABILITIES, Array, Arrays
from ..ops import INT8_OPS, OPS
from ..tolerances import round_to
from .graft import graft
from .mutant import Mutant
from .wkv7 import RECURRENCE

__all__ = ["Port"]

CHUNK = 16  # tokens of a prefill that are taken at a time
KINDS = {"float64": np.float64, "float32": np.float32, "bfloat16": np.float32, "float16": np.float32}


class Port:
    """The reference's formulas, the recurrence in its three terms, with a mutant's in their place; in chunks, in
    batches, with snapshots.

    What a mutant's `methods` may replace: `weights`, `see`, `carry` and `hand_on`, which do nothing here, and every
    verb. Where values of another engine are `given`, they take the place of this one's, as inputs of what comes after.
    """

    name = "port"
    capabilities = frozenset(CAPABILITIES)

    def __init__(
        self,
        mutant: Mutant | None = None,
        *,
        dtype: str = "float32",
        attention: Policy = DENSE,
        quantize: bool = False,
    ) -> None:
        self.dtype, self.attention, self.quantize = dtype, attention, quantize
        self.kind = KINDS[dtype]
        self.chunk = CHUNK
        self.given: Mapping[str, Array] = {}
        self.taken = 0  # tokens so far
        # Real ports do not multiply the transition out to a matrix.
        self.formulas: Mapping[str, Callable[..., Any]] = {"wkv7": RECURRENCE, **(mutant.formulas if mutant else {})}
        for name, method in (mutant.methods if mutant else {}).items():
            setattr(self, name, MethodType(method, self))
        self._forward = graft(reference.forward, self.formulas)
        self._reads = mutant is not None and "weights" in mutant.methods
        self._rounded = round_to(dtype)

    # --- what a mutant replaces besides formulas and verbs

    def weights(self, checkpoint: Checkpoint) -> Mapping[str, Any]:
        """What is read from a checkpoint, by official name."""
        return checkpoint.weights(self.kind)

    def see(self, name: str, value: Array, seen: Mapping[str, Array]) -> Array:
        """A tap's value, before the next formula gets it. `seen` are the taps of the call so far."""
        return value

    def carry(self, before: Arrays, after: Arrays) -> Arrays:
        """The state that goes into the next call, from what went into this one and what came out of its last chunk."""
        return after

    def hand_on(self, before: Arrays, after: Arrays) -> Arrays:
        """The same between two chunks of one call."""
        return after

    # --- the verbs

    def load(self, checkpoint: Checkpoint, right: Mapping[str, Any] | None = None) -> None:
        """Take the weights; `right` ones are those that were read before, for a port that reads them right."""
        self.config = checkpoint.config
        self.p = self.weights(checkpoint) if right is None or self._reads else right
        if self.quantize:
            self.p = graft(reference.quantise, self.formulas)(self.p)

    def close(self) -> None:
        self.p = {}

    def initial_state(self) -> Arrays:
        return reference.initial_state(self.config, self.kind)

    def forward(self, tokens: Sequence[int], state: Arrays, *, taps: MutableMapping[str, Array] | None = None) -> Array:
        before = start = dict(state)
        logits, shown = [], []
        self.attention.check_room(self.cached(state), len(tokens))
        # How a call of an attention block is cut may matter (docs/attention.md): there it is one piece.
        size = len(tokens) if self.config.attention_layers else self.chunk
        for begin in range(0, len(tokens), size):
            if begin:
                state.update(self.hand_on(start, dict(state)))
            start = dict(state)
            made: Arrays = {}
            logits.append(self.piece(list(tokens[begin : begin + size]), state, made))
            shown.append(made)
        state.update(self.carry(before, dict(state)))
        if taps is not None:
            taps.update({name: np.concatenate([made[name] for made in shown]) for name in shown[0]})
        return np.concatenate(logits)

    def piece(self, tokens: list[int], state: Arrays, made: Arrays) -> Array:
        """A call, or a chunk of one. Fills `made`; the state goes on."""
        seen: Arrays = {}  # what later formulas get
        here = slice(self.taken, self.taken + len(tokens))
        self.taken += len(tokens)

        def tap(name: str, value: Array) -> Array:
            made[name] = self._rounded(name, self.see(name, value, seen))
            seen[name] = self.given[name][here].astype(self.kind) if name in self.given else made[name]
            return seen[name]

        logits, after = self._forward(self.p, self.config, tokens, state, tap, self.attention)
        state.update(after)
        return np.asarray(logits)

    def forward_batch(
        self,
        rows: Sequence[Sequence[int]],
        states: Sequence[Arrays],
        *,
        taps: Sequence[MutableMapping[str, Array]] | None = None,
    ) -> list[Array]:
        for row, state in zip(rows, states, strict=True):
            self.attention.check_room(self.cached(state), len(row))
        return [
            self.forward(row, state, taps=taps[i] if taps else None)
            for i, (row, state) in enumerate(zip(rows, states, strict=True))
        ]

    def cached(self, state: Arrays) -> int | None:
        """How many keys an attention block has of the text so far."""
        return len(state["moba.0.state.k"]) if self.config.attention_layers else None

    def export_state(self, state: Arrays) -> Arrays:
        return {name: value.copy() for name, value in state.items()}

    def import_state(self, arrays: Mapping[str, Array]) -> Arrays:
        return {name: value.astype(self.kind) for name, value in arrays.items()}

    def clone(self, state: Arrays) -> Arrays:
        return self.export_state(state)

    def snapshot(self, state: Arrays) -> Arrays:
        return self.export_state(state)

    def rollback(self, state: Arrays, snapshot: Arrays) -> None:
        state.update(self.export_state(snapshot))

    def reset(self, state: Arrays) -> None:
        state.update(self.initial_state())

    def set_chunk(self, tokens: int | None) -> None:
        self.chunk = CHUNK if tokens is None else tokens

    def set_threads(self, threads: int | None) -> None:
        """One, whatever is asked for: numpy's own."""

    def apply(self, op: str, inputs: Mapping[str, Array]) -> Arrays:
        known = {**OPS, **INT8_OPS}
        if op not in known:
            raise InputError(f"no op {op!r}")
        taken = {name: value if value.dtype.kind == "i" else value.astype(self.kind) for name, value in inputs.items()}
        # By place: a mutant need not call its inputs as the reference does.
        outputs = graft(known[op].function, self.formulas)(*(taken[name] for name in known[op].inputs if name in taken))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return {
            name: value if value.dtype.kind == "i" else self._rounded(name, value)
            for name, value in zip(known[op].outputs, outputs, strict=True)
        }
