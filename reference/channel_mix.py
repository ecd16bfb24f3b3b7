"""The channel mix: a two-layer network with squared relu."""

import numpy as np

from ._array import Array
from .linear import linear


def channel_mix_key(xk: Array, key: Array) -> Array:
    """h = relu(W_key xk)². xk (T, D), key (F, D) → (T, F)."""
    return np.maximum(linear(xk, key), 0) ** 2  # (T, F)


def channel_mix(xk: Array, key: Array, value: Array) -> Array:
    """y = W_value relu(W_key xk)². xk (T, D), key (F, D), value (D, F) → (T, D)."""
    return linear(channel_mix_key(xk, key), value)  # (T, D)
