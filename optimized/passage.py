"""Many tokens of each of a few sequences through a block of RWKV-7: a library's matrix products, and between them
compiled loops on the CPU."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import Config
from . import ops
from .compiled import block_kernels
from .step import show
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

    # Time mix
    x_in = x.float().contiguous()
    u, mixed = shifted(x_in, att_x, loops.LN1, loops.X_R, 6)
    xr, xw, xk, xv, xa, xg = mixed
    r, k, v = (ops.linear(x, p[f"att.{name}.weight"]) for x, name in ((xr, "receptance"), (xk, "key"), (xv, "value")))
    w = ops.lora(xw, p["att.w1"], p["att.w2"], torch.tanh)
    a = ops.lora(xa, p["att.a1"], p["att.a2"])
    lean = torch.zeros_like(v) if first is None else ops.lora(xv, p["att.v1"], p["att.v2"])  # of layer 0, never asked
    g = ops.gate(xg, p["att.g1"], p["att.g2"])
    first = v if first is None else first
    inputs = torch.stack([r, k, v, w, a, lean, g])
    rows = torch.empty(B, T, len(loops.SHOWN) if see is not unseen else 0, D)
    gated = torch.zeros(B, T, D)
    eps = np.float32(config.group_norm_eps)
    loops.recur(inputs.numpy(), first.numpy(), vectors, S.numpy(), np.array(lengths), eps, gated.numpy(), rows.numpy())
    att_out = ops.linear(gated, p["att.output.weight"])
    mid = x_in + att_out

    # Channel mix
    ffn_in, (ffn_xk,) = shifted(mid, ffn_x, loops.LN2, loops.FFN_X_K, 1)
    ffn_k = ops.channel_mix_key(ffn_xk, p["ffn.key.weight"])  # (B, T, F)
    ffn_out = ops.linear(ffn_k, p["ffn.value.weight"])
    out = (mid + ffn_out).to(x.dtype)

    show(
        see,
        config,
        rows,
        {
            **{"att.in": u, "att.xr": xr, "att.xw": xw, "att.xk": xk, "att.xv": xv, "att.xa": xa, "att.xg": xg},
            **{"att.out": att_out, "mid": mid},
            **{"ffn.in": ffn_in, "ffn.xk": ffn_xk, "ffn.k": ffn_k, "ffn.out": ffn_out, "out": out},
        },
    )
    return out, first
