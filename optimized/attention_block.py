"""RWKV-X's other block: attention, and the channel mix of RWKV-7."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import Config
from ..traces import Policy
from . import ops
from .attention import attention
from .cache import Cache
from .tap import Tap


def attention_block(
    x: Tensor,
    p: Mapping[str, Any],
    ffn_x: Tensor,
    caches: Sequence[Cache],
    *,
    config: Config,
    policy: Policy,
    lengths: Sequence[int],
    see: Tap,
) -> Tensor:
    """x (B, T, D) after the block; ffn_x (B, D) and each sequence's cache advance in place, by its length."""
    eps, heads = config.layer_norm_eps, (*x.shape[:2], config.heads, config.head_size)

    # Attention: no token shift, no positions, no norms, no gate
    u = see("in", ops.layer_norm(x, p["ln1.weight"], p["ln1.bias"], eps))  # (B, T, D)
    q, k, v = (
        see(name, ops.linear(u, p[f"att.{matrix}.weight"]).view(heads))  # (B, T, H, N)
        for name, matrix in (("q", "receptance"), ("k", "key"), ("v", "value"))
    )
    y = torch.zeros_like(q)
    for b, (cache, n) in enumerate(zip(caches, lengths, strict=True)):
        y[b, :n] = attention(policy, q[b, :n], k[b, :n], v[b, :n], u[b, :n].view(n, *heads[2:]), cache)
    y = see("att", y)
    x = see("mid", x + see("out", ops.linear(y.flatten(2), p["att.output.weight"])))

    # Channel mix
    u = see("ffn.in", ops.layer_norm(x, p["ln2.weight"], p["ln2.bias"], eps))
    xk = see("ffn.xk", ops.token_shift(u, ffn_x, p["ffn.x_k"]))
    ffn_x.copy_(u[range(len(lengths)), [n - 1 for n in lengths]])
    h = see("ffn.k", ops.channel_mix_key(xk, p["ffn.key.weight"]))  # (B, T, F)
    return see("end", x + see("ffn.out", ops.linear(h, p["ffn.value.weight"])))
