"""Attention to every earlier token: what RWKV-X is for short texts, whatever its policy."""

import numpy as np

from .._array import Array
from .attend import attend
from .cache import Cache, grown


def dense(q: Array, k: Array, v: Array, cache: Cache) -> tuple[Array, Cache]:
    """Token t attends to all of the cache, to the tokens of this call before it, and to itself.

    q, k and v (T, H, N) → y (T, H, N), and the cache with k and v behind it. Source: the RWKV-X package, `model_old.py`
    with its attention modes "full"; the training code up to chunk · top-k tokens.
    """
    cache = grown(cache, k, v)
    past = len(cache.keys) - len(q)
    y = [attend(q[t], cache.keys[: past + t + 1], cache.values[: past + t + 1]) for t in range(len(q))]
    return np.stack(y), cache
