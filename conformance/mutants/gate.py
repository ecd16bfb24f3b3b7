"""The output gate, done wrong."""

from collections.abc import Callable

import numpy as np

from ... import reference
from ..engine import Array
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "g = σ(xg g1) g2, with σ between the matrices and nothing after them"


def with_activations(
    inside: Callable[[Array], Array] | None = None, outside: Callable[[Array], Array] = lambda x: x
) -> Callable[..., Array]:
    def gate(xg: Array, g1: Array, g2: Array) -> Array:
        return outside(reference.lora(xg, g1, g2, inside))

    return gate


def silu(x: Array) -> Array:
    return x * reference.sigmoid(x)


def float16(xg: Array, g1: Array, g2: Array) -> Array:
    return kept_in("float16", reference.gate(xg, g1, g2))


def two_sided(x: Array) -> Array:
    """σ without an overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


MUTANTS = (
    Mutant(
        "gate.sigmoid_outside",
        "the gate's σ after its second matrix instead of between the two",
        RIGHT,
        {"gate": with_activations(outside=reference.sigmoid)},
        seen="alibaba/MNN wiki",
    ),
    Mutant(
        "gate.sigmoid_twice",
        "the gate's σ between its matrices and again after them",
        RIGHT,
        {"gate": with_activations(reference.sigmoid, reference.sigmoid)},
        seen="SmerkyG/RWKV_Explained#1",
    ),
    Mutant("gate.no_sigmoid", "the gate without σ", RIGHT, {"gate": with_activations()}),
    Mutant(
        "gate.silu", "the gate with SiLU between its matrices instead of σ", RIGHT, {"gate": with_activations(silu)}
    ),
    Mutant(
        "gate.silu_outside",
        "the gate with SiLU after its matrices, like RWKV-5's, and nothing between",
        RIGHT,
        {"gate": with_activations(outside=silu)},
    ),
    Mutant(
        "gate.tanh",
        "the gate with tanh between its matrices, as the decay has it",
        RIGHT,
        {"gate": with_activations(np.tanh)},
    ),
    Mutant("gate.float16", "the gate in float16", RIGHT, {"gate": float16}, rounding=True),
    Mutant(
        "gate.two_sided_sigmoid",
        "the gate's σ as eˣ / (1 + eˣ) below zero",
        RIGHT,
        {"gate": with_activations(two_sided)},
        same="numerator and denominator multiplied by eˣ",
    ),
)
