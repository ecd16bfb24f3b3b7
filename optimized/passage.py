"""Many tokens of each of a few sequences through a block of RWKV-7: a library's matrix products, and between them
compiled loops on the CPU."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import Config
from .compiled import block_kernels
from .products import product
from .step import PER_HEAD
from .tap import Tap, unseen

__all__ = ["block_passage"]


def block_passage(
    x: Tensor,
    first: Tensor | None,
    p: dict[str, Any],
    state: tuple[Tensor, Tensor, Tensor],
    *,
    lengths: list[int],
    config: Config,
    see: Tap,
) -> tuple[Tensor, Tensor]:
    """x (B, T, D) after the block, and layer 0's v in float32. The states att_x, S and ffn_x of B sequences advance in
    place, each by its length. Inside everything is float32; x comes and goes in the model's dtype."""
    loops = block_kernels()
    B, T, D = x.shape
    vectors = p["packed"].vectors
    att_x, S, ffn_x = state
    ends = range(B), [length - 1 for length in lengths]

    def shifted(x: Tensor, previous: Tensor, norm: int, mix: int, number: int) -> tuple[Tensor, Tensor]:
        """ln(x), and as many token shifts of it; `previous` becomes what the next call's first token is mixed with."""
        u, mixed = torch.empty(B, T, D), torch.empty(number, B, T, D)
        eps = np.float32(config.layer_norm_eps)
        loops.shifted_inputs(x.numpy(), previous.numpy(), vectors, norm, mix, eps, u.numpy(), mixed.numpy())
        previous.copy_(u[ends])
        return u, mixed

    def through(x: Tensor, name: str) -> Tensor:
        return product(x.view(B * T, -1), p[name])  # (B · T, out)

    # Time mix
    x_in = x.float().contiguous()
    u, mixed = shifted(x_in, att_x, loops.LN1, loops.X_R, 6)
    xr, xw, xk, xv, xa, xg = mixed
    r, k, v = (through(x, f"att.{name}.weight") for x, name in ((xr, "receptance"), (xk, "key"), (xv, "value")))
    lora = {"w": through(xw, "att.w1").tanh_(), "a": through(xa, "att.a1"), "g": through(xg, "att.g1").sigmoid_()}
    w, a, g = (through(hidden, f"att.{name}2") for name, hidden in lora.items())
    lean = torch.zeros_like(v) if first is None else through(through(xv, "att.v1"), "att.v2")  # of layer 0, never asked
    inputs = torch.stack([r, k, v, w, a, lean, g]).view(7, B, T, D)
    first = inputs[2] if first is None else first
    shown = torch.empty(B, T, len(loops.SHOWN) if see is not unseen else 0, D)
    gated = torch.zeros(B, T, D)
    eps = np.float32(config.group_norm_eps)
    ends_at = np.array(lengths)
    loops.recur(inputs.numpy(), first.numpy(), vectors, S.numpy(), ends_at, eps, gated.numpy(), shown.numpy())
    att_out = through(gated, "att.output.weight").view(B, T, D)
    mid = x_in + att_out

    # Channel mix
    ffn_in, mixed = shifted(mid, ffn_x, loops.LN2, loops.FFN_X_K, 1)
    ffn_k = through(mixed[0], "ffn.key.weight")  # (B · T, F)
    loops.squared_relu(ffn_k.numpy())
    ffn_out = through(ffn_k, "ffn.value.weight").view(B, T, D)
    out = (mid + ffn_out).to(x.dtype)

    if see is not unseen:
        beside = {"att.in": u, **dict(zip(loops.SHOWN[1:7], (xr, xw, xk, xv, xa, xg), strict=True)), "att.out": att_out}
        beside |= {"mid": mid, "ffn.in": ffn_in, "ffn.xk": mixed[0], "ffn.out": ffn_out, "out": out}
        heads = B, T, config.heads, config.head_size
        for i, name in enumerate(loops.SHOWN):
            if name == "ffn.out":
                see("ffn.k", ffn_k.view(B, T, -1))
            value = beside[name] if name in beside else shown[:, :, i]
            see(name, value.view(heads) if name in PER_HEAD else value)
    return out, first
