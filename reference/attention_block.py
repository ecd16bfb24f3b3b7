"""The attention block of RWKV-X."""

from collections.abc import Callable, Mapping

from ..traces import Policy
from ._array import Array
from .attention import Cache, Written, attention
from .channel_mix import channel_mix_key
from .layer_norm import layer_norm
from .linear import linear
from .token_shift import token_shift

WIDTH = 64  # of a head, whatever the RWKV-7 blocks have: the official code divides the width by 64


def attention_block(
    x: Array,
    p: Callable[[str], Array],
    state: Mapping[str, Array],
    written: Written | None,
    policy: Policy,
    eps: float,
    see: Callable[[str, Array], Array],
) -> tuple[Array, dict[str, Array]]:
    """x ← x + W_o attention(LN(x; ln1)), then x ← x + ChannelMix(LN(x; ln2)), whose token shift is the block's own.

    No token shift, position code, gate, bias or norm in the attention itself; v_first passes by. x (T, D), `p` gives
    the block's weights by name, `state` its k and v (M, D) and ffn_x (D) → x (T, D) and the state after it.
    Source: RWKV-X `pretrain/src/model.py`, and the package's `SparseAttentionBlock`.
    """
    heads = (-1, x.shape[1] // WIDTH, WIDTH)
    u = see("in", layer_norm(x, p("ln1.weight"), p("ln1.bias"), eps))  # (T, D)
    q = see("q", linear(u, p("att.receptance.weight")).reshape(heads))  # (T, H, N)
    k = see("k", linear(u, p("att.key.weight")).reshape(heads))
    v = see("v", linear(u, p("att.value.weight")).reshape(heads))
    cache = Cache(state["k"].reshape(heads), state["v"].reshape(heads))
    y, cache = attention(policy, q, k, v, cache, u.reshape(heads), written)
    y = see("att", y).reshape(x.shape)
    x = see("mid", x + see("out", linear(y, p("att.output.weight"))))

    u = see("ffn.in", layer_norm(x, p("ln2.weight"), p("ln2.bias"), eps))
    xk = see("ffn.xk", token_shift(u, state["ffn_x"], p("ffn.x_k")))
    h = see("ffn.k", channel_mix_key(xk, p("ffn.key.weight")))  # (T, F)
    x = see("end", x + see("ffn.out", linear(h, p("ffn.value.weight"))))
    flat = (len(cache.keys), x.shape[1])
    return x, {"k": cache.keys.reshape(flat), "v": cache.values.reshape(flat), "ffn_x": u[-1]}
