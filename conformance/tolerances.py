"""How far an engine may be from the reference. Every tolerance of the harness is here, each with its reason.

One formula on the engine's own inputs (isolated): its arithmetic says what rounding may do (`numbers/bounded.py`), and
`error_bounds` are a number of standard deviations of that.

A whole run, from the tokens on (cumulative): the yardstick is the reference itself, run a second time in the engine's
own precision (`numbers/rounded.py`). What that run loses against float64 is the noise an honest engine may have too,
and `bounds` is a multiple of it.

Both are kept row by row (a row is one token's values, or one head's where a tensor has heads), so that a loud head does
not hide a quiet one.
"""

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from .engine import Array
from .numbers import UNIT_ROUNDOFF, Format, handed_on

__all__ = [
    "DEVIATIONS",
    "DRAWS",
    "MARGIN",
    "SAFETY",
    "TIE",
    "TRACE",
    "UNIT_ROUNDOFF",
    "bounds",
    "cost_allowed",
    "error_bounds",
    "jitter",
    "round_to",
    "row_errors",
    "trace_16_bit",
    "trace_bounds",
]

# Standard deviations of a formula's rounding error. A number's rounding is u of it at the most, which is √3 standard
# deviations; the sum of many is normal, and beyond four is one in sixteen thousand.
DEVIATIONS = 4.0

# For what the probabilities leave out: a program's order of adding may have larger partial sums than a random one, a
# formula may be written otherwise (x · 1/√y for x / √y, 2^x for e^x), a library's function may be worse than most.
MARGIN = 2.0

# Half the distance between the smallest numbers: what rounding moves a number that is nearly zero by.
UNDERFLOW = {"float64": 2.0**-1075, "float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}

# An engine may add in another order, fuse, or solve a chunk at once: its error is as large as the yardstick's, not
# equal to it. Both are maxima over tens to hundreds of roundings, and such maxima rarely differ by more than a factor
# of four; a chunked recurrence adds sixteen products where the sequential one adds one, a factor of √16. 4 · 4 = 16.
SAFETY = 16.0

# Runs of the yardstick: one as it is, the others jittered.
DRAWS = 4

# Of a near tie between two logits. The maxima's factor of four alone: choosing a token adds nothing up.
TIE = 4.0 / SAFETY

# A stored trace has no yardstick beside it, and its reader should not need the slow reference. An fp32 engine in torch
# is within 1.6e-5 of the logits' standard deviation; 1e-4 leaves a factor of six. float64 has the same factor over the
# trace's own float32 storage (2⁻²⁴).
TRACE = {"float32": 1e-4, "float64": 6 * 2.0**-24}


def error_bounds(result: Any, format: Format) -> Array:
    """The largest |engine − value| allowed to each element of a formula's result, a Bounded, when it is handed on."""
    return MARGIN * DEVIATIONS * np.sqrt(handed_on(result, format))


def row_errors(got: Array, want: Array) -> Array:
    """The largest |got − want| of each row; NaN where there is one."""
    error = np.subtract(got, want, dtype=np.float64)
    return np.abs(error, out=error).max(axis=-1)


def bounds(want: Array, yardsticks: Sequence[Array], dtype: str, *, token_axis: bool = True) -> Array:
    """The largest |engine − want| allowed, for each row of `want` (all axes but the last).

    `yardsticks` are runs of the reference in the engine's precision: float32 runs, whose taps are jittered by one
    rounding or (16 bits) rounded; for a float64 engine their noise is scaled by the ratio of the roundoffs. A row's
    noise is the largest of all runs, and never taken below the root mean square of that of its like (the same head at
    every token; in a state, every row of the head), since one row's can be small by luck, nor below the rounding of its
    largest value.
    """
    if not want.size:  # the cache of an attention block before the first token
        return np.zeros(want.shape[:-1])
    noise = np.max([row_errors(run, want) for run in yardsticks], axis=0)
    if dtype == "float64":
        noise = noise * (UNIT_ROUNDOFF["float64"] / UNIT_ROUNDOFF["float32"])
    alike = 0 if token_axis else -1
    typical = np.sqrt(np.mean(noise * noise, axis=alike, keepdims=True)) if noise.ndim else noise
    largest = np.maximum(want.max(axis=-1), -want.min(axis=-1))
    rounding = UNIT_ROUNDOFF[dtype] * largest + UNDERFLOW[dtype]
    return SAFETY * np.maximum(np.maximum(noise, typical), rounding)


def trace_bounds(want: Array, relative: float, *, token_axis: bool = True) -> Array:
    """`relative` times the root mean square of each row of `want`, never below that of its like."""
    mean_square = np.mean(np.square(want, dtype=np.float64), axis=-1)
    alike = 0 if token_axis else -1
    typical = mean_square.mean(axis=alike, keepdims=True) if mean_square.ndim else mean_square
    return relative * np.sqrt(np.maximum(typical, mean_square))


def trace_16_bit(dtype: str, layers: int) -> float:
    """What TRACE is for a 16-bit engine of so many blocks.

    It rounds each of the two dozen values of a block, and roundings add up like a random walk: √(24 · layers) of them.
    The largest of a tensor's values is up to 8 times their root mean square (4 for normal ones, and taps multiply two).
    """
    return 8 * float(np.sqrt(24 * layers)) * UNIT_ROUNDOFF[dtype]


def cost_allowed(costs: Sequence[Array]) -> float:
    """The largest mean KL allowed to a quantised engine, from the KL of each token in runs of the scheme itself.

    An engine's codes are the reference's until one value lies so near to a half that rounding decides: then a code
    flips, and from there on the two runs have other codes, and costs that are two draws of one distribution. Their
    means over T tokens differ by √2 · σ / √T in standard deviation; four of them are allowed, above the dearest run.
    On the golden models (300 tokens) that is 10 %; a bit less costs 60 %, one scale for a whole matrix 100 to 500 %.
    """
    dearest = max(costs, key=lambda cost: float(cost.mean()))
    return float(dearest.mean() + 4 * np.sqrt(2 / len(dearest)) * dearest.std())


def round_to(dtype: str) -> Callable[[str, Array], Array]:
    """A tap that keeps each value as an engine of `dtype` would hand it on.

    Decay stays float32, as every official engine keeps it: a decay very close to 1 does not survive 16 bits.
    """
    if dtype in ("float32", "float64"):
        return lambda name, value: value
    kind = getattr(torch, dtype)

    def tap(name: str, value: Array) -> Array:
        if name.endswith("att.w"):
            return value
        return torch.from_numpy(np.ascontiguousarray(value)).to(kind).to(torch.float32).numpy()

    return tap


def _signs(name: str, draw: int, shape: tuple[int, ...]) -> Array:
    random = np.random.default_rng([zlib.crc32(name.encode()), draw])
    return 2 * random.integers(0, 2, shape, np.int8) - 1


# Of one token's values: a run step by step draws them again and again, and a generator costs more than a formula.
FEW = 4096
_kept_signs = lru_cache(1 << 13)(_signs)


def jitter(dtype: str, draw: int) -> Callable[[str, Array], Array]:
    """A tap that moves each value by one rounding of the engine's dtype, up or down at random.

    Inside a formula an engine rounds too (each sum, a LoRA's hidden layer). What that does to the result is what the
    same relative change of its inputs does: a rounded sum is the sum of slightly different terms. Where little is left
    of large terms, one run's noise is small or large by luck: several draws tell how large.
    """

    def tap(name: str, value: Array) -> Array:
        if name == "logits":  # go into no formula, and are many
            return value
        unit = UNIT_ROUNDOFF["float32" if name.endswith("att.w") or dtype == "float64" else dtype]
        signs = (_kept_signs if value.size <= FEW else _signs)(name, draw, value.shape)
        return (value * (1 + unit * signs)).astype(value.dtype)  # float64 between: 1 + u is 1 in float32

    return tap
