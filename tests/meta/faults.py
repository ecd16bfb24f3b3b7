"""Faults of real ports, as edits of the fast engine: each must be found, and named by its tap or path.

An edit is (file, what stands there, what the fault puts there). All of an edit's text must be found, or the test that
uses it fails: a fault that is no longer injected proves nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One fault, its edits, and what a failing check must say of it."""

    name: str
    edits: tuple[tuple[str, str, str], ...]
    check: str  # a check that must fail
    where: str  # the first finding of that check: the tap or the state, without its block's number
    path: str = ""  # how the path of that finding must begin
    also: frozenset[str] = frozenset()  # other taps that the edits make wrong in themselves
    options: tuple[str, ...] = ("--model", "golden:adversarial")


MODEL, OPS, WKV, WEIGHTS = (f"optimized/{name}.py" for name in ("model", "ops", "wkv", "weights"))
ATTENTION, ATTEND, INT8 = (f"optimized/{name}.py" for name in ("attention", "attend", "int8"))
HYBRID = ("--model", "golden:hybrid")

# A rotation of q and k by position, as transformers have it.
ROPE = """
    import torch
    turn = torch.arange(len(cache), len(cache) + q.shape[1])[:, None] * 10000.0 ** -(torch.arange(32) / 32)
    q, k = (
        torch.cat([a * turn.cos() - b * turn.sin(), b * turn.cos() + a * turn.sin()], dim=-1)
        for a, b in (x.chunk(2, dim=-1) for x in (q, k))
    )
    cache.append(k, v)
"""

FAULTS = (
    Fault(
        "decay before read",
        (
            (WKV, "removed = S @ kk[..., None]", "removed = (S * w[..., None, :]) @ kk[..., None]"),
            (WKV, "-kk * W_before", "-kk * W"),
        ),
        "layer.isolated",
        "att.wkv",
    ),
    Fault(
        "GroupNorm eps 1e-5",
        ((MODEL, "config.group_norm_eps", "1e-5"),),
        "layer.isolated",
        "att.norm",
    ),
    Fault(
        "sigmoid of the gate outside",
        ((OPS, "return lora(xg, g1, g2, torch.sigmoid)", "return torch.sigmoid(lora(xg, g1, g2))"),),
        "layer.isolated",
        "att.g",
    ),
    Fault(
        "v_first from the previous layer",
        (
            (
                MODEL,
                'v = see("att.v_mix", v.view(heads))',
                'first = v\n        v = see("att.v_mix", v.view(heads))',
            ),
        ),
        "layer.isolated",
        "att.v_mix",
    ),
    Fault(
        "k_a update dropped",
        ((OPS, "return k * (1 + (a - 1) * k_a)", "return k"),),
        "layer.isolated",
        "att.k_mod",
    ),
    Fault(
        "kk from the updated k",
        ((MODEL, 'ops.l2norm(k, p["att.k_k"])', 'ops.l2norm(ops.k_update(k, a, p["att.k_a"]), p["att.k_k"])'),),
        "layer.isolated",
        "att.kk",
    ),
    Fault(
        "bonus before the norm",
        (
            (MODEL, "ops.group_norm(y, ", 'ops.group_norm(y + ops.bonus(r, k, v, p["att.r_k"]).view(heads), '),
            (MODEL, "ops.gate_correction(norm, extra, g)", "ops.gate_correction(norm, 0 * extra, g)"),
        ),
        "layer.isolated",
        "att.norm",
        also=frozenset({"att.gated"}),
    ),
    Fault(
        "shift state not written back",
        ((MODEL, "state.att_x[i] = u[last]", "pass"),),
        "path.split",
        "state.att_x",
        "prefill",
    ),
    Fault(
        "state transposed at hand-off",
        (
            (
                MODEL,
                "        norm = see(",
                "        state.wkv[i] = state.wkv[i].mT.clone()\n        norm = see(",
            ),
        ),
        "path.split",
        "state.wkv",
        "prefill",
    ),
    Fault(
        "channel-mix shift taken from the time mix",
        ((MODEL, "ops.token_shift(u, state.ffn_x[i]", "ops.token_shift(u, state.att_x[i]"),),
        "layer.isolated",
        "ffn.xk",
    ),
    Fault(
        "tanh dropped",
        ((OPS, "lora(xw, w1, w2, torch.tanh)", "lora(xw, w1, w2)"),),
        "layer.isolated",
        "att.w",
    ),
    Fault(
        "ln0 dropped",
        ((WEIGHTS, "emb=embedding(emb, ", "emb=(lambda table, *_: table)(emb, "),),
        "layer.isolated",
        "emb",
    ),
    # Small ones: what they change is a few bounds only. A looser tolerance lets them through.
    Fault(
        "decay constant of four digits",
        ((OPS, "DECAY_SCALE = -math.exp(-0.5)", "DECAY_SCALE = -0.6065"),),
        "layer.isolated",
        "att.w",
    ),
    Fault(
        "l2norm clamp of 1e-11",
        ((OPS, "clamp_min(1e-12)", "clamp_min(1e-11)"),),
        "layer.isolated",
        "att.kk",
    ),
    Fault(
        "value residual in float16",
        ((OPS, "return torch.addcmul(v, first - v,", "return torch.addcmul(v, (first - v).half().float(),"),),
        "layer.isolated",
        "att.v_mix",
    ),
    # RWKV-X
    Fault(
        "RoPE added", ((ATTENTION, "\n    cache.append(k, v)\n", ROPE),), "layer.isolated", "moba.att", options=HYBRID
    ),
    Fault(
        "mask not causal",
        ((ATTEND, "seen = (keys <= own) & (keys > own - window)", "seen = keys > own - window"),),
        "layer.isolated",
        "moba.att",
        options=HYBRID,
    ),
    Fault(
        "cache not appended",
        ((ATTENTION, "\n    cache.append(k, v)\n", "\n    cache = cache.copy()\n    cache.append(k, v)\n"),),
        "path.split",
        "moba.state.k",
        "prefill",
        options=HYBRID,
    ),
    Fault(
        "wrong block order",
        ((WEIGHTS, "for block in config.blocks}", "for block in sorted(config.blocks)}"),),
        "layer.isolated",
        "moba.in",
        also=frozenset({"moba.mid", "att.in", "mid"}),
        options=HYBRID,
    ),
    Fault(
        "channel-mix state shared with the previous block",
        ((MODEL, "mine = state.moba_x[i], ", "mine = state.ffn_x[3 * i + 2], "),),
        "layer.isolated",
        "moba.ffn.xk",
        also=frozenset({"ffn.xk"}),
        options=HYBRID,
    ),
    # INT8
    Fault(
        "one scale for a matrix",
        (
            (
                INT8,
                "codes, scale = quantise_vector(weight)\n",
                "codes, scale = (x.reshape(-1) for x in quantise_vector(weight.reshape(1, -1)))\n"
                "    codes, scale = codes.reshape(weight.shape), scale.repeat(len(weight))\n",
            ),
        ),
        "layer.isolated",
        "att.r",
        also=frozenset({"att.k", "att.v", "att.out", "ffn.k", "ffn.out", "logits"}),
        options=("--model", "golden:adversarial", "--quantize"),
    ),
)
