"""The in-context learning rate a: how much of the old value a key removes."""

from ._array import Array
from .lora import lora
from .sigmoid import sigmoid


def in_context_rate(xa: Array, a0: Array, a1: Array, a2: Array) -> Array:
    """a = σ(a0 + (xa a1) a2), in (0, 1). No activation between the two matrices.

    xa (T, D), a0 (D), a1 (D, rank), a2 (rank, D) → (T, D).
    """
    return sigmoid(a0 + lora(xa, a1, a2))
