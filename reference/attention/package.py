"""Attention as the RWKV-X package runs it: chunk-local prefill, top-k decode."""

import numpy as np

from .._array import Array
from .attend import attend
from .cache import Cache, grown
from .dense import dense
from .moba import best


def package(q: Array, k: Array, v: Array, cache: Cache, chunk: int, top_k: int, short: int) -> tuple[Array, Cache]:
    """Dense while the text is short; else a long call sees its own chunks only, and a single token the best chunks.

    A call of several tokens that ends beyond `short` tokens is cut into chunks of `chunk` from its own start; each
    token sees its chunk up to itself and nothing of the cache. A call of one token, with more than `short` tokens
    cached, sees the `top_k` full chunks of the cache with the largest q · mean(k), over all heads together, the
    remainder behind the last full chunk, and itself. The cache takes every key. q, k and v (T, H, N) → y (T, H, N) and
    the cache. Source: PyPI rwkv-x 0.2.7, `model_old.py`, with prefill_attn_mode "chunk" and a decoding_attn_mode other
    than "full".
    """
    past, tokens = len(cache.keys), len(q)
    if past + tokens <= short or (tokens == 1 and past == short):
        return dense(q, k, v, cache)
    if tokens == 1:
        full = past - past % chunk
        seen = [m for j in best(q[0], cache.keys[:full], chunk, top_k) for m in range(j * chunk, (j + 1) * chunk)]
        seen += range(full, past + 1)
        cache = grown(cache, k, v)
        return attend(q[0], cache.keys[seen], cache.values[seen])[None], cache
    y = []
    for t in range(tokens):
        own = slice(t - t % chunk, t + 1)
        y.append(attend(q[t], k[own], v[own]))
    return np.stack(y), grown(cache, k, v)
