"""The attention block of an RWKV-X, where its policy does not matter, and the order of the blocks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import reference
from ...checkpoint import Checkpoint, Config
from ...reference.attention import Cache, attend, attention, dense
from ...traces import Policy
from ..engine import Array
from .mutant import Mutant
from .port import Port

__all__ = ["MUTANTS"]

RIGHT = {
    "attend": "y_h = Σ_m softmax_m(q_h · k_mh / √N) v_mh, over all tokens that are seen",
    "q_k": "q and k are W u, with no position code and no norm",
    "seen": "a token sees every earlier one and itself",
    "heads": "D channels are H heads of N, and each has its own k and v",
    "order": "each attention block follows ⌊L / n⌋ blocks of RWKV-7",
    "v_first": "v_first is block 0's, and passes attention blocks by",
    "shift": "an attention block's channel mix shifts toward the block's own last token",
}
Attend = Callable[[Array, Array, Array], Array]


# --- of a query (H, N), keys and values (M, H, N)


def scaled(factor: Callable[[int, int], float]) -> Attend:
    """1/√N times a factor of H and N."""

    def formula(q: Array, keys: Array, values: Array) -> Array:
        return attend(q * q.dtype.type(factor(*q.shape)), keys, values)

    return formula


def unit(x: Array) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)


def normed(q: Array, keys: Array, values: Array) -> Array:
    return attend(unit(q), unit(keys), values)


def by_scores(change: Callable[[Array], Array]) -> Attend:
    """Weights are `change` of the scores (M, H)."""

    def formula(q: Array, keys: Array, values: Array) -> Array:
        if not len(keys):
            return np.zeros_like(q)
        scores = (keys * q).sum(axis=-1) / np.sqrt(q.dtype.type(q.shape[-1]))
        with np.errstate(over="ignore", invalid="ignore"):
            return (change(scores)[..., None] * values).sum(axis=0)

    return formula


def softmax(scores: Array, axis: int = 0) -> Array:
    weights = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return weights / weights.sum(axis=axis, keepdims=True)


def with_distances(scores: Array) -> Array:
    """Less for what is farther away, by a slope for each head."""
    slopes = 2.0 ** -np.arange(1, scores.shape[1] + 1)
    return softmax(scores - (slopes * np.arange(len(scores))[::-1, None]).astype(scores.dtype))


def over_heads(scores: Array) -> Array:
    return softmax(scores, axis=1)


def of_raw_exponentials(scores: Array) -> Array:
    weights = np.exp(scores)
    return weights / weights.sum(axis=0)


def with_nothing(scores: Array) -> Array:
    """As if a key of zeros with a value of zeros were seen too."""
    return softmax(np.concatenate([np.zeros_like(scores[:1]), scores]))[1:]


def of_previous_values(q: Array, keys: Array, values: Array) -> Array:
    return attend(q, keys, np.concatenate([values[:1], values[:-1]]))


def without_itself(q: Array, keys: Array, values: Array) -> Array:
    return attend(q, keys[:-1], values[:-1])


def without_the_first(q: Array, keys: Array, values: Array) -> Array:
    return attend(q, keys[1:], values[1:]) if len(keys) > 1 else attend(q, keys, values)


def of_one_head(x: Array) -> Array:
    return np.broadcast_to(x[:, :1], x.shape)


def newest_first(q: Array, keys: Array, values: Array) -> Array:
    return attend(q, keys[::-1], values[::-1])


# --- of a call


def turned(x: Array, first: int) -> Array:
    """x (T, H, N), rotated by positions from `first` on."""
    half = x.shape[-1] // 2
    angle = np.arange(first, first + len(x))[:, None, None] * 10000.0 ** -(np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1).astype(
        x.dtype
    )


def with_rope(q: Array, k: Array, v: Array, cache: Cache) -> tuple[Array, Cache]:
    past = len(cache.keys)
    return dense(turned(q, past), turned(k, past), v, cache)


def not_causal(q: Array, k: Array, v: Array, cache: Cache) -> tuple[Array, Cache]:
    _, cache = dense(q, k, v, cache)
    return np.stack([attend(each, *cache) for each in q]), cache


def own_call_only(q: Array, k: Array, v: Array, cache: Cache) -> tuple[Array, Cache]:
    y, _ = dense(q, k, v, Cache(k[:0], v[:0]))
    return y, dense(q, k, v, cache)[1]


def cache_alone(q: Array, k: Array, v: Array, cache: Cache) -> tuple[Array, Cache]:
    """Tokens of the call do not see each other."""
    _, after = dense(q, k, v, cache)
    seen = [
        (np.concatenate([old, new[t : t + 1]]) for old, new in zip(cache, (k, v), strict=True)) for t in range(len(q))
    ]
    return np.stack([attend(each, *own) for each, own in zip(q, seen, strict=True)]), after


def interleaved(
    policy: Policy, q: Array, k: Array, v: Array, cache: Cache, x: Array, written: Any
) -> tuple[Array, Cache]:
    """Channel c belongs to head c mod H."""

    def cut(value: Array) -> Array:
        return value.reshape(len(value), value.shape[2], value.shape[1]).swapaxes(1, 2)

    def back(value: Array) -> Array:
        return value.swapaxes(1, 2).reshape(value.shape)

    y, after = attention(policy, cut(q), cut(k), cut(v), Cache(*map(cut, cache)), cut(x), written)
    return back(y), Cache(*map(back, after))


# --- of the block


def in_block(change: Callable[[Port, str, str, Array, Mapping[str, Array]], Array | None]) -> Mapping[str, Any]:
    """`change` of each tap: port, block, the tap's name in it, its value, all taps before; None: as it is."""

    def see(port: Port, name: str, value: Array, seen: Mapping[str, Array]) -> Array:
        block = ".".join(name.split(".")[:2])
        changed = change(port, block, name.removeprefix(f"{block}."), value, seen)
        return value if changed is None else changed

    return {"see": see}


def without_shift(port: Port, block: str, tap: str, value: Array, seen: Mapping[str, Array]) -> Array | None:
    return seen[f"{block}.ffn.in"] if block.startswith("moba.") and tap == "ffn.xk" else None


def shift_of_the_block_before(
    port: Port, block: str, tap: str, value: Array, seen: Mapping[str, Array]
) -> Array | None:
    """One buffer for both: the block before has just written into it."""
    if not block.startswith("moba.") or tap != "ffn.xk":
        return None
    before = port.config.blocks[port.config.blocks.index(block) - 1]
    own = seen[f"{block}.ffn.in"]
    return reference.token_shift(own, seen[f"{before}.ffn.in"][-1], port.p[f"{block}.ffn.x_k"])


def relu(port: Port, block: str, tap: str, value: Array, seen: Mapping[str, Array]) -> Array | None:
    return np.sqrt(value) if block.startswith("moba.") and tap == "ffn.k" else None


def without_residual(port: Port, block: str, tap: str, value: Array, seen: Mapping[str, Array]) -> Array | None:
    return seen[f"{block}.out"] if block.startswith("moba.") and tap == "mid" else None


def attention_of_the_stream(port: Port, block: str, tap: str, value: Array, seen: Mapping[str, Array]) -> Array | None:
    """ln1 is left out: what goes into the attention is the residual stream."""
    if not block.startswith("moba.") or tap != "in":
        return None
    before = port.config.blocks[port.config.blocks.index(block) - 1]
    return seen[f"{before}.out"]


def v_first_anew(port: Port, block: str, tap: str, value: Array, seen: Mapping[str, Array]) -> Array | None:
    """The first block after each attention block gives the v_first of those behind it."""
    order = port.config.blocks
    if not block.startswith("blocks.") or tap != "att.v_mix":
        return None
    place = order.index(block)
    start = max((i + 1 for i in range(place) if order[i].startswith("moba.")), default=0)
    v = seen[f"{block}.att.v"]
    if start == 0 or start == place:
        return v if start else None
    p = [port.p[f"{block}.att.v{i}"] for i in range(3)]
    first = seen[f"{order[start]}.att.v"]
    flat = (len(v), -1)
    return reference.v_first(v.reshape(flat), first.reshape(flat), seen[f"{block}.att.xv"], *p).reshape(v.shape)


@dataclass(frozen=True)
class Reordered(Config):
    """A config whose blocks run in another order."""

    order: tuple[str, ...] = ()

    @property
    def blocks(self) -> list[str]:
        return list(self.order)


def ordered(reorder: Callable[[list[str]], list[str]]) -> Mapping[str, Any]:
    def load(port: Port, checkpoint: Checkpoint, right: Mapping[str, Any] | None = None) -> None:
        Port.load(port, checkpoint, right)
        port.config = Reordered(**vars(port.config), order=tuple(reorder(port.config.blocks)))

    return {"load": load}


def one_kind_after_the_other(order: list[str]) -> list[str]:
    return sorted(order)


def attention_first(order: list[str]) -> list[str]:
    """Each attention block before the RWKV-7 blocks that it should follow."""
    each = len(order) // max(1, sum(block.startswith("moba.") for block in order))
    groups = [order[begin : begin + each] for begin in range(0, len(order), each)]
    return [block for group in groups for block in (group[-1], *group[:-1])]


def alternating(order: list[str]) -> list[str]:
    """An attention block after each of the first blocks, until there are no more."""
    rwkv, moba = ([block for block in order if block.startswith(kind)] for kind in ("blocks.", "moba."))
    return [block for i, each in enumerate(rwkv) for block in (each, *moba[i : i + 1])]


def attention_swapped(order: list[str]) -> list[str]:
    moba = iter([block for block in order if block.startswith("moba.")][::-1])
    return [next(moba) if block.startswith("moba.") else block for block in order]


def wrong(id: str, fault: str, right: str, *, seen: str = "", same: str = "", **parts: Any) -> Mutant:
    return Mutant(f"attention.{id}", fault, RIGHT[right], seen=seen, same=same, model="golden:hybrid", **parts)


def attending(id: str, fault: str, formula: Attend, right: str = "attend", **more: Any) -> Mutant:
    return wrong(id, fault, right, formulas={"attend": formula}, **more)


MUTANTS: tuple[Mutant, ...] = (
    attending("scale_of_width", "scores are scaled by 1/√D, not by 1/√N", scaled(lambda heads, n: heads**-0.5)),
    attending("not_scaled", "scores are not scaled", scaled(lambda heads, n: n**0.5)),
    attending("scaled_twice", "scores are scaled by 1/N", scaled(lambda heads, n: n**-0.5)),
    attending("q_k_norm", "q and k are normalised by head", normed, "q_k"),
    attending("alibi", "scores are lowered by distance, as ALiBi does", by_scores(with_distances), "q_k"),
    attending("softmax_over_heads", "softmax goes over heads, not over tokens", by_scores(over_heads)),
    attending("no_maximum", "softmax without its maximum taken off: e^88 is the last", by_scores(of_raw_exponentials)),
    attending("softmax_of_one_more", "softmax has a 1 more in its sum", by_scores(with_nothing)),
    attending(
        "heads_share_k_and_v",
        "all heads use the first one's keys and values",
        lambda q, keys, values: attend(q, of_one_head(keys), of_one_head(values)),
        "heads",
    ),
    attending("values_of_token_before", "each key goes with the value of the token before", of_previous_values),
    attending("without_itself", "a token does not see itself", without_itself, "seen"),
    attending("without_the_first", "the first token of the text is not seen", without_the_first, "seen"),
    wrong("rope", "q and k are rotated by position", "q_k", formulas={"dense": with_rope}),
    wrong("not_causal", "a token sees those behind it in the call", "seen", formulas={"dense": not_causal}),
    wrong("own_call_only", "the cache is filled, but not seen", "seen", formulas={"dense": own_call_only}),
    wrong("cache_alone", "tokens of one call do not see each other", "seen", formulas={"dense": cache_alone}),
    wrong("heads_interleaved", "channel c belongs to head c mod H", "heads", formulas={"attention": interleaved}),
    wrong("no_shift", "the attention block's channel mix has no token shift", "shift", methods=in_block(without_shift)),
    wrong(
        "shift_of_block_before",
        "the attention block's channel mix shifts toward what the block before has just written",
        "shift",
        methods=in_block(shift_of_the_block_before),
    ),
    wrong("ffn_relu", "the attention block's channel mix has relu, not its square", "shift", methods=in_block(relu)),
    wrong("no_residual", "the attention's output takes the place of x", "order", methods=in_block(without_residual)),
    wrong("ln1_left_out", "the attention gets x, not ln1(x)", "q_k", methods=in_block(attention_of_the_stream)),
    wrong("v_first_anew", "v_first starts anew behind each attention block", "v_first", methods=in_block(v_first_anew)),
    wrong(
        "blocks_last",
        "all attention blocks come after all of RWKV-7",
        "order",
        methods=ordered(one_kind_after_the_other),
    ),
    wrong(
        "blocks_first", "each attention block comes before its RWKV-7 blocks", "order", methods=ordered(attention_first)
    ),
    wrong("blocks_alternate", "an attention block follows each RWKV-7 block", "order", methods=ordered(alternating)),
    wrong(
        "blocks_swapped", "the attention blocks are in the opposite order", "order", methods=ordered(attention_swapped)
    ),
    # Right.
    attending(
        "newest_first", "keys are gone through from the newest to the oldest", newest_first, same="a sum has no order"
    ),
    attending(
        "scores_moved",
        "all scores are raised by the same",
        by_scores(lambda scores: softmax(scores + 1)),
        same="softmax does not change",
    ),
)
