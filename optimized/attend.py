"""Softmax attention, heads first: queries (H, T, N), keys and values (H, M, N)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

QUERIES = 256  # at a time: the scores of a long text are never in memory at once


def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """softmax(q kᵀ / √N) v, where the queries are the keys' last and see those before and themselves: all of them, or
    the last `window`."""
    T, M = q.shape[1], k.shape[1]
    window = M if window is None else window
    if T == 1:
        return attend_all(q, k[:, -window:], v[:, -window:])
    y = torch.empty_like(q)
    for start in range(0, T, QUERIES):
        some = slice(start, min(T, start + QUERIES))
        stop = M - T + some.stop
        oldest = max(0, M - T + start + 1 - window)
        own = torch.arange(M - T + start, stop, device=q.device)[:, None]
        keys = torch.arange(oldest, stop, device=q.device)
        seen = (keys <= own) & (keys > own - window)  # (queries, keys)
        y[:, some] = _sdpa(q[:, some], k[:, oldest:stop], v[:, oldest:stop], seen)
    return y


def attend_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same for a single query, which sees every key."""
    # While a single token goes through compiled loops torch has one thread, and numpy's pool multiplies faster.
    if q.is_cpu and q.dtype == torch.float32 and torch.get_num_threads() == 1:
        return torch.from_numpy(_attend_all(*(x.numpy() for x in (q, k, v))))
    return _sdpa(q, k, v)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    dtype = q.dtype
    if q.is_cpu:  # torch's kernels for 16 bits take up to eight times as long there
        q, k, v = q.float(), k.float(), v.float()
    return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen)[0].to(dtype)


def _attend_all(q: Any, k: Any, v: Any) -> Any:
    scores = (q * np.float32(q.shape[-1] ** -0.5)) @ k.swapaxes(1, 2)  # (H, 1, M)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return (scores @ v) / scores.sum(axis=-1, keepdims=True)


def attend_part(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What `merge` needs of some of the keys, in float32: their softmax's y and its denominator's logarithm."""
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5  # (..., T, M)
    if seen is not None:
        scores.masked_fill_(~seen, -torch.inf)
    largest = scores.amax(dim=-1, keepdim=True)  # (..., T, 1)
    scores.sub_(largest).exp_()
    total = scores.sum(dim=-1, keepdim=True)
    return scores @ v.float() / total, total.log() + largest


def merge(y: Tensor, weight: Tensor, part: Tensor, part_weight: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax over the keys of both."""
    both = torch.logaddexp(weight, part_weight)
    return y * torch.exp(weight - both) + part * torch.exp(part_weight - both), both


def best(scores: Tensor, number: int) -> Tensor:
    """The indices of the largest scores of each row, of equal ones the lower index first. Overwrites `scores`."""
    found = []
    for _ in range(number):
        found.append(scores.argmax(dim=-1, keepdim=True))  # the first of equals; `topk` promises none
        scores.scatter_(-1, found[-1], -torch.inf)
    return torch.cat(found, dim=-1) if found else scores.new_empty(*scores.shape[:-1], 0, dtype=torch.int64)
