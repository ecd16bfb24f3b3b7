"""RWKV-7, or an RWKV-X, over B sequences of T tokens at once."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..traces import Policy
from . import ops
from .attention_block import attention_block
from .passage import block_passage
from .state import State
from .step import block_step
from .tap import Tap
from .weights import Weights
from .wkv import wkv7


@torch.inference_mode()
@np.errstate(all="ignore")  # infinities and NaN are the caller's to judge, on numpy's path as on torch's
def forward(
    weights: Weights,
    tokens: Tensor,
    state: State,
    *,
    chunk: int,
    attention: Policy,
    lengths: Tensor | None = None,
    last_only: bool = False,
    tap: Callable[[str], Tap],
) -> Tensor:
    """Logits (B, T, V) of tokens (B, T), or (B, 1, V) of the last; `state` advances in place.

    Rows may end before T: `lengths` (B) then says where, and each row's state stops there. `tap(prefix)` gives the
    function that sees the values whose names start with that prefix.
    """
    B, T = tokens.shape
    config = weights.config
    eps, heads = config.layer_norm_eps, (B, T, config.heads, config.head_size)
    last: tuple[slice | Tensor, int | Tensor] = (slice(None), -1)  # where each row ends
    alive: Tensor | None = None  # which tokens come before that
    ends = [T] * B
    if lengths is not None:
        ends = lengths.tolist()
        last = (torch.arange(B, device=tokens.device), lengths - 1)
        alive = torch.arange(T, device=tokens.device) < lengths[:, None]  # (B, T)
    first: Tensor | None = None  # layer 0's value

    see = tap("")
    x = see("emb", weights.emb[tokens])  # (B, T, D)
    for block, p in weights.blocks.items():
        see, i = tap(f"{block}."), int(block.partition(".")[2])
        if block.startswith("moba."):
            mine = state.moba_x[i], state.caches[i]
            x = attention_block(x, p, *mine, config=config, policy=attention, lengths=ends, see=see)
            continue
        if weights.compiled and T == 1:
            x, first = block_step(x, first, p["packed"], state.block(i), config=config, see=see)
            continue
        if weights.in_passages:
            x, first = block_passage(x, first, p, state.block(i), lengths=ends, config=config, see=see)
            continue

        # Time mix
        u = see("att.in", ops.layer_norm(x, p["ln1.weight"], p["ln1.bias"], eps))
        shifted = ops.token_shift(u, state.att_x[i], p["att.x_rwkvag"])  # (6, B, T, D)
        state.att_x[i] = u[last]
        xr, xw, xk, xv, xa, xg = (see(f"att.x{c}", x_c) for c, x_c in zip("rwkvag", shifted, strict=True))
        r = see("att.r", ops.linear(xr, p["att.receptance.weight"]).view(heads))  # (B, T, H, N) from here to wkv
        w = see("att.w", ops.decay(xw, p["att.w0"], p["att.w1"], p["att.w2"]).view(heads))
        k = see("att.k", ops.linear(xk, p["att.key.weight"]).view(heads))
        v = ops.linear(xv, p["att.value.weight"])  # (B, T, D)
        see("att.v", v.view(heads))
        a = see("att.a", ops.in_context_rate(xa, p["att.a0"], p["att.a1"], p["att.a2"]).view(heads))
        kk = see("att.kk", ops.l2norm(k, p["att.k_k"]))
        k = see("att.k_mod", ops.k_update(k, a, p["att.k_a"]))
        if first is None:
            first = v
        else:
            v = ops.v_first(v, first, xv, p["att.v0"], p["att.v1"], p["att.v2"])
        v = see("att.v_mix", v.view(heads))
        g = see("att.g", ops.gate(xg, p["att.g1"], p["att.g2"]))  # (B, T, D)
        y = see("att.wkv", wkv7(r, w, k, v, kk, a, state.wkv[i], chunk=chunk, alive=alive))
        norm = see("att.norm", ops.group_norm(y, p["att.ln_x.weight"], p["att.ln_x.bias"], config.group_norm_eps))
        extra = see("att.bonus", ops.bonus(r, k, v, p["att.r_k"]))  # (B, T, D)
        gated = see("att.gated", ops.gate_correction(norm, extra, g))
        x = see("mid", x + see("att.out", ops.linear(gated, p["att.output.weight"])))

        # Channel mix
        u = see("ffn.in", ops.layer_norm(x, p["ln2.weight"], p["ln2.bias"], eps))
        xk = see("ffn.xk", ops.token_shift(u, state.ffn_x[i], p["ffn.x_k"]))
        state.ffn_x[i] = u[last]
        h = see("ffn.k", ops.channel_mix_key(xk, p["ffn.key.weight"]))  # (B, T, F)
        x = see("out", x + see("ffn.out", ops.linear(h, p["ffn.value.weight"])))

    see = tap("")
    x = x[:, -1:] if last_only else x
    x = see("ln_out", ops.layer_norm(x, *weights.ln_out, eps))
    return see("logits", ops.linear(x, weights.head))  # (B, T, V)
