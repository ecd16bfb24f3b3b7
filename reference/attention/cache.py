"""The keys and values that an attention block keeps."""

from typing import NamedTuple

import numpy as np

from .._array import Array


class Cache(NamedTuple):
    """Keys and values of M tokens, (M, H, N) each, the oldest first."""

    keys: Array
    values: Array


def grown(cache: Cache, k: Array, v: Array) -> Cache:
    """The cache with k and v (T, H, N) behind it."""
    return Cache(np.concatenate([cache.keys, k]), np.concatenate([cache.values, v]))


def newest(cache: Cache, count: int) -> Cache:
    """Its last `count` tokens."""
    start = max(0, len(cache.keys) - count)
    return Cache(cache.keys[start:], cache.values[start:])
