"""The value residual, done wrong."""

from collections.abc import Callable

import numpy as np

from ... import reference
from ..engine import Array
from .block import Block, instead
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "ṽ = v + (v_first − v) · σ(v0 + (xv v1) v2), v_first = layer 0's raw v of the same token; layer 0 does not mix"


def never(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    return v


def backwards(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    return reference.v_first(first, v, xv, v0, v1, v2)


def no_sigmoid(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    return v + (first - v) * (v0 + reference.lora(xv, v1, v2))


def tanh_for_sigmoid(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    return v + (first - v) * np.tanh(v0 + reference.lora(xv, v1, v2))


def tanh_inside(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    return v + (first - v) * reference.sigmoid(v0 + reference.lora(xv, v1, v2, np.tanh))


def no_v0(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    return reference.v_first(v, first, xv, np.zeros_like(v0), v1, v2)


def added(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    return v + first * reference.sigmoid(v0 + reference.lora(xv, v1, v2))


def lost(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    return reference.v_first(v, np.zeros_like(first), xv, v0, v1, v2)


def token_before(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    """(A call's first token has its own: there is no state for another.)"""
    return reference.v_first(v, np.concatenate([first[:1], first[:-1]]), xv, v0, v1, v2)


def first_token(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    return reference.v_first(v, np.broadcast_to(first[:1], first.shape), xv, v0, v1, v2)


def float16(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    return v + kept_in("float16", first - v) * reference.sigmoid(v0 + reference.lora(xv, v1, v2))


def weighted_mean(v: Array, first: Array, xv: Array, v0: Array, v1: Array, v2: Array) -> Array:
    weight = reference.sigmoid(v0 + reference.lora(xv, v1, v2))
    return v * (1 - weight) + first * weight


def toward(block: Block, first: Array) -> Array:
    """The right mix of the block's raw value with another first value. Both (T, H, N)."""
    names = ("att.v0", "att.v1", "att.v2")
    flat = block.tap("att.xv")
    v, first = block.tap("att.v").reshape(flat.shape), first.reshape(flat.shape)
    return block.heads(reference.v_first(v, first, flat, *map(block.weight, names)))


def of_layer_below(tap: str) -> Callable[[Block, Array], Array]:
    return lambda block, value: toward(block, block.tap(tap, block.index - 1)) if block.index > 1 else value


def layer_0_mixes_too(block: Block, value: Array) -> Array:
    """By the weights of layer 1: layer 0 need have none."""
    if block.index > 0:
        return value
    flat, weights = block.tap("att.xv"), (block.port.p[f"blocks.1.att.v{i}"] for i in range(3))
    v = value.reshape(flat.shape)
    return block.heads(reference.v_first(v, v, flat, *weights))


MUTANTS = (
    Mutant(
        "v_first.layer_below",
        "v_first overwritten by each layer: the mixed value of the layer below",
        RIGHT,
        methods=instead(att_v_mix=of_layer_below("att.v_mix")),
    ),
    Mutant(
        "v_first.layer_below_raw",
        "v_first is the raw value of the layer below",
        RIGHT,
        methods=instead(att_v_mix=of_layer_below("att.v")),
    ),
    Mutant("v_first.never", "the value residual left out", RIGHT, {"v_first": never}),
    Mutant("v_first.backwards", "the value residual backwards: from v_first toward v", RIGHT, {"v_first": backwards}),
    Mutant("v_first.no_sigmoid", "the value residual without σ", RIGHT, {"v_first": no_sigmoid}),
    Mutant(
        "v_first.tanh_for_sigmoid", "the value residual with tanh in place of σ", RIGHT, {"v_first": tanh_for_sigmoid}
    ),
    Mutant(
        "v_first.tanh_inside",
        "the value residual with tanh between its LoRA's matrices, as the decay has it",
        RIGHT,
        {"v_first": tanh_inside},
    ),
    Mutant("v_first.no_v0", "the value residual without v0", RIGHT, {"v_first": no_v0}),
    Mutant("v_first.added", "the value residual added: v + v_first · σ, v not taken off", RIGHT, {"v_first": added}),
    Mutant(
        "v_first.lost", "v_first is zero above layer 0", RIGHT, {"v_first": lost}, seen="Hakureirm/rwkv-sglang F0036"
    ),
    Mutant("v_first.token_before", "v_first of the token before: kept as a state", RIGHT, {"v_first": token_before}),
    Mutant("v_first.first_token", "v_first of the call's first token for all", RIGHT, {"v_first": first_token}),
    Mutant("v_first.float16", "v_first − v in float16", RIGHT, {"v_first": float16}, rounding=True),
    Mutant(
        "v_first.weighted_mean",
        "the value residual as v · (1 − σ) + v_first · σ",
        RIGHT,
        {"v_first": weighted_mean},
        same="the same sum, with v taken out",
    ),
    Mutant(
        "v_first.layer_0_mixes_too",
        "layer 0 mixes its value with itself",
        RIGHT,
        methods=instead(att_v_mix=layer_0_mixes_too),
        same="v + (v − v) · σ = v, whatever the weights",
    ),
)
