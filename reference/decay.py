"""The decay w of the recurrent state."""

import math

import numpy as np

from ._array import Array
from .lora import lora
from .sigmoid import sigmoid


def decay(xw: Array, w0: Array, w1: Array, w2: Array) -> Array:
    """w = exp(−e^(−1/2) · σ(w0 + tanh(xw w1) w2)), in (0.5452, 1).

    The decay itself, not its logarithm. xw (T, D), w0 (D), w1 (D, rank), w2 (rank, D) → (T, D).
    Some engines write e^(−1/2) as 0.606531, which moves logits by 1e-6 of their spread. The softplus form
    exp(−exp(−softplus(−l) − 1/2)) is the same number.
    """
    level = w0 + lora(xw, w1, w2, np.tanh)
    return np.exp(-math.exp(-0.5) * sigmoid(level))
