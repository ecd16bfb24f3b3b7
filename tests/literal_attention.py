"""RWKV-X's attention policies, literally: a token and a head at a time, in float64, from their specification."""

from itertools import accumulate, pairwise

import numpy as np
from roundoff import H

from gander.traces import Capped, Moba, Package


def softmax(scores):
    e = np.exp(scores - scores.max())
    return e / e.sum()


def mean_of(q, k, v):
    """One head's y for one query: q (N), k and v (M, N)."""
    return softmax(k @ q / np.sqrt(64)) @ v


def top(scores, number):
    """The indices of the largest, of equal ones the lower first."""
    return sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:number]


def seen_by(policy, q, k, p):
    """The positions that one head's query at position p attends to. k (p + 1, N): all keys up to its own."""
    if isinstance(policy, Capped):
        return list(range(max(0, p + 1 - policy.length), p + 1))
    if isinstance(policy, Moba) and policy.top_k > 1:
        C, c = policy.chunk, p // policy.chunk
        scores = [q @ k[j * C : (j + 1) * C].mean(axis=0) for j in range(c)]
        kept = top(scores, min(policy.top_k - 1, c))
        return [i for j in kept for i in range(j * C, (j + 1) * C)] + list(range(c * C, p + 1))
    return list(range(p + 1))


def literal(policy, q, k, v, u, parts):
    """y (T, H, N) and the keys left in the cache (M, H, N), of calls of so many tokens."""
    if isinstance(policy, Package):
        return literal_package(policy, q, k, v, u, parts)
    y = np.zeros_like(q)
    for t, h in np.ndindex(q.shape[:2]):
        seen = seen_by(policy, q[t, h], k[: t + 1, h], t)
        y[t, h] = mean_of(q[t, h], k[seen, h], v[seen, h])
    return y, k[-policy.length :] if isinstance(policy, Capped) else k


def literal_package(policy, q, k, v, u, parts):
    K, V, ys = k[:0], v[:0], []
    for start, stop in pairwise(accumulate(parts, initial=0)):
        call = slice(start, stop)
        if policy.evict_at and len(K) > policy.evict_at and len(K) > policy.keep:
            K, V = evicted(policy, q[call] if stop - start == 1 else u[call], K, V)
        seen = literal_package_seen(policy, q[call], K)
        y = np.zeros_like(q[call])
        for t, h in np.ndindex(y.shape[:2]):
            old, own = seen(t)
            keys = np.concatenate([K[old, h], k[call][own, h]])
            y[t, h] = mean_of(q[call][t, h], keys, np.concatenate([V[old, h], v[call][own, h]]))
        K, V = np.concatenate([K, k[call]]), np.concatenate([V, v[call]])
        ys.append(y)
    return np.concatenate(ys), K


def literal_package_seen(policy, q, K):
    """What token t of a call sees: which of the cache, which of the call."""
    T, past, C = len(q), len(K), policy.chunk
    if T == 1 and past > policy.short:
        scores = [(q[0] * K[j * C : (j + 1) * C].mean(axis=0)).sum() for j in range(past // C)]
        kept = [i for j in top(scores, min(policy.top_k, past // C)) for i in range(j * C, (j + 1) * C)]
        return lambda t: (kept + list(range(past // C * C, past)), [0])
    if T == 1 or past + T <= policy.short:
        return lambda t: (list(range(past)), list(range(t + 1)))
    return lambda t: ([], list(range(t // C * C, t + 1)))


def evicted(policy, observed, K, V):
    old = len(K) - policy.window
    keys, values = K[-policy.keep :].copy(), V[-policy.keep :].copy()
    for h in range(H):
        votes = sum(softmax(K[:old, h] @ row / np.sqrt(64)) for row in observed[:, h])
        kept = top(votes, min(policy.keep - policy.window, old))
        keys[: len(kept), h], values[: len(kept), h] = K[kept, h], V[kept, h]
    return keys, values
