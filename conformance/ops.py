"""The formulas that can be asked for one by one, their inputs, and the reference that answers.

An op's inputs are the parameters of the reference's function of the same name, with the same names and shapes.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import reference
from .engine import Array, Arrays

__all__ = ["OPS", "Op"]


@dataclass(frozen=True)
class Op:
    """One formula: the reference's function, and what its outputs are called."""

    name: str
    function: Callable[..., Any]
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs. (lora's activation is no tensor: decay and gate are lora with one.)"""
        return tuple(name for name in inspect.signature(self.function).parameters if name != "activation")

    def __call__(self, inputs: Mapping[str, Array]) -> Arrays:
        """The reference's answer, in the dtype of the inputs."""
        value = self.function(**inputs)
        return dict(zip(self.outputs, value if isinstance(value, tuple) else (value,), strict=True))


OPS: Mapping[str, Op] = {
    name: Op(name, function, outputs)
    for name, function, *outputs in (
        ("layer_norm", reference.layer_norm, "y"),
        ("embedding", reference.embedding, "x"),
        ("token_shift", reference.token_shift, "y"),
        ("lora", reference.lora, "y"),
        ("decay", reference.decay, "w"),
        ("in_context_rate", reference.in_context_rate, "a"),
        ("gate", reference.gate, "g"),
        ("l2norm", reference.l2norm, "kk"),
        ("k_update", reference.k_update, "k"),
        ("v_first", reference.v_first, "v"),
        ("wkv7", reference.wkv7, "y", "state"),
        ("group_norm", reference.group_norm, "o"),
        ("bonus", reference.bonus, "b"),
        ("gate_correction", reference.gate_correction, "o"),
        ("channel_mix", reference.channel_mix, "y"),
        ("head", reference.head, "logits"),
    )
    for outputs in (tuple(outputs),)
}
