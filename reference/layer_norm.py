"""LayerNorm, as ln0, ln1, ln2 and ln_out use it."""

import numpy as np

from ._array import Array


def layer_norm(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    """y = (x − mean(x)) / √(var(x) + eps) · weight + bias, over the D channels of each token.

    The variance is the biased one (divided by D). x (T, D), weight and bias (D) → (T, D).
    Source: torch.nn.functional.layer_norm, whose default eps 1e-5 every official RWKV-7 program keeps.
    """
    mean = x.mean(axis=-1, keepdims=True)  # (T, 1)
    centred = x - mean
    variance = (centred * centred).mean(axis=-1, keepdims=True)  # (T, 1)
    return centred / np.sqrt(variance + eps) * weight + bias
