"""A projection, done wrong. (What is wrong with how it is stored belongs to loading.)"""

from typing import Any

import numpy as np

from ... import reference
from ..engine import Array
from .mutant import Mutant
from .precision import in_bits, kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "y_r = Σ_c W_rc x_c over every c, without bias, in the precision of x"

LANES = 16
PIECE = 24  # columns


def tail_dropped(x: Array, weight: Any) -> Array:
    whole = x.shape[-1] // LANES * LANES
    return reference.linear(x[:, :whole], weight[:, :whole])


def last_row_dropped(x: Array, weight: Any) -> Array:
    y = reference.linear(x, weight)
    y[:, -1] = 0
    return y


def ten_bits(x: Array, weight: Any) -> Array:
    return reference.linear(in_bits(11, x), in_bits(11, weight))


def bfloat16_result(x: Array, weight: Any) -> Array:
    return kept_in("bfloat16", reference.linear(x, weight))


def bfloat16_sums(x: Array, weight: Any) -> Array:
    """Partial sums of a row in bfloat16."""
    y = np.zeros((len(x), len(weight)), x.dtype)
    for c in range(0, x.shape[-1], PIECE):
        y = kept_in("bfloat16", y + reference.linear(x[:, c : c + PIECE], weight[:, c : c + PIECE]))
    return y


def in_pieces(x: Array, weight: Any) -> Array:
    """From the last columns to the first."""
    y = np.zeros((len(x), len(weight)), x.dtype)
    for c in reversed(range(0, x.shape[-1], PIECE)):
        y += reference.linear(x[:, c : c + PIECE], weight[:, c : c + PIECE])
    return y


MUTANTS = (
    Mutant(
        "linear.tail_dropped",
        "a projection's inputs beyond a multiple of 16 left out",
        RIGHT,
        {"linear": tail_dropped},
        seen="fla-org/fla#1103",
    ),
    Mutant("linear.last_row_dropped", "a projection's last output left zero", RIGHT, {"linear": last_row_dropped}),
    Mutant(
        "linear.tf32",
        "projections of factors rounded to the 11 significant bits of TF32",
        RIGHT,
        {"linear": ten_bits},
        rounding=True,
    ),
    Mutant(
        "linear.bfloat16_result", "projections handed on in bfloat16", RIGHT, {"linear": bfloat16_result}, rounding=True
    ),
    Mutant(
        "linear.bfloat16_sums",
        "projections' partial sums held in bfloat16",
        RIGHT,
        {"linear": bfloat16_sums},
        rounding=True,
    ),
    Mutant(
        "linear.in_pieces",
        "projections summed by groups of 24 columns, last first",
        RIGHT,
        {"linear": in_pieces},
        same="another order of adding",
    ),
)
