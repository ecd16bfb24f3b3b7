"""What `gander` asks of an engine.

An engine is any object with these verbs. Tensors cross the border as numpy arrays of float32 (or wider) under the
canonical names and layouts of `gander.traces`; what is inside stays the engine's own affair.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from ..checkpoint import Checkpoint

__all__ = ["CAPABILITIES", "Array", "Arrays", "Engine", "State"]

Array = npt.NDArray[Any]  # of floats; tokens, where an op takes them, of integers
Arrays = dict[str, Array]
State = Any  # opaque: only the engine that made it looks inside

# What an engine may offer beyond load, forward and initial_state. A check that needs more is not applicable without it.
CAPABILITIES: Mapping[str, str] = {
    "taps": "fills `forward(..., taps=...)` with every tap of the model",
    "state": "export_state, import_state",
    "snapshot": "clone, reset, snapshot, rollback",
    "batch": "forward_batch: several sequences of unequal length in one call",
    "chunk": "set_chunk: the number of tokens that prefill takes at a time",
    "threads": "set_threads: the number of CPU threads",
    "apply": "apply: one formula on its own",
    "int8": "runs quantised, when its class is given quantize=True; apply: quantise_rows, quantise_vector, int8_linear",
    "attention": "runs an RWKV-X's attention blocks, by the policy its class is given",
}


@runtime_checkable
class Engine(Protocol):
    """The verbs every engine has."""

    name: str
    dtype: str  # float32, bfloat16, float16 or float64: what it computes in
    capabilities: frozenset[str]  # keys of CAPABILITIES

    def load(self, checkpoint: Checkpoint) -> None:
        """Take the weights. Called once, before anything else."""

    def close(self) -> None:
        """Give back what `load` took."""

    def initial_state(self) -> State:
        """A state before the first token: zeros."""

    def forward(self, tokens: Sequence[int], state: State, *, taps: MutableMapping[str, Array] | None = None) -> Array:
        """Logits (T, V) of T ≥ 1 tokens; advances `state` in place. Into `taps`, if given, goes every tap by name."""


class FullEngine(Engine, Protocol):
    """The verbs behind each capability."""

    def export_state(self, state: State) -> Arrays:
        """State: copies of att_x (D), wkv (H, N, N) as [value, key], and ffn_x (D) of each block, by canonical name."""

    def import_state(self, arrays: Mapping[str, Array]) -> State:
        """State: the state that `arrays` describe; the arrays stay the caller's."""

    def clone(self, state: State) -> State:
        """Snapshot: an independent copy."""

    def reset(self, state: State) -> None:
        """Snapshot: back to before the first token, in place."""

    def snapshot(self, state: State) -> Any:
        """Snapshot: a token to come back to; must survive any number of later calls on `state`."""

    def rollback(self, state: State, snapshot: Any) -> None:
        """Snapshot: make `state` what it was when the snapshot was taken, in place. The snapshot stays usable."""

    def forward_batch(
        self,
        rows: Sequence[Sequence[int]],
        states: Sequence[State],
        *,
        taps: Sequence[MutableMapping[str, Array]] | None = None,
    ) -> list[Array]:
        """Batch: `forward` of each row with its own state, in one call; rows may differ in length.

        `taps`, one mapping a row, is given in INT8 only.
        """

    def set_chunk(self, tokens: int | None) -> None:
        """Chunk: how many tokens, 1 to 32, prefill takes at a time; None is the engine's own choice."""

    def set_threads(self, threads: int | None) -> None:
        """Threads: how many CPU threads to use; None is the engine's own choice."""

    def apply(self, op: str, inputs: Mapping[str, Array]) -> Arrays:
        """Apply: one formula of `gander.conformance.ops`, its inputs and outputs by name.

        Int8: also the three ops of quantised engines. Codes and sums are arrays of integers, or of floats that hold
        them exactly (float32 does not hold every sum).
        """
