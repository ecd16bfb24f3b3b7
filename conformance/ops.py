"""The formulas that can be asked for one by one, their inputs, and the reference that answers.

An op's inputs are the parameters of the reference's function of the same name, with the same names and shapes;
`int8_linear` alone is given a float matrix, to be quantised inside.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import reference
from .engine import Array, Arrays

__all__ = ["INT8_OPS", "OPS", "Op"]


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


def int8_linear(x: Array, weight: Array) -> tuple[Array, Array]:
    """The sums of codes and the product, of x (T, in) and a float matrix (out, in): (T, out) both."""
    matrix, (codes, _) = reference.quantise_rows(weight), reference.quantise_vector(x)
    return reference.int8_sums(codes, matrix.codes), reference.int8_linear(x, matrix)


_OUTPUTS: Mapping[Callable[..., Any], tuple[str, ...]] = {
    reference.layer_norm: ("y",),
    reference.embedding: ("x",),
    reference.token_shift: ("y",),
    reference.lora: ("y",),
    reference.decay: ("w",),
    reference.in_context_rate: ("a",),
    reference.gate: ("g",),
    reference.l2norm: ("kk",),
    reference.k_update: ("k",),
    reference.v_first: ("v",),
    reference.wkv7: ("y", "state"),
    reference.group_norm: ("o",),
    reference.bonus: ("b",),
    reference.gate_correction: ("o",),
    reference.channel_mix: ("y",),
    reference.head: ("logits",),
}

OPS: Mapping[str, Op] = {
    function.__name__: Op(function.__name__, function, outputs) for function, outputs in _OUTPUTS.items()
}

# The ops of an engine that claims the capability int8.
INT8_OPS: Mapping[str, Op] = {
    "quantise_rows": Op("quantise_rows", reference.quantise_rows, ("codes", "scale")),
    "quantise_vector": Op("quantise_vector", reference.quantise_vector, ("codes", "scale")),
    "int8_linear": Op("int8_linear", int8_linear, ("sums", "y")),
}
