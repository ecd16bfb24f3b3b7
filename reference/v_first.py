"""The value residual: every layer above the first leans toward the first layer's value."""

from ._array import Array
from .lora import lora
from .sigmoid import sigmoid


def v_first(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    """ṽ = v + (v_first − v) · σ(v0 + (xv v1) v2).

    `first` is layer 0's raw value projection of the *same token*; it is no state. Layer 0 itself does not mix.
    v, first and xv (T, D), v0 (D), v1 (D, rank), v2 (rank, D) → (T, D).
    """
    return v + (first - v) * sigmoid(v0 + lora(xv, v1, v2))
