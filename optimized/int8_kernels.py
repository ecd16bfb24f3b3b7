"""The loops of INT8, compiled by numba. Apart from int8.py, because numba takes half a second to import and these some
to compile for the first time (they are cached): only a quantised engine pays for it.

No fastmath in what has to do with codes: those, sums and results are the formulas' to the last bit. In one file, since
numba compiles anew what has changed in the file of the function that is called, and in no other.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import njit, prange

__all__ = ["block_step", "linear", "quantise", "set_threads"]

Codes = npt.NDArray[np.int8]
Wide = npt.NDArray[np.int16]  # codes, as the processor multiplies them
Sums = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Matrix = tuple[Codes, Floats]  # codes (out, in), scale (out)

compiled = njit(cache=True, nogil=True, error_model="numpy")  # division is IEEE's, without Python's exception
compiled_for_threads = njit(cache=True, nogil=True, error_model="numpy", parallel=True)
compiled_sums = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})  # NaN stays NaN

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


def block_step(*arguments: Any) -> None:
    """`_block_step`, by as many threads as may be used."""
    _block_step(*(*arguments, _threads))


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


@compiled
def _part(
    part: int,
    parts: int,
    codes: Wide,
    scales: Floats,
    weight: Codes,
    scale: Floats,
    y: Floats,
    sums: Sums | None = None,
) -> None:
    """One of so many parts of the matrix."""
    each = -(-len(weight) // parts)
    start, stop = min(part * each, len(weight)), min((part + 1) * each, len(weight))
    some = None if sums is None else sums[:, start:stop]
    _some_rows(codes, scales, weight[start:stop], scale[start:stop], y[:, start:stop], some)


def _linear(x: Floats, weight: Codes, scale: Floats, y: Floats, sums: Sums | None, parts: int) -> None:
    """The matrix in so many parts, each of rows that lie together: a thread's own streams."""
    codes, scales = np.empty(x.shape, np.int16), np.empty(len(x), np.float32)
    quantise(x, codes, scales)
    for part in prange(parts):
        _part(part, parts, codes, scales, weight, scale, y, sums)


_serial = compiled(_linear)
_parallel = compiled_for_threads(_linear)


# One token through a block of RWKV-7. In torch a block's small operations cost as much as its quantised matrices.

# The rows of `rows` (ROWS, D): every value of a block that is shown, but one (ffn.k, which is longer).
SHOWN = (
    *("att.in", "att.xr", "att.xw", "att.xk", "att.xv", "att.xa", "att.xg"),
    *("att.r", "att.w", "att.k", "att.v", "att.a", "att.kk", "att.k_mod", "att.v_mix", "att.g"),
    *("att.wkv", "att.norm", "att.bonus", "att.gated", "att.out", "mid", "ffn.in", "ffn.xk", "ffn.out", "out"),
)
U, XR, XW, XK, XV, XA, XG, R, W, K, V, A, KK, K_MOD, V_MIX, G, Y, NORM, BONUS, GATED, ATT, MID, FU, FX, FFN, OUT = (
    range(len(SHOWN))
)

# The rows of `vectors` (19, D)
VECTORS = (
    *("ln1.weight", "ln1.bias", "att.x_r", "att.x_w", "att.x_k", "att.x_v", "att.x_a", "att.x_g"),
    *("att.w0", "att.a0", "att.v0", "att.k_k", "att.k_a", "att.r_k", "att.ln_x.weight", "att.ln_x.bias"),
    *("ln2.weight", "ln2.bias", "ffn.x_k"),
)
LN1, LN1_B, X_R, _, _, _, _, _, W0, A0, V0, K_K, K_A, R_K, LN_X, LN_X_B, LN2, LN2_B, FFN_X_K = range(len(VECTORS))

Four = tuple[Floats, Floats, Floats, Floats]  # of the LoRAs of w, a, v and g

DECAY = np.float32(-np.exp(-0.5))
SMALLEST_NORM = np.float32(1e-12)
ONE = np.float32(1)


@compiled
def _sigmoid(x: np.float32) -> np.float32:
    return ONE / (ONE + np.exp(-x))


@compiled_sums
def _dot(x: Floats, y: Floats) -> np.float32:
    total = np.float32(0)
    for c in range(len(x)):
        total += x[c] * y[c]
    return total


@compiled_sums
def _norm(x: Floats, weight: Floats, bias: Floats, eps: np.float32, y: Floats) -> None:
    """Fills y: x less its mean, over its deviation, scaled and moved, all (n). LayerNorm, or GroupNorm of a group."""
    n, total = np.float32(len(x)), np.float32(0)
    for c in range(len(x)):
        total += x[c]
    mean, squares = total / n, np.float32(0)
    for c in range(len(x)):
        squares += (x[c] - mean) * (x[c] - mean)
    inverse = ONE / np.sqrt(squares / n + eps)
    for c in range(len(x)):
        y[c] = (x[c] - mean) * inverse * weight[c] + bias[c]


@compiled
def _lerp(x: Floats, previous: Floats, mix: Floats, y: Floats) -> None:
    """Token shift: y = x + (previous − x) · mix, all (D)."""
    for c in range(len(x)):
        y[c] = x[c] + (previous[c] - x[c]) * mix[c]


@compiled
def _copy(x: Floats, y: Floats) -> None:
    for c in range(len(x)):  # numba's own y[:] = x takes ten seconds to compile, for the sake of its error message
        y[c] = x[c]


@compiled
def _add(x: Floats, y: Floats, total: Floats) -> None:
    for c in range(len(x)):
        total[c] = x[c] + y[c]


@compiled
def _lora_down(part: int, parts: int, x: Floats, down: Floats, hidden: Floats) -> None:
    """Fills one of so many parts of hidden (rank): x (D) times down (rank, D)."""
    for j in range(part, len(hidden), parts):
        hidden[j] = _dot(x, down[j])


@compiled_sums
def _lora_up(start: int, stop: int, hidden: Floats, up: Floats, y: Floats) -> None:
    """Fills y (D) from start to stop: hidden (rank) times up (rank, D)."""
    y[start:stop] = 0
    for j in range(len(hidden)):
        for c in range(start, stop):
            y[c] += hidden[j] * up[j, c]


@compiled_sums
def _head(h: int, first: Floats, vectors: Floats, S: Floats, rows: Floats, eps: np.float32) -> None:
    """From r, k, v and what the LoRAs give to gated, for one head; its S (N, N), [value, key], goes one token on."""
    N = len(S)
    start, stop = h * N, (h + 1) * N
    squares = np.float32(0)
    read = np.float32(0)
    for c in range(start, stop):
        rows[W, c] = np.exp(DECAY * _sigmoid(vectors[W0, c] + rows[W, c]))
        rows[A, c] = _sigmoid(vectors[A0, c] + rows[A, c])
        rows[KK, c] = rows[K, c] * vectors[K_K, c]
        squares += rows[KK, c] * rows[KK, c]
        rows[K_MOD, c] = rows[K, c] * (ONE + (rows[A, c] - ONE) * vectors[K_A, c])
        lean = _sigmoid(vectors[V0, c] + rows[V_MIX, c])  # in layer 0, toward v itself
        rows[V_MIX, c] = rows[V, c] + (first[c] - rows[V, c]) * lean
        read += rows[R, c] * rows[K_MOD, c] * vectors[R_K, c]
    length = np.sqrt(squares)
    if length < SMALLEST_NORM:
        length = SMALLEST_NORM
    for c in range(start, stop):
        rows[KK, c] /= length
    r, w, k, v = rows[R, start:stop], rows[W, start:stop], rows[K_MOD, start:stop], rows[V_MIX, start:stop]
    kk, a, y = rows[KK, start:stop], rows[A, start:stop], rows[Y, start:stop]
    b = kk * a
    for i in range(N):
        row, removed, seen = S[i], np.float32(0), np.float32(0)
        for j in range(N):
            removed += row[j] * kk[j]  # of S before it decays
        for j in range(N):
            row[j] = row[j] * w[j] + (v[i] * k[j] - removed * b[j])
            seen += row[j] * r[j]
        y[i] = seen
    _norm(y, vectors[LN_X, start:stop], vectors[LN_X_B, start:stop], eps, rows[NORM, start:stop])
    for c in range(start, stop):
        rows[BONUS, c] = read * rows[V_MIX, c]
        rows[GATED, c] = (rows[NORM, c] + rows[BONUS, c]) * rows[G, c]


@compiled_for_threads
def _project(codes: Wide, scales: Floats, weight: Codes, scale: Floats, y: Floats, parts: int) -> None:
    """Fills y (1, out): codes (1, in) times weight (out, in)."""
    for part in prange(parts):
        _part(part, parts, codes, scales, weight, scale, y)


@compiled_for_threads
def _project_all(
    codes: Wide,
    scales: Floats,
    matrices: tuple[Matrix, Matrix, Matrix],
    downs: Four,
    hidden: Four,
    rows: Floats,
    parts: int,
) -> None:
    """Fills r, k and v, from the codes (3, D) of xr, xk and xv, and what the LoRAs go down to, (rank) each."""
    (receptance, r_scale), (key, k_scale), (value, v_scale) = matrices  # none of numba's threads takes a tuple
    (w1, a1, v1, g1), (w, a, v, g) = downs, hidden
    for part in prange(parts):
        _part(part, parts, codes[0:1], scales[0:1], receptance, r_scale, rows[R : R + 1])
        _part(part, parts, codes[1:2], scales[1:2], key, k_scale, rows[K : K + 1])
        _part(part, parts, codes[2:3], scales[2:3], value, v_scale, rows[V : V + 1])
        _lora_down(part, parts, rows[XW], w1, w)
        _lora_down(part, parts, rows[XA], a1, a)
        _lora_down(part, parts, rows[XV], v1, v)
        _lora_down(part, parts, rows[XG], g1, g)


@compiled_for_threads
def _heads(
    first: Floats, vectors: Floats, S: Floats, hidden: Four, ups: Four, rows: Floats, eps: np.float32, parts: int
) -> None:
    """Fills w to gated, and goes on with S (H, N, N)."""
    (w, a, v, g), (w2, a2, v2, g2) = hidden, ups
    H, N = len(S), S.shape[1]
    each = -(-H // parts)
    for part in prange(parts):
        begin, end = min(part * each, H), min((part + 1) * each, H)
        _lora_up(begin * N, end * N, w, w2, rows[W])
        _lora_up(begin * N, end * N, a, a2, rows[A])
        _lora_up(begin * N, end * N, v, v2, rows[V_MIX])
        _lora_up(begin * N, end * N, g, g2, rows[G])
        for h in range(begin, end):
            _head(h, first, vectors, S[h], rows, eps)


@compiled
def _block_step(
    x: Floats,
    first: Floats,
    vectors: Floats,
    downs: Four,
    ups: Four,
    projections: tuple[Matrix, Matrix, Matrix],
    output: Matrix,
    ffn_key: Matrix,
    ffn_value: Matrix,
    state: tuple[Floats, Floats, Floats],
    eps: np.float32,
    group_eps: np.float32,
    rows: Floats,
    ffn_k: Floats,
    parts: int,
) -> None:
    """Fills rows, as SHOWN, and ffn_k (1, F) from x (D) and layer 0's v (D); layer 0 itself has a LoRA of rank 0 for v.
    The state goes one token on: att_x (D), S (H, N, N), ffn_x (D)."""
    att_x, S, ffn_x = state
    w1, a1, v1, g1 = downs
    codes, scales = np.empty((3, len(x)), np.int16), np.empty(3, np.float32)

    # Time mix
    _norm(x, vectors[LN1], vectors[LN1_B], eps, rows[U])
    for i in range(6):
        _lerp(rows[U], att_x, vectors[X_R + i], rows[XR + i])
    _copy(rows[U], att_x)
    for i, row in enumerate((XR, XK, XV)):
        scales[i] = _quantise_row(rows[row], codes[i])
    w, a = np.empty(len(w1), np.float32), np.empty(len(a1), np.float32)
    v, g = np.empty(len(v1), np.float32), np.empty(len(g1), np.float32)
    _project_all(codes, scales, projections, downs, (w, a, v, g), rows, parts)
    for j in range(len(w)):
        w[j] = np.tanh(w[j])
    for j in range(len(g)):
        g[j] = _sigmoid(g[j])
    toward = first if len(v) > 0 else rows[V]
    _heads(toward, vectors, S, (w, a, v, g), ups, rows, group_eps, parts)
    scales[0] = _quantise_row(rows[GATED], codes[0])
    _project(codes[:1], scales[:1], *output, rows[ATT : ATT + 1], parts)
    _add(x, rows[ATT], rows[MID])

    # Channel mix
    _norm(rows[MID], vectors[LN2], vectors[LN2_B], eps, rows[FU])
    _lerp(rows[FU], ffn_x, vectors[FFN_X_K], rows[FX])
    _copy(rows[FU], ffn_x)
    scales[0] = _quantise_row(rows[FX], codes[0])
    _project(codes[:1], scales[:1], *ffn_key, ffn_k, parts)
    for c in range(ffn_k.size):
        ffn_k[0, c] = np.float32(0) if ffn_k[0, c] < 0 else ffn_k[0, c] * ffn_k[0, c]
    wide, scale = np.empty(ffn_k.shape, np.int16), np.empty(1, np.float32)
    scale[0] = _quantise_row(ffn_k[0], wide[0])
    _project(wide, scale, *ffn_value, rows[FFN : FFN + 1], parts)
    _add(rows[MID], rows[FFN], rows[OUT])
