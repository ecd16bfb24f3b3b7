"""LayerNorm, done wrong wherever it stands: ln0, ln1, ln2 and ln_out."""

from collections.abc import Callable

import numpy as np

from ... import reference
from ..engine import Array
from .block import instead
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "y = (x − mean) / √(var + 1e-5) · weight + bias, var divided by D"


def with_eps(value: float) -> Callable[..., Array]:
    def layer_norm(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
        return reference.layer_norm(x, weight, bias, value)

    return layer_norm


def eps_outside(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + eps) * weight + bias


def unbiased(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    variance = x.var(-1, ddof=1, keepdims=True)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + eps) * weight + bias


def no_bias(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return reference.layer_norm(x, weight, np.zeros_like(bias), eps)


def no_weight(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return reference.layer_norm(x, np.ones_like(weight), bias, eps)


def weight_plus_one(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return reference.layer_norm(x, 1 + weight, bias, eps)


def rms(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias


def bfloat16_statistics(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    centred = x - kept_in("bfloat16", x.mean(-1, keepdims=True))
    variance = kept_in("bfloat16", (centred * centred).mean(-1, keepdims=True))
    return centred / np.sqrt(variance + eps) * weight + bias


def reciprocal_root(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * (1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)) * weight + bias


MUTANTS = (
    Mutant("layer_norm.eps_1e-6", "LayerNorm eps 1e-6 instead of 1e-5", RIGHT, {"layer_norm": with_eps(1e-6)}),
    Mutant("layer_norm.eps_1e-12", "LayerNorm eps 1e-12 instead of 1e-5", RIGHT, {"layer_norm": with_eps(1e-12)}),
    Mutant("layer_norm.eps_64e-5", "LayerNorm with GroupNorm's eps 64e-5", RIGHT, {"layer_norm": with_eps(64e-5)}),
    Mutant(
        "layer_norm.eps_outside_root",
        "LayerNorm's eps added to the deviation, not to the variance",
        RIGHT,
        {"layer_norm": eps_outside},
    ),
    Mutant("layer_norm.unbiased", "LayerNorm's variance divided by D − 1", RIGHT, {"layer_norm": unbiased}),
    Mutant("layer_norm.no_bias", "LayerNorm without its bias", RIGHT, {"layer_norm": no_bias}),
    Mutant("layer_norm.no_weight", "LayerNorm without its weight", RIGHT, {"layer_norm": no_weight}),
    Mutant(
        "layer_norm.weight_plus_one",
        "LayerNorm's weight taken for a difference from 1",
        RIGHT,
        {"layer_norm": weight_plus_one},
    ),
    Mutant("layer_norm.rms", "RMS norm in place of LayerNorm: the mean is not taken off", RIGHT, {"layer_norm": rms}),
    Mutant(
        "layer_norm.ln1_for_ln2",
        "the channel mix normed by ln1's weights instead of ln2's",
        "u = LayerNorm(x; ln2) before the channel mix",
        methods=instead(ffn_in=lambda block, _: reference.layer_norm(block.tap("mid"), *block.norm("ln1"))),
    ),
    Mutant(
        "layer_norm.bfloat16_statistics",
        "LayerNorm's mean and variance held in bfloat16",
        RIGHT,
        {"layer_norm": bfloat16_statistics},
        rounding=True,
    ),
    Mutant(
        "layer_norm.reciprocal_root",
        "LayerNorm that multiplies by 1 / √(var + eps)",
        RIGHT,
        {"layer_norm": reciprocal_root},
        same="a division is a multiplication by the reciprocal",
    ),
)
