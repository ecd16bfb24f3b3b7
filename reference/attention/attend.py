"""Softmax attention of one token."""

import numpy as np

from .._array import Array


def attend(q: Array, keys: Array, values: Array) -> Array:
    """y_h = Σ_m softmax_m(q_h · k_mh / √N) v_mh, over the M tokens that are seen; 0 where there are none.

    No position code, no bias, no normalisation of q or k. q (H, N), keys and values (M, H, N) → (H, N).
    Source: the RWKV-X package, which calls torch's scaled_dot_product_attention with its default scale.
    """
    if not len(keys):
        return np.zeros_like(q)
    scores = (keys * q).sum(axis=-1) / np.sqrt(q.dtype.type(q.shape[-1]))  # (M, H)
    weights = np.exp(scores - scores.max(axis=0))
    weights = weights / weights.sum(axis=0)
    return (weights[..., None] * values).sum(axis=0)  # (H, N)
