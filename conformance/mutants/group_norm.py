"""GroupNorm of the recurrence's output, done wrong."""

from collections.abc import Callable

import numpy as np

from ... import reference
from ..engine import Array
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "o_h = (y_h − mean) / √(var + 64e-5) · weight + bias, each head of N values on its own, var divided by N"


def with_eps(value: Callable[[Array], float]) -> Callable[..., Array]:
    """`value` gets y (T, H, N)."""

    def group_norm(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
        return reference.group_norm(y, weight, bias, value(y))

    return group_norm


def dropped(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    return y.reshape(len(y), -1)


def whole_width(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    return reference.layer_norm(y.reshape(len(y), -1), weight, bias, eps)


def interleaved(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    """Groups of every H-th channel."""
    groups = y.reshape(len(y), y.shape[2], y.shape[1])
    normed = (groups - groups.mean(1, keepdims=True)) / np.sqrt(groups.var(1, keepdims=True) + eps)
    return normed.reshape(len(y), -1) * weight + bias


def no_bias(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    return reference.group_norm(y, weight, np.zeros_like(bias), eps)


def no_weight(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    return reference.group_norm(y, np.ones_like(weight), bias, eps)


def weight_of_head_0(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    N = y.shape[-1]
    return reference.group_norm(y, np.resize(weight[:N], len(weight)), np.resize(bias[:N], len(bias)), eps)


def unbiased(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    normed = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, ddof=1, keepdims=True) + eps)
    return normed.reshape(len(y), -1) * weight + bias


def eps_outside(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    normed = (y - y.mean(-1, keepdims=True)) / (y.std(-1, keepdims=True) + eps)
    return normed.reshape(len(y), -1) * weight + bias


def rms(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    normed = y / np.sqrt((y * y).mean(-1, keepdims=True) + eps)
    return normed.reshape(len(y), -1) * weight + bias


def float16(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    return kept_in("float16", reference.group_norm(kept_in("float16", y), weight, bias, eps))


def reciprocal_root(y: Array, weight: Array, bias: Array, eps: float = 64e-5) -> Array:
    centred = y - y.mean(-1, keepdims=True)
    normed = centred * (1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps))
    return normed.reshape(len(y), -1) * weight + bias


MUTANTS = (
    Mutant(
        "group_norm.eps_1e-5",
        "GroupNorm eps 1e-5 instead of 64e-5",
        RIGHT,
        {"group_norm": with_eps(lambda y: 1e-5)},
        seen="BlinkDL/ChatRWKV:d96699b, the reference package itself",
    ),
    Mutant(
        "group_norm.eps_N_1e-5",
        "GroupNorm eps N · 1e-5: right for heads of 64 only",
        RIGHT,
        {"group_norm": with_eps(lambda y: y.shape[-1] * 1e-5)},
        seen="fla-org/fla and MNN",
        model="golden:narrow",
    ),
    Mutant(
        "group_norm.eps_H_1e-5",
        "GroupNorm eps H · 1e-5: right for 64 heads only",
        RIGHT,
        {"group_norm": with_eps(lambda y: y.shape[-2] * 1e-5)},
        seen="Hakureirm/rwkv-sglang F0071",
    ),
    Mutant(
        "group_norm.eps_outside_root",
        "GroupNorm's eps added to the deviation, not to the variance",
        RIGHT,
        {"group_norm": eps_outside},
    ),
    Mutant("group_norm.dropped", "no GroupNorm at all", RIGHT, {"group_norm": dropped}),
    Mutant("group_norm.whole_width", "normalised over all heads together", RIGHT, {"group_norm": whole_width}),
    Mutant(
        "group_norm.interleaved",
        "groups of every H-th channel instead of N neighbours",
        RIGHT,
        {"group_norm": interleaved},
        seen="BlinkDL/RWKV-LM:9b38a54",
    ),
    Mutant("group_norm.no_bias", "GroupNorm without its bias", RIGHT, {"group_norm": no_bias}),
    Mutant("group_norm.no_weight", "GroupNorm without its weight", RIGHT, {"group_norm": no_weight}),
    Mutant(
        "group_norm.weight_of_head_0",
        "the first head's weight and bias for every head",
        RIGHT,
        {"group_norm": weight_of_head_0},
    ),
    Mutant("group_norm.unbiased", "GroupNorm's variance divided by N − 1", RIGHT, {"group_norm": unbiased}),
    Mutant("group_norm.rms", "RMS norm of each head: the mean is not taken off", RIGHT, {"group_norm": rms}),
    Mutant("group_norm.float16", "GroupNorm of and in float16", RIGHT, {"group_norm": float16}, rounding=True),
    Mutant(
        "group_norm.reciprocal_root",
        "GroupNorm that multiplies by 1 / √(var + eps)",
        RIGHT,
        {"group_norm": reciprocal_root},
        same="a division is a multiplication by the reciprocal",
    ),
)
