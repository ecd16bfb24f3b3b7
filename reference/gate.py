"""The output gate g."""

from ._array import Array
from .lora import lora
from .sigmoid import sigmoid


def gate(xg: Array, g1: Array, g2: Array) -> Array:
    """g = σ(xg g1) g2. The sigmoid stands *between* the two matrices; nothing follows, and there is no bias.

    xg (T, D), g1 (D, rank), g2 (rank, D) → (T, D), of either sign.
    """
    return lora(xg, g1, g2, sigmoid)
