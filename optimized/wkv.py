"""The recurrence: one token as written, many tokens as matrix products over chunks.

With S [value, key] and rows for tokens, S_t = S_{t−1} diag(w_t) + u_t b_tᵀ + v_t k_tᵀ where b = kk · a and
u_t = −S_{t−1} kk_t. Let W_t be the product of the decays from a chunk's start through t, and S the state at its start:

    A_t = −kk_t · W_{t−1}    R_t = r_t · W_t    B_t = b_t / W_t    K_t = k_t / W_t         (C, N) each
    U = A Sᵀ + [A Bᵀ]₋ U + [A Kᵀ]₋ V          [ ]₋ keeps the entries below the diagonal:
    Y = R Sᵀ + [R Bᵀ]  U + [R Kᵀ]  V          a token is read after it is written, removed from before
    S ← (S + Uᵀ B + Vᵀ K) diag(W_C)

The first line is a triangular system, solved for all chunks at once as U = P Sᵀ + Q; only S goes from chunk to chunk.
Kept entries are products of a W and an older 1/W: never above the decay's own 1, however large 1/W is by itself.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK, LONGEST_CHUNK = 16, 32  # a decay is above 0.545: over 32 tokens 1/W stays below 3e8, far inside float32


def wkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    kk: Tensor,
    a: Tensor,
    S: Tensor,
    *,
    chunk: int = CHUNK,
    alive: Tensor | None = None,
) -> Tensor:
    """y_t = S_t r_t for each token, S advanced in place. Inputs (B, T, H, N), S (B, H, N, N) float32 → (B, T, H, N).

    A token that is not `alive` (B, T) leaves S alone; its y means nothing.
    """
    dtype = r.dtype
    r, k, v, kk, b = r.float(), k.float(), v.float(), kk.float(), kk.float() * a.float()
    if alive is not None:
        there = alive[..., None, None]
        w = torch.where(there, w, 1)
        k, v, kk, b = (torch.where(there, x, 0) for x in (k, v, kk, b))
    if r.shape[1] > 1:
        y = _chunked(r, w, k, v, kk, b, S, chunk)
    elif S.is_cpu:  # as numpy views, whose small operations cost less than torch's
        y = torch.from_numpy(_step(*(x.numpy() for x in (r, w, k, v, kk, b, S))))
    else:
        y = _step(r, w, k, v, kk, b, S)
    return y.to(dtype)


def _step(r: Any, w: Any, k: Any, v: Any, kk: Any, b: Any, S: Any) -> Any:
    """One token, (B, 1, H, N) each: arrays of torch or of numpy."""
    S = S[:, None]  # (B, 1, H, N, N)
    removed = S @ kk[..., None]  # (B, 1, H, N, 1), of S before it decays
    S *= w[..., None, :]
    S += v[..., None] * k[..., None, :] - removed * b[..., None, :]
    return (S @ r[..., None])[..., 0]


def _chunked(r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, b: Tensor, S: Tensor, chunk: int) -> Tensor:
    """T tokens, (B, T, H, N) each."""
    B, T, H, N = r.shape
    C = min(chunk, T)
    n = -(-T // C)

    def split(x: Tensor, fill: float = 0) -> Tensor:
        """(B, T, H, N) → (n, B, H, C, N). The last chunk is filled up with tokens that leave S alone."""
        return F.pad(x, (0, 0, 0, 0, 0, n * C - T), value=fill).view(B, n, C, H, N).permute(1, 0, 3, 2, 4)

    r, k, v, kk, b = (split(x) for x in (r, k, v, kk, b))
    W = split(w, fill=1).cumprod(dim=-2)  # (n, B, H, C, N) from here on
    W_before = F.pad(W[..., :-1, :], (0, 0, 1, 0), value=1)
    reads = torch.cat([-kk * W_before, r * W], dim=-2)  # A over R: (n, B, H, 2C, N)
    writes = torch.cat([b / W, k / W], dim=-2)  # B over K

    past = torch.ones(C, C, dtype=torch.bool, device=r.device).tril()
    seen = torch.cat([past.tril(-1), past]).repeat(1, 2)  # (2C, 2C)
    M = torch.where(seen, reads @ writes.mT, 0)  # selected, not multiplied: what is not seen may be large
    A, R = reads.chunk(2, dim=-2)
    AB, AK = M[..., :C, :].chunk(2, dim=-1)
    PQ = torch.linalg.solve_triangular(-AB, torch.cat([A, AK @ v], dim=-1), upper=False, unitriangular=True)
    P, Q = PQ.chunk(2, dim=-1)

    W_C = W[..., -1:, :]  # (n, B, H, 1, N)
    writes = writes * W_C
    UV = torch.cat([Q, v], dim=-2)  # (n, B, H, 2C, N): U still lacks P Sᵀ
    starts = S.new_empty(n, *S.shape)
    for c in range(n):
        starts[c] = S
        UV[c, ..., :C, :] += P[c] @ S.mT
        S.mul_(W_C[c]).add_(UV[c].mT @ writes[c])
    y = R @ starts.mT + M[..., C:, :] @ UV
    return y.permute(1, 0, 3, 2, 4).reshape(B, n * C, H, N)[:, :T]
