"""Cutting a cache down to the tokens that are looked at most."""

import numpy as np

from .._array import Array
from .cache import Cache, newest


def evict(observed: Array, cache: Cache, keep: int, window: int) -> Cache:
    """Of all but the newest `window` tokens, each head keeps the keep − window with the most votes, most voted first.

    The votes of a head are Σ_t softmax(o_th · k_h / √N) over the observed rows t. Heads keep different tokens: what
    stands in one row of the cache afterwards need not be one token. observed (T, H, N) are the queries of a call of one
    token; for a longer call the package passes the block's normed input instead, cut into heads.
    Source: PyPI rwkv-x 0.2.7, `model_old.py` (`update_kv_cache`).
    """
    past = len(cache.keys) - window
    old = Cache(cache.keys[:past], cache.values[:past])
    scores = np.einsum("thn,mhn->thm", observed, old.keys) / np.sqrt(observed.dtype.type(observed.shape[-1]))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    votes = (weights / weights.sum(axis=-1, keepdims=True)).sum(axis=0)  # (H, past)
    kept = np.argsort(-votes, axis=-1, kind="stable")[:, : keep - window].T[..., None]  # (kept, H, 1)
    recent = newest(cache, window)
    return Cache(
        np.concatenate([np.take_along_axis(old.keys, kept, axis=0), recent.keys]),
        np.concatenate([np.take_along_axis(old.values, kept, axis=0), recent.values]),
    )
