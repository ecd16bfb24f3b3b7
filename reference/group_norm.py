"""GroupNorm ("ln_x"): each head of the recurrence's output is normalised on its own."""

import numpy as np

from ._array import Array


def group_norm(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    """o_h = (y_h − mean(y_h)) / √(var(y_h) + eps), then · weight + bias over all D channels.

    The variance is the biased one over a head's N values. eps is 64e-5 in official files, whatever N is; trained models
    have variances well below it, so a wrong eps changes what they say. y (T, H, N), weight and bias (D) → (T, D).
    """
    mean = y.mean(axis=-1, keepdims=True)  # (T, H, 1)
    centred = y - mean
    variance = (centred * centred).mean(axis=-1, keepdims=True)  # (T, H, 1)
    normed = centred / np.sqrt(variance + eps)
    return normed.reshape(len(y), -1) * weight + bias  # (T, D)
