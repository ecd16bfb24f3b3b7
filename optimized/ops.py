"""The formulas of RWKV-7, each in one place: prefill, decode and `apply` all come here.

Leading axes are free: x is (..., D), a per-head value (..., H, N). Matrices are [in, out]. Results have the dtype of
the inputs, except the decay, which is float32 always.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .products import Weight, product

DECAY_SCALE = -math.exp(-0.5) / math.log(2)  # w = exp(−e^(−1/2) · σ) = 2^(DECAY_SCALE · σ)


def linear(x: Tensor, weight: Weight) -> Tensor:
    """x W for each token. x (..., in), weight (in, out) or as it is kept → (..., out)."""
    return product(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], -1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """LayerNorm over the D channels of each token."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def embedding(emb: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The table with ln0 folded in: a row's norm depends on nothing but the row. emb (V, D) → (V, D)."""
    return layer_norm(emb, weight, bias, eps)


def token_shift(x: Tensor, previous: Tensor, mix: Tensor) -> Tensor:
    """x_t + (x_{t−1} − x_t) · mix. x (B, T, D), previous (B, D), mix (D) → (B, T, D); mix (6, 1, 1, D) gives six."""
    shifted = torch.cat([previous[:, None].to(x.dtype), x[:, :-1]], dim=1)  # (B, T, D)
    return torch.addcmul(x, shifted - x, mix)


def lora(x: Tensor, down: Tensor, up: Tensor, activation: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """activation(x A) B. x (..., D), A (D, rank), B (rank, D) → (..., D)."""
    hidden = linear(x, down)  # (..., rank)
    return linear(hidden if activation is None else activation(hidden), up)


def decay(xw: Tensor, w0: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """w = exp(−e^(−1/2) · σ(w0 + tanh(xw w1) w2)), float32 from w0 on: it is close to 1, and its powers matter.

    As a power of 2, because torch hands `exp` to MKL, which wakes its threads for a single row and slows decode down.
    """
    level = w0 + lora(xw, w1, w2, torch.tanh).float()
    return torch.exp2(torch.sigmoid(level) * DECAY_SCALE)


def in_context_rate(xa: Tensor, a0: Tensor, a1: Tensor, a2: Tensor) -> Tensor:
    """a = σ(a0 + (xa a1) a2)."""
    return torch.sigmoid(a0 + lora(xa, a1, a2))


def gate(xg: Tensor, g1: Tensor, g2: Tensor) -> Tensor:
    """g = σ(xg g1) g2."""
    return lora(xg, g1, g2, torch.sigmoid)


def l2norm(k: Tensor, k_k: Tensor) -> Tensor:
    """kk = z / max(‖z‖₂, 1e-12) with z = k · k_k, over each head. float32 inside: 1e-12 is zero in float16."""
    z = k.float() * k_k.float()
    return (z / torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp_min(1e-12)).to(k.dtype)


def k_update(k: Tensor, a: Tensor, k_a: Tensor) -> Tensor:
    """k̃ = k · (1 + (a − 1) · k_a)."""
    return k * (1 + (a - 1) * k_a)


def v_first(v: Tensor, first: Tensor, xv: Tensor, v0: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
    """ṽ = v + (v_first − v) · σ(v0 + (xv v1) v2). All (..., D)."""
    return torch.addcmul(v, first - v, torch.sigmoid(v0 + lora(xv, v1, v2)))


def group_norm(y: Tensor, weight: Tensor, bias: Tensor, eps: float = 64e-5) -> Tensor:
    """GroupNorm, a group a head. y (..., H, N), weight and bias (D) → (..., D)."""
    variance, mean = torch.var_mean(y.float(), dim=-1, correction=0, keepdim=True)  # (..., H, 1)
    normed = ((y - mean) * torch.rsqrt(variance + eps)).flatten(-2)  # (..., D)
    return torch.addcmul(bias, normed.to(y.dtype), weight)


def bonus(r: Tensor, k: Tensor, v: Tensor, r_k: Tensor) -> Tensor:
    """b_h = (Σ_j r_hj k_hj r_k_hj) · v_h. (..., H, N) → (..., D)."""
    return ((r * k * r_k).sum(dim=-1, keepdim=True) * v).flatten(-2)


def gate_correction(norm: Tensor, bonus: Tensor, g: Tensor) -> Tensor:
    """(norm + bonus) · g."""
    return (norm + bonus) * g


def channel_mix_key(xk: Tensor, key: Weight) -> Tensor:
    """relu(xk W_key)². xk (..., D), key (D, F) → (..., F)."""
    return torch.relu_(linear(xk, key)).square_()  # in place: there is no larger value


def channel_mix(xk: Tensor, key: Weight, value: Weight) -> Tensor:
    """relu(xk W_key)² W_value. key (D, F), value (F, D) → (..., D)."""
    return linear(channel_mix_key(xk, key), value)
