"""The attention of PyPI rwkv-x with its parameters for long texts (its model_old.py): fast, and not the same for every
way to cut a text into calls."""

import torch
from torch import Tensor

from ..traces import Package
from .attend import QUERIES, attend, attend_all, best
from .cache import Cache


def package(policy: Package, q: Tensor, k: Tensor, v: Tensor, u: Tensor, cache: Cache) -> Tensor:
    """y of T tokens that the cache does not hold yet. (H, T, N) each; u is what q, k and v were made of."""
    T = q.shape[1]
    if policy.evict_at and len(cache) > max(policy.evict_at, policy.keep):
        _evict(cache, q if T == 1 else u, policy.keep, policy.window)  # a long call votes with u: so does the package
    past = len(cache)
    cache.append(k, v)
    if T == 1 and past > policy.short:
        return _best_chunks(q, cache, policy.chunk, policy.top_k)
    if T == 1 or past + T <= policy.short:
        return attend(q, cache.k, cache.v)
    cut = zip(*(torch.split(x, policy.chunk, dim=1) for x in (q, k, v)), strict=True)  # from the call's start
    return torch.cat([attend(*chunk) for chunk in cut], dim=1)


def _best_chunks(q: Tensor, cache: Cache, chunk: int, top_k: int) -> Tensor:
    """One query, which all heads together let see the best whole chunks of those before it, and what is after them."""
    whole = (len(cache) - 1) // chunk
    means = cache.means(chunk)[:, :whole]  # (H, whole, N)
    chosen = best((q.float() @ means.mT).sum(dim=0), min(top_k, whole))[0].tolist()

    def seen(x: Tensor) -> Tensor:
        """(H, M, N) → (H, what is seen, N)"""
        return torch.cat([*(x[:, j * chunk : (j + 1) * chunk] for j in chosen), x[:, whole * chunk :]], dim=1)

    return attend_all(q, seen(cache.k), seen(cache.v))


def _evict(cache: Cache, observed: Tensor, keep: int, window: int) -> None:
    """Keep the newest `window` tokens and, for each head, those of the older ones that `observed` looks at most."""
    H, _, N = observed.shape
    M = len(cache)
    old = cache.k[:, : M - window].float()
    votes = observed.new_zeros(H, M - window, dtype=torch.float32)
    for some in torch.split(observed, QUERIES, dim=1):
        votes += torch.softmax(some.float() @ old.mT * N**-0.5, dim=-1).sum(dim=1)
    kept = votes.sort(dim=-1, descending=True, stable=True).indices[:, : keep - window]  # in the order of their votes
    newest = torch.arange(M - window, M, device=votes.device).expand(H, window)
    cache.select(torch.cat([kept, newest], dim=1))
