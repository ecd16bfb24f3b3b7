"""The key that is written, done wrong."""

from ... import reference
from ..engine import Array
from .block import Block, instead
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "k̃ = k · (1 + (a − 1) · k_a)"


def dropped(k: Array, a: Array, k_a: Array) -> Array:
    return k


def one_not_taken_off(k: Array, a: Array, k_a: Array) -> Array:
    return k * (1 + a * k_a)


def one_not_added(k: Array, a: Array, k_a: Array) -> Array:
    return k * (a - 1) * k_a


def no_k_a(k: Array, a: Array, k_a: Array) -> Array:
    return k * a


def sign(k: Array, a: Array, k_a: Array) -> Array:
    return k * (1 + (1 - a) * k_a)


def bfloat16(k: Array, a: Array, k_a: Array) -> Array:
    return kept_in("bfloat16", reference.k_update(k, a, k_a))


def sum_of_two(k: Array, a: Array, k_a: Array) -> Array:
    return k + k * (a - 1) * k_a


def of_removal_key(block: Block, _: Array) -> Array:
    return reference.k_update(block.tap("att.kk"), block.tap("att.a"), block.heads(block.weight("att.k_a")))


def by_k_k(block: Block, _: Array) -> Array:
    return reference.k_update(block.tap("att.k"), block.tap("att.a"), block.heads(block.weight("att.k_k")))


MUTANTS = (
    Mutant("k_update.dropped", "the k_a update left out: the raw key is written", RIGHT, {"k_update": dropped}),
    Mutant("k_update.one_not_taken_off", "k̃ = k · (1 + a · k_a)", RIGHT, {"k_update": one_not_taken_off}),
    Mutant("k_update.one_not_added", "k̃ = k · (a − 1) · k_a", RIGHT, {"k_update": one_not_added}),
    Mutant("k_update.no_k_a", "k̃ = k · a: without k_a", RIGHT, {"k_update": no_k_a}),
    Mutant("k_update.sign", "k̃ = k · (1 + (1 − a) · k_a)", RIGHT, {"k_update": sign}),
    Mutant(
        "k_update.of_removal_key",
        "the k_a update of kk in place of k",
        RIGHT,
        methods=instead(att_k_mod=of_removal_key),
    ),
    Mutant("k_update.by_k_k", "the k_a update by k_k", RIGHT, methods=instead(att_k_mod=by_k_k)),
    Mutant("k_update.bfloat16", "the updated key k̃ in bfloat16", RIGHT, {"k_update": bfloat16}, rounding=True),
    Mutant(
        "k_update.sum_of_two",
        "k̃ = k + k · (a − 1) · k_a",
        RIGHT,
        {"k_update": sum_of_two},
        same="the same product, multiplied out",
    ),
)
