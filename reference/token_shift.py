"""Token shift: each channel looks a little at the token before."""

import numpy as np

from ._array import Array


def token_shift(x: Array, previous: Array, mix: Array) -> Array:
    """y_t = x_t + (x_{t−1} − x_t) · mix, with x_{−1} = previous.

    `previous` is the last (normed) row of the call before, zeros at the start of a text. x (T, D), previous (D), mix
    (D) → (T, D). Source: the RWKV-7 paper's lerp; the mixes are constants in RWKV-7, without the LoRA that RWKV-6 had.
    """
    shifted = np.concatenate([previous[None], x[:-1]])  # (T, D)
    return x + (shifted - x) * mix
