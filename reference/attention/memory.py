"""Attention to a frozen memory of the tokens that the recurrent state restores worst."""

import numpy as np

from .._array import Array
from .attend import attend
from .cache import Cache
from .dense import dense


def memory(q: Array, k: Array, v: Array, cache: Cache, tokens: int, loss: Array) -> tuple[Array, Cache]:
    """A call of several tokens sees itself and leaves `tokens` of its keys; a single token sees the memory, not itself.

    Kept are those of the largest `loss` (T), the largest first; what was cached before is lost. A single token changes
    nothing. q, k and v (T, H, N) → y (T, H, N) and the memory. Source: PyPI rwkv-x 0.2.7, `model.py`.
    """
    if len(q) == 1:
        return attend(q[0], cache.keys, cache.values)[None], cache
    y, _ = dense(q, k, v, Cache(k[:0], v[:0]))
    kept = np.argsort(-loss, kind="stable")[:tokens]
    return y, Cache(k[kept], v[kept])


def restoration_loss(state: Array, k: Array, v: Array) -> Array:
    """loss_t = mean over heads and channels of (v_t − S[ᵀ] k_t)²: how badly the state gives back what was written.

    S (H, N, N) is the recurrent state after the call, [value, key], of the RWKV-7 block that ran last; k and v
    (T, H, N) are that block's, after the k_a update and the lerp. The package takes S for [key, value], and so
    contracts the *value* axis with k; released models were run so, and so is this. → (T).
    """
    restored = np.einsum("hkv,thk->thv", state, k)
    return ((v - restored) ** 2).mean(axis=(1, 2))
