"""The bonus of the current token, done wrong."""

import numpy as np

from ... import reference
from ..engine import Array
from .block import Block, instead
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "b_h = (Σ_j r_hj k_hj r_k_hj) · v_h, k after the k_a update, v after the lerp; added after GroupNorm"


def missing(r: Array, k: Array, v: Array, r_k: Array) -> Array:
    return np.zeros_like(v).reshape(len(v), -1)


def no_r_k(r: Array, k: Array, v: Array, r_k: Array) -> Array:
    return reference.bonus(r, k, v, np.ones_like(r_k))


def r_k_rolled(r: Array, k: Array, v: Array, r_k: Array) -> Array:
    return reference.bonus(r, k, v, np.roll(r_k, 1, axis=0))


def r_k_turned(r: Array, k: Array, v: Array, r_k: Array) -> Array:
    return reference.bonus(r, k, v, r_k.reshape(r_k.shape[::-1]).T)


def whole_width(r: Array, k: Array, v: Array, r_k: Array) -> Array:
    return ((r * k * r_k).sum((-2, -1), keepdims=True) * v).reshape(len(v), -1)


def no_sum(r: Array, k: Array, v: Array, r_k: Array) -> Array:
    return (r * k * r_k * v).reshape(len(v), -1)


def no_receptance(r: Array, k: Array, v: Array, r_k: Array) -> Array:
    return reference.bonus(np.ones_like(r), k, v, r_k)


def bfloat16(r: Array, k: Array, v: Array, r_k: Array) -> Array:
    weight = kept_in("bfloat16", (r * k * r_k).sum(-1, keepdims=True))
    return (weight * v).reshape(len(v), -1)


def dot_product(r: Array, k: Array, v: Array, r_k: Array) -> Array:
    weight = ((r * r_k)[..., None, :] @ k[..., :, None])[..., 0]
    return (weight * v).reshape(len(v), -1)


def of(block: Block, *, k: str = "att.k_mod", v: str = "att.v_mix") -> Array:
    """The block's bonus with a key and a value of its own choice, (T, D)."""
    return reference.bonus(
        block.tap("att.r"), block.tap(k), block.tap(v), block.heads(block.weight("att.r_k").reshape(-1))
    )


def with_bonus_inside(block: Block, _: Array) -> Array:
    return reference.group_norm(block.tap("att.wkv") + block.heads(of(block)), *block.norm("att.ln_x"))


def norm_alone(block: Block, _: Array) -> Array:
    return block.tap("att.norm") * block.tap("att.g")


MUTANTS = (
    Mutant("bonus.missing", "no bonus", RIGHT, {"bonus": missing}),
    Mutant(
        "bonus.raw_key",
        "the bonus of the key before the k_a update",
        RIGHT,
        methods=instead(att_bonus=lambda block, _: of(block, k="att.k")),
    ),
    Mutant(
        "bonus.removal_key",
        "the bonus of kk in place of k",
        RIGHT,
        methods=instead(att_bonus=lambda block, _: of(block, k="att.kk")),
    ),
    Mutant(
        "bonus.raw_value",
        "the bonus of the value before the lerp toward v_first",
        RIGHT,
        methods=instead(att_bonus=lambda block, _: of(block, v="att.v")),
    ),
    Mutant("bonus.no_receptance", "the bonus without r", RIGHT, {"bonus": no_receptance}),
    Mutant("bonus.no_r_k", "the bonus without r_k", RIGHT, {"bonus": no_r_k}),
    Mutant("bonus.r_k_rolled", "the bonus of each head with its neighbour's r_k", RIGHT, {"bonus": r_k_rolled}),
    Mutant("bonus.r_k_turned", "the bonus with r_k read as [N, H] instead of [H, N]", RIGHT, {"bonus": r_k_turned}),
    Mutant("bonus.whole_width", "the bonus summed over all of D instead of each head", RIGHT, {"bonus": whole_width}),
    Mutant("bonus.no_sum", "the bonus without its sum: r · k · r_k · v, channel by channel", RIGHT, {"bonus": no_sum}),
    Mutant(
        "bonus.before_norm",
        "the bonus added before GroupNorm, as RWKV-6's u is",
        RIGHT,
        methods=instead(att_norm=with_bonus_inside, att_gated=norm_alone),
    ),
    Mutant("bonus.bfloat16", "the bonus's sum held in bfloat16", RIGHT, {"bonus": bfloat16}, rounding=True),
    Mutant(
        "bonus.dot_product",
        "the bonus's sum as the dot product of r · r_k with k",
        RIGHT,
        {"bonus": dot_product},
        same="the same three factors in another order",
    ),
)
