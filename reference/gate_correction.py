"""The gate correction: the bonus joins after GroupNorm, then the gate multiplies."""

from ._array import Array


def gate_correction(norm: Array, bonus: Array, g: Array) -> Array:
    """o = (norm + bonus) · g. All (T, D) → (T, D)."""
    return (norm + bonus) * g
