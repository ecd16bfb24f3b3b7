"""The whole of RWKV-7 "Goose" and of RWKV-X on two pages: here, and the attention block in `attention_block.py`.

`tap(name, value)` is called for every named value and returns the value to go on with. Recording, feeding another
engine's values into the next formula, and rounding at each step are all of them taps; the model knows of none.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..checkpoint import Config
from ..traces import DENSE, Policy
from ._array import Array
from .attention import Written
from .attention_block import attention_block
from .bonus import bonus
from .channel_mix import channel_mix_key
from .decay import decay
from .embedding import embedding
from .gate import gate
from .gate_correction import gate_correction
from .group_norm import group_norm
from .in_context_rate import in_context_rate
from .k_update import k_update
from .l2norm import l2norm
from .layer_norm import layer_norm
from .linear import linear
from .token_shift import token_shift
from .v_first import v_first
from .wkv7 import wkv7

Tap = Callable[[str, Array], Array]
State = dict[str, Array]


def initial_state(config: Config, dtype: npt.DTypeLike = np.float64) -> State:
    """The state before the first token, by canonical name: zeros, and no keys.

    att_x and ffn_x (D), wkv (H, N, N) of each RWKV-7 block; k and v (0, D), ffn_x (D) of each attention block.
    """
    return {tensor.name: np.zeros(tensor.shape({**config.dims, "M": 0}), dtype) for tensor in config.state}


def forward(
    weights: Mapping[str, Array],
    config: Config,
    tokens: Sequence[int],
    state: Mapping[str, Array],
    tap: Tap = lambda name, value: value,
    attention: Policy = DENSE,
) -> tuple[Array, State]:
    """Logits (T, V) for T tokens, and the state after them. The given state is left as it was.

    `weights` are those of `Checkpoint.weights(dtype)`, or `quantise` of them; the whole run is in their dtype.
    `attention` is the policy of an RWKV-X's attention blocks.
    """
    if config.attention_layers:
        attention.check_room(len(state["moba.0.state.k"]), len(tokens))
    eps, heads = config.layer_norm_eps, (len(tokens), config.heads, config.head_size)
    after: State = {}
    first: Array | None = None  # layer 0's value, (T, D)
    written: Written | None = None  # what the last RWKV-7 block wrote

    ln0 = "blocks.0.ln0"
    x = tap(
        "emb",
        embedding(np.asarray(tokens), weights["emb.weight"], weights[f"{ln0}.weight"], weights[f"{ln0}.bias"], eps),
    )
    for block in config.blocks:

        def p(name: str, block: str = block) -> Array:
            return weights[f"{block}.{name}"]

        def see(name: str, value: Array, block: str = block) -> Array:
            return tap(f"{block}.{name}", value)

        if block.startswith("moba."):
            before = {name: state[f"{block}.state.{name}"] for name in ("k", "v", "ffn_x")}
            x, kept = attention_block(x, p, before, written, attention, eps, see)
            after |= {f"{block}.state.{name}": value for name, value in kept.items()}
            continue
        head = {name: p(f"att.{name}").reshape(heads[1:]) for name in ("k_k", "k_a", "r_k")}  # (H, N)

        # Time mix
        u = see("att.in", layer_norm(x, p("ln1.weight"), p("ln1.bias"), eps))  # (T, D)
        last = state[f"{block}.state.att_x"]
        xr, xw, xk, xv, xa, xg = (see(f"att.x{c}", token_shift(u, last, p(f"att.x_{c}"))) for c in "rwkvag")
        r = see("att.r", linear(xr, p("att.receptance.weight")).reshape(heads))  # (T, H, N) from here to wkv
        w = see("att.w", decay(xw, p("att.w0"), p("att.w1"), p("att.w2")).reshape(heads))
        k = see("att.k", linear(xk, p("att.key.weight")).reshape(heads))
        v = see("att.v", linear(xv, p("att.value.weight")).reshape(heads))
        a = see("att.a", in_context_rate(xa, p("att.a0"), p("att.a1"), p("att.a2")).reshape(heads))
        kk = see("att.kk", l2norm(k, head["k_k"]))
        k = see("att.k_mod", k_update(k, a, head["k_a"]))
        v = v.reshape(len(v), -1)  # (T, D)
        if first is None:
            first = v
        else:
            v = v_first(v, first, xv, p("att.v0"), p("att.v1"), p("att.v2"))
        v = see("att.v_mix", v.reshape(heads))
        g = see("att.g", gate(xg, p("att.g1"), p("att.g2")))  # (T, D)
        y, after[f"{block}.state.wkv"] = wkv7(r, w, k, v, kk, a, state[f"{block}.state.wkv"])
        written = after[f"{block}.state.wkv"], k, v
        y = see("att.wkv", y)
        norm = see("att.norm", group_norm(y, p("att.ln_x.weight"), p("att.ln_x.bias"), config.group_norm_eps))  # (T, D)
        extra = see("att.bonus", bonus(r, k, v, head["r_k"]))
        gated = see("att.gated", gate_correction(norm, extra, g))
        x = see("mid", x + see("att.out", linear(gated, p("att.output.weight"))))
        after[f"{block}.state.att_x"] = u[-1]

        # Channel mix
        u = see("ffn.in", layer_norm(x, p("ln2.weight"), p("ln2.bias"), eps))
        xk = see("ffn.xk", token_shift(u, state[f"{block}.state.ffn_x"], p("ffn.x_k")))
        h = see("ffn.k", channel_mix_key(xk, p("ffn.key.weight")))  # (T, F)
        x = see("out", x + see("ffn.out", linear(h, p("ffn.value.weight"))))
        after[f"{block}.state.ffn_x"] = u[-1]

    x = tap("ln_out", layer_norm(x, weights["ln_out.weight"], weights["ln_out.bias"], eps))
    return tap("logits", linear(x, weights["head.weight"])), after
