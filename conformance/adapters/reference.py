"""The reference as an engine: the harness checked against itself, and a way to write traces of what is right."""

from collections.abc import Mapping, MutableMapping, Sequence

import numpy as np

from ... import reference
from ...checkpoint import Checkpoint
from ...traces import DENSE, Policy
from ..engine import Array, Arrays
from ..ops import INT8_OPS, OPS

__all__ = ["Engine"]


class Engine:
    """The literal reference, float64."""

    name = "reference"
    dtype = "float64"
    capabilities = frozenset({"taps", "state", "snapshot", "apply", "attention", "int8"})

    def __init__(self, *, attention: Policy = DENSE, quantize: bool = False) -> None:
        self._attention, self._quantize = attention, quantize

    def load(self, checkpoint: Checkpoint) -> None:
        weights = checkpoint.weights(np.float64)
        self._config, self._weights = checkpoint.config, reference.quantise(weights) if self._quantize else weights

    def close(self) -> None:
        self._weights = {}

    def initial_state(self) -> Arrays:
        return reference.initial_state(self._config)

    def forward(self, tokens: Sequence[int], state: Arrays, *, taps: MutableMapping[str, Array] | None = None) -> Array:
        def tap(name: str, value: Array) -> Array:
            if taps is not None:
                taps[name] = value
            return value

        logits, after = reference.forward(self._weights, self._config, tokens, state, tap, self._attention)
        state.update(after)
        return logits

    def export_state(self, state: Arrays) -> Arrays:
        return {name: value.copy() for name, value in state.items()}

    def import_state(self, arrays: Mapping[str, Array]) -> Arrays:
        return {name: value.astype(np.float64) for name, value in arrays.items()}

    def clone(self, state: Arrays) -> Arrays:
        return self.export_state(state)

    def reset(self, state: Arrays) -> None:
        state.update(self.initial_state())

    def snapshot(self, state: Arrays) -> Arrays:
        return self.export_state(state)

    def rollback(self, state: Arrays, snapshot: Arrays) -> None:
        state.update(self.export_state(snapshot))

    def apply(self, op: str, inputs: Mapping[str, Array]) -> Arrays:
        return {**OPS, **INT8_OPS}[op]({name: value if value.dtype.kind == "i" else value.astype(np.float64)
                        for name, value in inputs.items()})  # fmt: skip
