"""MoBA: each head of each query sees its own chunk and the earlier chunks whose mean key it likes most.

Chunks are cut at multiples of `chunk` from the text's start. Most queries see few chunks, so the work goes from chunk
to queries: a chunk's keys meet those queries that chose it, and each query's parts are merged as they come.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from .attend import QUERIES, attend, attend_all, attend_part, best, merge
from .cache import Cache

CHOOSING = 1024  # queries at a time that choose


def moba(q: Tensor, cache: Cache, chunk: int, top_k: int) -> Tensor:
    """y of the cache's last T tokens. q (H, T, N) → (H, T, N)."""
    if top_k == 1 or len(cache) <= chunk * top_k:  # official code takes a single chunk for all of them
        return attend(q, cache.k, cache.v)
    return _one(q, cache, chunk, top_k) if q.shape[1] == 1 else _many(q, cache, chunk, top_k)


def _one(q: Tensor, cache: Cache, chunk: int, top_k: int) -> Tensor:
    H, _, N = q.shape
    c = (len(cache) - 1) // chunk  # its own chunk
    scores = q.float() @ cache.means(chunk)[:, :c].mT  # (H, 1, c)
    chosen = best(scores, min(top_k - 1, c)).view(H, -1).tolist()

    def seen(x: Tensor) -> Tensor:
        """(H, M, N) → (H, what each head sees, N)"""
        # As slices, which are copied whole: five times as fast as by index.
        chunks = [x[head, j * chunk : (j + 1) * chunk] for head, some in enumerate(chosen) for j in some]
        return torch.cat([torch.cat(chunks).view(H, -1, N), x[:, c * chunk :]], dim=1)

    return attend_all(q, seen(cache.k), seen(cache.v))


def _many(q: Tensor, cache: Cache, chunk: int, top_k: int) -> Tensor:
    y, weight = _own_chunks(q, cache, chunk)
    for head, queries, j in _choices(_chosen(q, cache, chunk, top_k)):
        keys = slice(j * chunk, (j + 1) * chunk)
        for some in torch.split(queries, QUERIES):
            part = attend_part(q[head, some], cache.k[head, keys], cache.v[head, keys])
            y[head, some], weight[head, some] = merge(y[head, some], weight[head, some], *part)
    return y.to(q.dtype)


def _own_chunks(q: Tensor, cache: Cache, chunk: int) -> tuple[Tensor, Tensor]:
    """Each query's part of its own chunk: y (H, T, N) and weight (H, T, 1), float32."""
    H, T, N = q.shape
    M = len(cache)
    y, weight = q.new_empty(H, T, N, dtype=torch.float32), q.new_empty(H, T, 1, dtype=torch.float32)
    first = M - T
    while first < M:
        start = first // chunk * chunk
        stop = min(first + QUERIES, start + chunk, M)
        some = slice(first - (M - T), stop - (M - T))
        seen = torch.arange(start, stop, device=q.device) <= torch.arange(first, stop, device=q.device)[:, None]
        y[:, some], weight[:, some] = attend_part(q[:, some], cache.k[:, start:stop], cache.v[:, start:stop], seen)
        first = stop
    return y, weight


def _chosen(q: Tensor, cache: Cache, chunk: int, top_k: int) -> Tensor:
    """The chunks that each head of each query chose beside its own, −1 where there are fewer: (H, T, top_k − 1)."""
    T, M = q.shape[1], len(cache)
    own = torch.arange(M - T, M, device=q.device)[:, None] // chunk  # (T, 1)
    earlier = cache.means(chunk)[:, : (M - 1) // chunk]  # (H, n, N)
    n = earlier.shape[1]
    some = min(top_k - 1, n)
    ranks, chunks = torch.arange(some, device=q.device), torch.arange(n, device=q.device)
    chosen = []
    for queries, mine in zip(torch.split(q, CHOOSING, dim=1), torch.split(own, CHOOSING), strict=True):
        scores = (queries.float() @ earlier.mT).masked_fill_(chunks >= mine, -torch.inf)  # (H, queries, n)
        chosen.append(torch.where(ranks < mine, best(scores, some), -1))
    return torch.cat(chosen, dim=1)


def _choices(chosen: Tensor) -> Iterator[tuple[int, Tensor, int]]:
    """Each head and chunk that some query chose, with those queries."""
    heads, queries, _ = torch.where(chosen >= 0)
    n = int(chosen.max()) + 1
    pairs = heads * n + chosen[chosen >= 0]
    sizes = torch.bincount(pairs, minlength=chosen.shape[0] * n).tolist()
    for pair, some in enumerate(torch.split(queries[pairs.argsort(stable=True)], sizes)):
        if len(some):
            yield pair // n, some, pair % n
