"""The key that is written into the state."""

from ._array import Array


def k_update(k: Array, a: Array, k_a: Array) -> Array:
    """k̃ = k · (1 + (a − 1) · k_a): where the learning rate is small, less is written.

    k and a (T, H, N), k_a (H, N) → (T, H, N).
    """
    return k * (1 + (a - 1) * k_a)
