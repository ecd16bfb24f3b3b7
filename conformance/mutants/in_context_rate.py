"""The in-context learning rate, done wrong."""

import numpy as np

from ... import reference
from ..engine import Array
from .mutant import Mutant

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "a = σ(a0 + (xa a1) a2)"


def no_sigmoid(xa: Array, a0: Array, a1: Array, a2: Array) -> Array:
    return a0 + reference.lora(xa, a1, a2)


def tanh_inside(xa: Array, a0: Array, a1: Array, a2: Array) -> Array:
    return reference.sigmoid(a0 + reference.lora(xa, a1, a2, np.tanh))


def sigmoid_inside(xa: Array, a0: Array, a1: Array, a2: Array) -> Array:
    return a0 + reference.lora(xa, a1, a2, reference.sigmoid)


def no_a0(xa: Array, a0: Array, a1: Array, a2: Array) -> Array:
    return reference.in_context_rate(xa, np.zeros_like(a0), a1, a2)


def a0_outside(xa: Array, a0: Array, a1: Array, a2: Array) -> Array:
    return a0 + reference.sigmoid(reference.lora(xa, a1, a2))


def doubled(xa: Array, a0: Array, a1: Array, a2: Array) -> Array:
    return 2 * reference.in_context_rate(xa, a0, a1, a2)


def complement(xa: Array, a0: Array, a1: Array, a2: Array) -> Array:
    return 1 - reference.in_context_rate(xa, a0, a1, a2)


def always_one(xa: Array, a0: Array, a1: Array, a2: Array) -> Array:
    return np.ones_like(xa)


def through_tanh(xa: Array, a0: Array, a1: Array, a2: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(0.5 * (a0 + reference.lora(xa, a1, a2)))


MUTANTS = (
    Mutant("in_context_rate.no_sigmoid", "a without σ", RIGHT, {"in_context_rate": no_sigmoid}),
    Mutant(
        "in_context_rate.tanh_inside",
        "a with tanh between its LoRA's matrices, as the decay has it",
        RIGHT,
        {"in_context_rate": tanh_inside},
    ),
    Mutant(
        "in_context_rate.sigmoid_inside",
        "a with σ between its LoRA's matrices, as the gate has it, and none outside",
        RIGHT,
        {"in_context_rate": sigmoid_inside},
    ),
    Mutant("in_context_rate.no_a0", "a without a0", RIGHT, {"in_context_rate": no_a0}),
    Mutant("in_context_rate.a0_outside", "a0 added to a after σ", RIGHT, {"in_context_rate": a0_outside}),
    Mutant("in_context_rate.doubled", "a doubled: 2 · σ", RIGHT, {"in_context_rate": doubled}),
    Mutant("in_context_rate.complement", "1 − a in place of a", RIGHT, {"in_context_rate": complement}),
    Mutant("in_context_rate.always_one", "a = 1: the plain delta rule", RIGHT, {"in_context_rate": always_one}),
    Mutant(
        "in_context_rate.through_tanh",
        "a as (1 + tanh(level / 2)) / 2",
        RIGHT,
        {"in_context_rate": through_tanh},
        same="another way to write σ",
    ),
)
