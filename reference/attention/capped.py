"""Attention with a longest cache: sliding, or refusing."""

import numpy as np

from ...errors import InputError
from .._array import Array
from .attend import attend
from .cache import Cache, grown, newest


def capped(q: Array, k: Array, v: Array, cache: Cache, length: int) -> tuple[Array, Cache]:
    """Token t attends to the last `length` tokens, itself included; the cache keeps the newest `length`.

    q, k and v (T, H, N) → y (T, H, N) and the cache. Source: Pantheon's description of its RWKV-X engine ("up to a
    configurable max length", 2048), which does not say what happens at the cap: `refuse_more` is the other reading.
    """
    cache = grown(cache, k, v)
    past, y = len(cache.keys) - len(q), []
    for t in range(len(q)):
        seen = slice(max(0, past + t + 1 - length), past + t + 1)
        y.append(attend(q[t], cache.keys[seen], cache.values[seen]))
    return np.stack(y), newest(cache, length)


def refuse_more(cached: int, tokens: int, length: int) -> None:
    """InputError if a call of `tokens` tokens would bring a cache of `cached` beyond `length`."""
    if cached + tokens > length:
        raise InputError(
            f"the attention cache is full: it holds {cached} of at most {length} tokens, and {tokens} more were given",
            expected=f"at most {length - cached} more",
            mend="start afresh, or allow more: capped:length=…, or let it slide: capped:full=slide",
        )
