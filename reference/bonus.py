"""The bonus: what the current token adds without going through the state."""

from ._array import Array


def bonus(r: Array, k: Array, v: Array, r_k: Array) -> Array:
    """b_h = (Σ_j r_hj k_hj r_k_hj) · v_h, with k after the k_a update and v after the lerp.

    r, k and v (T, H, N), r_k (H, N) → (T, D).
    """
    weight = (r * k * r_k).sum(axis=-1, keepdims=True)  # (T, H, 1)
    return (weight * v).reshape(len(v), -1)  # (T, D)
