"""Attention with a longest cache."""

import numpy as np

from .._array import Array
from .attend import attend
from .cache import Cache, grown, newest


def capped(q: Array, k: Array, v: Array, cache: Cache, length: int) -> tuple[Array, Cache]:
    """Token t attends to the last `length` tokens, itself included; the cache keeps the newest `length`.

    q, k and v (T, H, N) → y (T, H, N) and the cache. Source: Pantheon's description of its RWKV-X engine ("up to a
    configurable max length", 2048), which does not say what happens at the cap. In the other reading the call is
    refused: `Capped.check_room`.
    """
    cache = grown(cache, k, v)
    past, y = len(cache.keys) - len(q), []
    for t in range(len(q)):
        seen = slice(max(0, past + t + 1 - length), past + t + 1)
        y.append(attend(q[t], cache.keys[seen], cache.values[seen]))
    return np.stack(y), newest(cache, length)
