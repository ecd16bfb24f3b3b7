"""The compiled loops of products: a matrix times a few rows.

A matrix is kept as a checkpoint stores it, [out, in], in one of four formats: float32; bfloat16 or float16 by its bits,
as uint16 or int16, since numba has neither; or INT8's codes with a scale for each row. Whatever the format, activations
are float32. A loop is compiled for a format when that is first used, and cached.

No fastmath in what has to do with codes: those, sums and results are the formulas' to the last bit.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic, overload

from . import code_dots
from .compiled import Codes, Floats, Sums, Values

__all__ = [
    *("Codes", "Factor", "Floats", "Matrix", "Sums", "Values", "Wide"),
    *(
        "as_float",
        "compiled",
        "compiled_for_threads",
        "compiled_sums",
        "factor",
        "linear",
        "part_of",
        "quantise",
        "set_threads",
    ),
]

Wide = npt.NDArray[np.int16]  # codes, as the processor multiplies them
Factor = tuple[Floats | Wide, Floats]  # what is multiplied with it: rows (B, in), floats or codes, and a scale for each

compiled = njit(cache=True, nogil=True, error_model="numpy")  # division is IEEE's, without Python's exception
compiled_for_threads = njit(cache=True, nogil=True, error_model="numpy", parallel=True)
compiled_sums = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})  # NaN stays NaN

THREADS = numba.get_num_threads()  # as many as numba will ever start
PARALLEL = 1 << 19  # products: below, they are done before a second thread has woken

ALL_BUT_SIGN = np.int32(0x7FFFFFFF)
INFINITY = np.int32(0x7F800000)  # float32's, as a whole number; NaN is above it
NORMAL = np.float32(2.0**-126)
LARGEST_CODE = np.float32(127)


def linear(x: Floats, values: Values, scale: Floats, y: Floats, sums: Sums | None = None) -> None:
    """Fills y (rows, out): x (rows, in) times a matrix. In INT8, the sums of codes go into `sums`, if given."""
    threads = numba.get_num_threads()
    if threads == 1 or len(x) * values.size < PARALLEL:
        _serial(x, values, scale, y, sums, 1)
    else:
        _parallel(x, values, scale, y, sums, threads)


def set_threads(threads: int) -> None:
    """How many threads may be used, as far as numba has them."""
    numba.set_num_threads(min(threads, THREADS))


# Codes


@compiled
def _quantise_row(x: Floats, codes: Codes | Wide) -> np.float32:
    """Fills the codes of one vector and gives its scale. x and codes (in)."""
    # The largest |x| by its bits: without their signs, float32s are ordered as their bits are, NaN above all of them,
    # and the maximum of whole numbers may be taken in any order.
    bits, largest = x.view(np.int32), np.zeros(1, np.int32)
    for c in range(len(bits)):
        largest[0] = max(largest[0], bits[c] & ALL_BUT_SIGN)
    scale = largest.view(np.float32)[0] / LARGEST_CODE
    if largest[0] >= INFINITY:
        codes[:] = 0
        return np.float32(np.nan)
    if scale < NORMAL:
        codes[:] = 0
        return np.float32(0)
    for c in range(len(x)):
        codes[c] = np.int8(np.rint(x[c] / scale))  # a division: times 1 / scale is another number
    return scale


@compiled
def quantise(x: Floats, codes: Codes | Wide, scale: Floats) -> None:
    """Fills the codes and the scale of each row: a matrix's, or an activation's. x, codes (rows, in), scale (rows)."""
    for r in range(len(x)):
        scale[r] = _quantise_row(x[r], codes[r])


# What differs by format. numba chooses by type, in the overloads.


def _as_float(context: Any, value: Any) -> Any:
    """The float32 that an element of a float matrix stands for."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (bits,) = arguments
        if value == types.float32:
            return bits
        if value == types.uint16:  # bfloat16: float32's upper half
            whole = builder.zext(bits, ir.IntType(32))
            return builder.bitcast(builder.shl(whole, ir.Constant(ir.IntType(32), 16)), ir.FloatType())
        return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType())

    return types.float32(value), build


as_float: Any = intrinsic(_as_float)


def _is_codes(values: Any) -> bool:
    return bool(values.dtype == types.int8)


@compiled
def _code_dots(x: Wide, weight: Codes, r: int, apart: int) -> tuple[np.int32, np.int32, np.int32, np.int32]:
    """The sums of rows r, r + apart, r + 2 · apart and r + 3 · apart."""
    w0, w1, w2, w3 = weight[r], weight[r + apart], weight[r + 2 * apart], weight[r + 3 * apart]
    n0 = n1 = n2 = n3 = np.int32(0)
    for c in range(len(x)):
        # Each sum is cut to 32 bits at once: left to itself numba adds int64s, four at a time instead of sixteen.
        n0 = np.int32(n0 + np.int32(x[c]) * np.int32(w0[c]))
        n1 = np.int32(n1 + np.int32(x[c]) * np.int32(w1[c]))
        n2 = np.int32(n2 + np.int32(x[c]) * np.int32(w2[c]))
        n3 = np.int32(n3 + np.int32(x[c]) * np.int32(w3[c]))
    return n0, n1, n2, n3


four_code_dots: Any = code_dots.four_dots if code_dots.AVAILABLE else _code_dots


@compiled
def _codes_by_four(
    x: Wide, scales: Floats, weight: Codes, scale: Floats, r: int, apart: int, y: Floats, sums: Sums | None
) -> None:
    for t in range(len(x)):
        four = four_code_dots(x[t], weight, r, apart)
        for i in range(4):
            row = r + i * apart
            if sums is not None:
                sums[t, row] = four[i]
            y[t, row] = np.float32(four[i]) * (scales[t] * scale[row])


@compiled_sums
def _floats_by_four(
    x: Floats, scales: Floats, weight: Values, scale: Floats, r: int, apart: int, y: Floats, sums: None
) -> None:
    r1, r2, r3 = r + apart, r + 2 * apart, r + 3 * apart
    w0, w1, w2, w3 = weight[r], weight[r1], weight[r2], weight[r3]
    for t in range(0, len(x) - 1, 2):  # eight sums at a time, where four would wait for each other
        x0, x1 = x[t], x[t + 1]
        m0 = m1 = m2 = m3 = n0 = n1 = n2 = n3 = np.float32(0)
        for c in range(len(x0)):
            f0, f1, f2, f3 = as_float(w0[c]), as_float(w1[c]), as_float(w2[c]), as_float(w3[c])
            m0 += x0[c] * f0
            m1 += x0[c] * f1
            m2 += x0[c] * f2
            m3 += x0[c] * f3
            n0 += x1[c] * f0
            n1 += x1[c] * f1
            n2 += x1[c] * f2
            n3 += x1[c] * f3
        y[t, r], y[t, r1], y[t, r2], y[t, r3] = m0, m1, m2, m3
        y[t + 1, r], y[t + 1, r1], y[t + 1, r2], y[t + 1, r3] = n0, n1, n2, n3
    if len(x) % 2:
        last = len(x) - 1
        x0 = x[last]
        m0 = m1 = m2 = m3 = np.float32(0)
        for c in range(len(x0)):
            m0 += x0[c] * as_float(w0[c])
            m1 += x0[c] * as_float(w1[c])
            m2 += x0[c] * as_float(w2[c])
            m3 += x0[c] * as_float(w3[c])
        y[last, r], y[last, r1], y[last, r2], y[last, r3] = m0, m1, m2, m3


def _by_four(x: Any, scales: Any, weight: Any, scale: Any, r: int, apart: int, y: Any, sums: Any) -> None:
    """Fills four columns of y, and of sums if given: x (rows, in) times rows r, r + apart, … of the matrix."""


@overload(_by_four, strict=False)
def _by_four_of_format(x: Any, scales: Any, weight: Any, scale: Any, r: Any, apart: Any, y: Any, sums: Any) -> Any:
    if _is_codes(weight):
        return lambda x, scales, weight, scale, r, apart, y, sums: _codes_by_four(
            x, scales, weight, scale, r, apart, y, sums
        )
    return lambda x, scales, weight, scale, r, apart, y, sums: _floats_by_four(
        x, scales, weight, scale, r, apart, y, sums
    )


def factor(x: Any, values: Any) -> Any:
    """x (rows, in) as the matrix's format multiplies it."""


@overload(factor, strict=False)
def _factor_of_format(x: Any, values: Any) -> Any:
    def codes_of(x: Any, values: Any) -> Any:
        codes, scales = np.empty(x.shape, np.int16), np.empty(len(x), np.float32)
        quantise(x, codes, scales)
        return codes, scales

    return codes_of if _is_codes(values) else lambda x, values: (x, np.empty(0, np.float32))


# A matrix times a few rows


@compiled
def _some_rows(x: Floats | Wide, scales: Floats, weight: Values, scale: Floats, y: Floats, sums: Sums | None) -> None:
    """Fills y (rows, out), and sums if given, for some rows of the matrix: x (rows, in) times weight (out, in)."""
    # Four rows a quarter apart: memory is read faster in a few streams than in one, by half.
    quarter = len(weight) // 4
    for r in range(quarter):
        _by_four(x, scales, weight, scale, r, quarter, y, sums)
    for r in range(4 * quarter, len(weight)):
        _by_four(x, scales, weight, scale, r, 0, y, sums)


@compiled
def part_of(
    part: int,
    parts: int,
    x: Floats | Wide,
    scales: Floats,
    weight: Values,
    scale: Floats,
    y: Floats,
    sums: Sums | None = None,
) -> None:
    """One of so many parts of the matrix."""
    each = -(-len(weight) // parts)
    start, stop = min(part * each, len(weight)), min((part + 1) * each, len(weight))
    some = None if sums is None else sums[:, start:stop]
    _some_rows(x, scales, weight[start:stop], scale[start:stop], y[:, start:stop], some)


def _linear(x: Floats, values: Values, scale: Floats, y: Floats, sums: Sums | None, parts: int) -> None:
    """The matrix in so many parts, each of rows that lie together: a thread's own streams."""
    rows, scales = factor(x, values)
    for part in prange(parts):
        part_of(part, parts, rows, scales, values, scale, y, sums)


_serial = compiled(_linear)
_parallel = compiled_for_threads(_linear)
