"""Mixture of block attention: each head looks at its own chunk and at the few earlier ones that suit it best."""

import numpy as np

from .._array import Array
from .attend import attend
from .cache import Cache, grown


def moba(q: Array, k: Array, v: Array, cache: Cache, chunk: int, top_k: int) -> tuple[Array, Cache]:
    """A token of chunk c sees c up to itself, and by head the top_k − 1 chunks j < c of largest q_h · mean(k_jh).

    Chunks are `chunk` tokens each, counted from the text's first token, all of which the cache keeps. The score is not
    scaled; one softmax goes over all that is seen. With top_k = 1 everything is seen, as the official code does, and
    the first chunk · top_k tokens see everything in any case. q, k and v (T, H, N) → y (T, H, N) and the cache.
    Source: RWKV-X's training code, `moba_efficient.py`, and arXiv 2504.21463; its padding of a text to a multiple of 16
    is not part of the model.
    """
    cache = grown(cache, k, v)
    past, y = len(cache.keys) - len(q), np.empty_like(q)
    for t in range(len(q)):
        position = past + t
        own = position // chunk
        for h in range(q.shape[1]):
            chunks = range(own) if top_k == 1 else best(q[t, h], cache.keys[: own * chunk, h], chunk, top_k - 1)
            seen = [m for j in chunks for m in range(j * chunk, (j + 1) * chunk)]
            seen += range(own * chunk, position + 1)
            y[t, h] = attend(q[t, None, h], cache.keys[seen, h, None], cache.values[seen, h, None])[0]
    return y, cache


def best(q: Array, keys: Array, chunk: int, count: int) -> list[int]:
    """The `count` chunks of `keys` (M, …) whose mean key has the largest inner product with q (…), in their order."""
    means = keys.reshape(len(keys) // chunk, chunk, *q.shape).mean(axis=1)  # (chunks, …)
    scores = (means * q).reshape(len(means), q.size).sum(axis=-1)  # (chunks)
    return sorted(int(j) for j in np.argsort(-scores, kind="stable")[:count])
