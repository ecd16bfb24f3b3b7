"""What a quantiser may do instead of what it should. Wrong codes and products are named after it in the report.

A scheme takes a matrix whose rows are output channels, or a call's tokens, and gives its codes and what they stand for.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ..reference import quantise_vector
from .engine import Array

__all__ = ["SCHEMES", "Scheme", "explained", "products", "right"]

Scheme = Callable[[Array], tuple[Array, Array]]  # x (rows, in) → codes and values, both (rows, in) and float64


def right(x: Array) -> tuple[Array, Array]:
    """The scheme as it should be."""
    codes, scale = quantise_vector(x)
    return codes.astype(np.float64), codes * scale.astype(np.float64)[:, None]


def _divided(scale_of: Callable[[Array], Array], rounded: Callable[[Array], Array] = np.rint) -> Scheme:
    """x / scale, the scales of some kind, the quotient rounded in some way."""

    def scheme(x: Array) -> tuple[Array, Array]:
        x = x.astype(np.float32)
        scale = scale_of(x)  # (rows, 1), (1, in) or (1, 1)
        codes = rounded(_quotient(x, scale)).astype(np.float64)
        return codes, codes * scale

    return scheme


def _multiplied(factor_of: Callable[[Array], Array]) -> Scheme:
    """x · factor, where it should be a division."""

    def scheme(x: Array) -> tuple[Array, Array]:
        x = x.astype(np.float32)
        largest = np.abs(x).max(axis=-1, keepdims=True)  # (rows, 1)
        with np.errstate(all="ignore"):  # rows that are zero, or nearly
            factor = factor_of(largest)
            codes = np.rint(np.where(np.isfinite(factor), x * factor, 0)).astype(np.float64)
        return codes, codes * _own(x)

    return scheme


def _asymmetric(x: Array) -> tuple[Array, Array]:
    x = x.astype(np.float64)
    low, high = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    scale = (high - low) / 255
    codes = np.rint(_quotient(x - low, scale)) - 128
    return codes, (codes + 128) * scale + low


def _own(x: Array) -> Array:
    """The right scale of each row, (rows, 1)."""
    return quantise_vector(x)[1][:, None]


def _quotient(x: Array, scale: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.divide(x, scale, out=np.zeros(x.shape, np.result_type(x, scale)), where=scale > 0)


def _half_away(ratio: Array) -> Array:
    ratio = ratio.astype(np.float64)  # in float32, the number below one half and one half are one
    return np.copysign(np.floor(np.abs(ratio) + 0.5), ratio)


def _half_up(ratio: Array) -> Array:
    return np.floor(ratio.astype(np.float64) + 0.5)


def _to_a_byte(ratio: Array) -> Array:
    return np.clip(np.rint(ratio), -128, 127)


SCHEMES: Mapping[str, Scheme] = {
    "rounding half away from zero": _divided(_own, _half_away),
    "rounding half up": _divided(_own, _half_up),
    "rounding toward zero": _divided(_own, np.trunc),
    "multiplying by 1 / scale, not dividing by scale": _multiplied(lambda largest: 1 / (largest / np.float32(127))),
    "multiplying by 127 / max, not dividing by scale": _multiplied(lambda largest: np.float32(127) / largest),
    "dividing in float64": _divided(lambda x: np.abs(x).max(axis=-1, keepdims=True) / np.float64(127)),
    "one scale for all rows": _divided(lambda x: np.abs(x).max(keepdims=True) / np.float32(127)),
    "a scale for each column": _divided(lambda x: np.abs(x).max(axis=0, keepdims=True) / np.float32(127)),
    "the scale max / 128, where −128 is used": _divided(
        lambda x: np.abs(x).max(axis=-1, keepdims=True) / np.float32(128), _to_a_byte
    ),
    "an asymmetric scheme": _asymmetric,
}


def explained(given: Mapping[str, tuple[Array, Array]]) -> str:
    """The scheme whose codes are those given, in every case of (input, codes); empty if there is none."""
    for name, scheme in SCHEMES.items():
        if all(np.array_equal(scheme(x)[0], codes) for x, codes in given.values()):
            return name
    return ""


def products(x: Array, weight: Array) -> Iterator[tuple[str, Array]]:
    """What may come out where x (T, in) is multiplied by weight (out, in), by name; "" is as it should be."""
    x_plain, w_plain = x.astype(np.float64), weight.astype(np.float64)
    x_right, w_right = right(x)[1], right(weight)[1]
    yield "", x_right @ w_right.T
    yield "matrices that are not quantised", x_plain @ w_plain.T
    yield "activations that are not quantised", x_plain @ w_right.T
    yield "weights that are not quantised", x_right @ w_plain.T
    for name, scheme in SCHEMES.items():
        x_other, w_other = scheme(x)[1], scheme(weight)[1]
        yield name, x_other @ w_other.T
        yield f"{name} (of the weights)", x_right @ w_other.T
        yield f"{name} (of the activations: a row is a token)", x_other @ w_right.T
