"""The loops of INT8, compiled by numba. Apart from int8.py, because numba takes half a second to import and these a few
to compile for the first time (they are cached): only a quantised engine pays for it.

No fastmath: codes, sums and results are the formulas' to the last bit.
"""

import numba
import numpy as np
import numpy.typing as npt
from numba import njit, prange

__all__ = ["linear", "quantise", "set_threads"]

Codes = npt.NDArray[np.int8]
Wide = npt.NDArray[np.int16]  # codes, as the processor multiplies them
Sums = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

compiled = njit(cache=True, nogil=True, error_model="numpy")  # division is IEEE's, without Python's exception
compiled_for_threads = njit(cache=True, nogil=True, error_model="numpy", parallel=True)

THREADS = numba.get_num_threads()  # as many as numba will ever start
PARALLEL = 1 << 19  # products: below, they are done before a second thread has woken

ALL_BUT_SIGN = np.int32(0x7FFFFFFF)
INFINITY = np.int32(0x7F800000)  # float32's, as a whole number; NaN is above it
NORMAL = np.float32(2.0**-126)
LARGEST_CODE = np.float32(127)


_threads = THREADS


def linear(x: Floats, weight: Codes, scale: Floats, y: Floats, sums: Sums | None = None) -> None:
    """Fills y (rows, out), and sums if given: x (rows, in) quantised, times codes (out, in) with their scale (out)."""
    alone = _threads == 1 or len(x) * weight.size < PARALLEL
    if alone:
        _serial(x, weight, scale, y, sums, 1)
    else:
        _parallel(x, weight, scale, y, sums, _threads)


def set_threads(threads: int) -> None:
    """How many threads `linear` may use, as far as numba has them."""
    global _threads
    _threads = min(threads, THREADS)
    numba.set_num_threads(_threads)


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


@compiled
def _dots(x: Wide, weight: Codes, r: int, apart: int) -> tuple[np.int32, np.int32, np.int32, np.int32]:
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


@compiled
def _some_rows(codes: Wide, scales: Floats, weight: Codes, scale: Floats, y: Floats, sums: Sums | None) -> None:
    """Fills y (rows, out), and sums if given, for some rows of the matrix: codes (rows, in) times weight (out, in)."""
    # Four rows a quarter apart: memory is read faster in a few streams than in one, by half.
    quarter = len(weight) // 4
    for r in range(quarter):
        for t in range(len(codes)):
            four = _dots(codes[t], weight, r, quarter)
            for i in range(4):
                row = r + i * quarter
                if sums is not None:
                    sums[t, row] = four[i]
                y[t, row] = np.float32(four[i]) * (scales[t] * scale[row])
    for row in range(4 * quarter, len(weight)):
        for t in range(len(codes)):
            n = _dots(codes[t], weight, row, 0)[0]
            if sums is not None:
                sums[t, row] = n
            y[t, row] = np.float32(n) * (scales[t] * scale[row])


def _linear(x: Floats, weight: Codes, scale: Floats, y: Floats, sums: Sums | None, parts: int) -> None:
    """The matrix in so many parts, each of rows that lie together: a thread's own streams."""
    codes, scales = np.empty(x.shape, np.int16), np.empty(len(x), np.float32)
    quantise(x, codes, scales)
    each = -(-len(weight) // parts)
    for part in prange(parts):
        start, stop = part * each, min((part + 1) * each, len(weight))
        some = None if sums is None else sums[:, start:stop]
        _some_rows(codes, scales, weight[start:stop], scale[start:stop], y[:, start:stop], some)


_serial = compiled(_linear)
_parallel = compiled_for_threads(_linear)
