"""The compiled loops of a block of RWKV-7: a token of each of B sequences, in one call; and of many tokens, what is not
a matrix product. In torch a block's small operations cost as much as its matrices."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import prange

from .compiled import Floats, Matrix, Values
from .kernels import Factor, Wide, as_float, compiled, compiled_for_threads, compiled_sums, factor, part_of

__all__ = ["SHOWN", "VECTORS", "block_step", "recur", "shifted_inputs"]

Lengths = npt.NDArray[np.int64]

# The rows of `rows` (B, ROWS, D): every value of a block that is shown, but one (ffn.k, which is longer).
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

INPUTS = (R, K, V, W, A, V_MIX, G)  # what the products give

Four = tuple[Values, Values, Values, Values]  # of the LoRAs of w, a, v and g

DECAY = np.float32(-np.exp(-0.5))
SMALLEST_NORM = np.float32(1e-12)
ONE = np.float32(1)


@compiled
def _sigmoid(x: np.float32) -> np.float32:
    return ONE / (ONE + np.exp(-x))


@compiled_sums
def _dot(x: Floats, y: Values) -> np.float32:
    total = np.float32(0)
    for c in range(len(x)):
        total += x[c] * as_float(y[c])
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
def _gathered(rows: Floats, shown: int) -> Floats:
    """One value of every sequence, (B, D)."""
    x = np.empty((len(rows), rows.shape[2]), np.float32)
    for b in range(len(rows)):
        _copy(rows[b, shown], x[b])
    return x


@compiled
def _scattered(x: Floats, rows: Floats, shown: int) -> None:
    for b in range(len(rows)):
        _copy(x[b], rows[b, shown])


@compiled
def _lora_down(part: int, parts: int, rows: Floats, shown: int, down: Values, hidden: Floats) -> None:
    """Fills one of so many parts of hidden (B, rank): x (B, D) times down (rank, D)."""
    for j in range(part, len(down), parts):
        for b in range(len(rows)):
            hidden[b, j] = _dot(rows[b, shown], down[j])


@compiled_sums
def _lora_up(start: int, stop: int, hidden: Floats, up: Values, y: Floats) -> None:
    """Fills y (D) from start to stop: hidden (rank) times up (rank, D)."""
    some = y[start:stop]  # numba vectorises loops from 0 to a length, not from start to stop
    for c in range(len(some)):
        some[c] = 0
    for j in range(len(hidden)):
        row = up[j, start:stop]
        for c in range(len(some)):
            some[c] += hidden[j] * as_float(row[c])


@compiled_sums
def _head(h: int, first: Floats, vectors: Floats, S: Floats, rows: Floats, eps: np.float32) -> None:
    """From r, k, v and what the LoRAs give to gated, for one head; its S (N, N), [value, key], goes one token on."""
    N = len(S)
    start, stop = h * N, (h + 1) * N
    r, w, k, v = rows[R, start:stop], rows[W, start:stop], rows[K_MOD, start:stop], rows[V_MIX, start:stop]
    kk, a, y = rows[KK, start:stop], rows[A, start:stop], rows[Y, start:stop]
    raw_k, raw_v, toward = rows[K, start:stop], rows[V, start:stop], first[start:stop]
    w0, a0, v0 = vectors[W0, start:stop], vectors[A0, start:stop], vectors[V0, start:stop]
    k_k, k_a, r_k = vectors[K_K, start:stop], vectors[K_A, start:stop], vectors[R_K, start:stop]
    squares = np.float32(0)
    read = np.float32(0)
    for c in range(N):
        w[c] = np.exp(DECAY * _sigmoid(w0[c] + w[c]))
        a[c] = _sigmoid(a0[c] + a[c])
        v[c] = raw_v[c] + (toward[c] - raw_v[c]) * _sigmoid(v0[c] + v[c])  # in layer 0, toward v itself
    for c in range(N):
        kk[c] = raw_k[c] * k_k[c]
        squares += kk[c] * kk[c]
        k[c] = raw_k[c] * (ONE + (a[c] - ONE) * k_a[c])
        read += r[c] * k[c] * r_k[c]
    length = np.sqrt(squares)
    if length < SMALLEST_NORM:
        length = SMALLEST_NORM
    for c in range(N):
        kk[c] /= length
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
    norm, bonus = rows[NORM, start:stop], rows[BONUS, start:stop]
    g, gated = rows[G, start:stop], rows[GATED, start:stop]
    for c in range(N):
        bonus[c] = read * v[c]
        gated[c] = (norm[c] + bonus[c]) * g[c]


@compiled_for_threads
def _project(x: Floats | Wide, scales: Floats, weight: Values, scale: Floats, y: Floats, parts: int) -> None:
    """Fills y (B, out): x (B, in) times weight (out, in)."""
    for part in prange(parts):
        part_of(part, parts, x, scales, weight, scale, y)


@compiled_for_threads
def _project_all(
    factors: tuple[Factor, Factor, Factor],
    matrices: tuple[Matrix, Matrix, Matrix],
    results: tuple[Floats, Floats, Floats],
    downs: Four,
    hidden: Four,
    rows: Floats,
    parts: int,
) -> None:
    """Fills r, k and v (B, D) each, from xr, xk and xv, and what the LoRAs go down to, (B, rank) each."""
    (xr, xr_scales), (xk, xk_scales), (xv, xv_scales) = factors  # none of numba's threads takes a tuple
    (receptance, r_scale), (key, k_scale), (value, v_scale) = matrices
    r, k, v = results
    (w1, a1, v1, g1), (w, a, v_lean, g) = downs, hidden
    for part in prange(parts):
        part_of(part, parts, xr, xr_scales, receptance, r_scale, r)
        part_of(part, parts, xk, xk_scales, key, k_scale, k)
        part_of(part, parts, xv, xv_scales, value, v_scale, v)
        _lora_down(part, parts, rows, XW, w1, w)
        _lora_down(part, parts, rows, XA, a1, a)
        _lora_down(part, parts, rows, XV, v1, v_lean)
        _lora_down(part, parts, rows, XG, g1, g)


@compiled_for_threads
def _heads(
    first: Floats, vectors: Floats, S: Floats, hidden: Four, ups: Four, rows: Floats, eps: np.float32, parts: int
) -> None:
    """Fills w to gated, and goes on with S (B, H, N, N). first (B, D)."""
    (w, a, v, g), (w2, a2, v2, g2) = hidden, ups
    H, N = S.shape[1], S.shape[2]
    each = -(-H // parts)
    for part in prange(parts):
        begin, end = min(part * each, H), min((part + 1) * each, H)
        for b in range(len(S)):
            _lora_up(begin * N, end * N, w[b], w2, rows[b, W])
            _lora_up(begin * N, end * N, a[b], a2, rows[b, A])
            _lora_up(begin * N, end * N, v[b], v2, rows[b, V_MIX])
            _lora_up(begin * N, end * N, g[b], g2, rows[b, G])
            for h in range(begin, end):
                _head(h, first[b], vectors, S[b, h], rows[b], eps)


def block_step(*arguments: Any) -> None:
    """`_block_step`, by as many threads as may be used."""
    _block_step(*(*arguments, numba.get_num_threads()))


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
    """Fills rows (B, ROWS, D), as SHOWN, and ffn_k (B, F) from x (B, D) and layer 0's v (B, D); layer 0 itself has a
    LoRA of rank 0 for v. The states go one token on: att_x (B, D), S (B, H, N, N), ffn_x (B, D)."""
    att_x, S, ffn_x = state
    w1, a1, v1, g1 = downs
    B, D = x.shape
    wide = np.empty((B, D), np.float32)  # a product's result, in turn

    # Time mix
    for b in range(B):
        _norm(x[b], vectors[LN1], vectors[LN1_B], eps, rows[b, U])
        for i in range(6):
            _lerp(rows[b, U], att_x[b], vectors[X_R + i], rows[b, XR + i])
        _copy(rows[b, U], att_x[b])
    (receptance, _), (key, _), (value, _) = projections
    factors = (
        factor(_gathered(rows, XR), receptance),
        factor(_gathered(rows, XK), key),
        factor(_gathered(rows, XV), value),
    )
    r, k = np.empty((B, D), np.float32), np.empty((B, D), np.float32)
    w, a = np.empty((B, len(w1)), np.float32), np.empty((B, len(a1)), np.float32)
    v, g = np.empty((B, len(v1)), np.float32), np.empty((B, len(g1)), np.float32)
    _project_all(factors, projections, (r, k, wide), downs, (w, a, v, g), rows, parts)
    _scattered(r, rows, R)
    _scattered(k, rows, K)
    _scattered(wide, rows, V)
    for b in range(B):
        for j in range(len(w1)):
            w[b, j] = np.tanh(w[b, j])
        for j in range(len(g1)):
            g[b, j] = _sigmoid(g[b, j])
    toward = first if len(v1) > 0 else wide
    _heads(toward, vectors, S, (w, a, v, g), ups, rows, group_eps, parts)
    gated, scales = factor(_gathered(rows, GATED), output[0])
    _project(gated, scales, *output, wide, parts)
    _scattered(wide, rows, ATT)

    # Channel mix
    for b in range(B):
        _add(x[b], rows[b, ATT], rows[b, MID])
        _norm(rows[b, MID], vectors[LN2], vectors[LN2_B], eps, rows[b, FU])
        _lerp(rows[b, FU], ffn_x[b], vectors[FFN_X_K], rows[b, FX])
        _copy(rows[b, FU], ffn_x[b])
    xk, scales = factor(_gathered(rows, FX), ffn_key[0])
    _project(xk, scales, *ffn_key, ffn_k, parts)
    for b in range(B):
        for c in range(ffn_k.shape[1]):
            ffn_k[b, c] = np.float32(0) if ffn_k[b, c] < 0 else ffn_k[b, c] * ffn_k[b, c]  # NaN stays NaN
    hidden, scales = factor(ffn_k, ffn_value[0])
    _project(hidden, scales, *ffn_value, wide, parts)
    _scattered(wide, rows, FFN)
    for b in range(B):
        _add(rows[b, MID], rows[b, FFN], rows[b, OUT])


# Many tokens of each of B sequences: what is not a matrix product. Arrays are (B, T, D) but where it is said otherwise.


@compiled_for_threads
def shifted_inputs(
    x: Floats, previous: Floats, vectors: Floats, norm: int, mix: int, eps: np.float32, u: Floats, mixed: Floats
) -> None:
    """Fills u: LayerNorm of x, by the vectors from `norm` on; and mixed (n, B, T, D): its token shifts, by those from
    `mix` on. previous (B, D)."""
    B, T = x.shape[:2]
    for t in prange(T):
        for b in range(B):
            _norm(x[b, t], vectors[norm], vectors[norm + 1], eps, u[b, t])
    for t in prange(T):
        for b in range(B):
            before = previous[b] if t == 0 else u[b, t - 1]
            for i in range(len(mixed)):
                _lerp(u[b, t], before, vectors[mix + i], mixed[i, b, t])


@compiled_for_threads
def recur(
    inputs: Floats,
    first: Floats,
    vectors: Floats,
    S: Floats,
    lengths: Lengths,
    eps: np.float32,
    gated: Floats,
    shown: Floats,
) -> None:
    """Fills gated from inputs (7, B, T, D): r, k, v and what the LoRAs of w, a, v and g give; S (B, H, N, N) goes on by
    as many tokens as each sequence has. All that lies between goes into `shown` (B, T, ROWS, D), if it is not empty."""
    B, H, N = S.shape[:3]
    for h in prange(H):
        start, stop = h * N, (h + 1) * N
        rows = np.empty((len(SHOWN), H * N), np.float32)  # of one token
        for b in range(B):
            for t in range(lengths[b]):
                for i in range(len(INPUTS)):
                    _copy(inputs[i, b, t, start:stop], rows[INPUTS[i], start:stop])
                _head(h, first[b, t], vectors, S[b, h], rows, eps)
                _copy(rows[GATED, start:stop], gated[b, t, start:stop])
                if shown.size > 0:
                    for i in range(R, GATED + 1):
                        _copy(rows[i, start:stop], shown[b, t, i, start:stop])
