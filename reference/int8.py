"""INT8: matrices and activations in codes of one byte, multiplied in whole numbers.

The scheme is that of Pantheon's RWKV-X engine: symmetric, a scale for each output channel, activations quantised once a
vector. What it leaves open is settled in docs/int8.md. Codes are made in float32 whatever the precision of the rest:
the same float32 input has the same codes in every run.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from ._array import Array

SMALLEST = np.finfo(np.float32).tiny  # 2⁻¹²⁶, the smallest normal number

PROJECTIONS = frozenset(
    {f"att.{name}.weight" for name in ("receptance", "key", "value", "output")}
    | {f"ffn.{name}.weight" for name in ("key", "value")}
)


class Int8(NamedTuple):
    """A matrix (out, in), W_rc ≈ codes_rc · scale_r."""

    codes: Array  # (out, in) int8, −127 to 127
    scale: Array  # (out) float32


def quantise_rows(weight: Array) -> Int8:
    """scale_r = max_c |W_rc| / 127, code_rc = round(W_rc / scale_r), halves to even; both divisions in float32.

    A row is an output channel: its scale can be taken out of the dot product. A row whose scale would be below 2⁻¹²⁶
    counts as zero: scale 0, codes 0. weight (out, in) → codes (out, in) int8, scale (out) float32.
    Source: Pantheon's description of its RWKV-X engine.
    """
    codes, scale = _quantise(weight)
    if not np.isfinite(scale).all():
        row = int(np.argmin(np.isfinite(scale)))
        raise InputError(f"cannot be quantised: row {row} holds NaN or infinity", expected="finite weights")
    return Int8(codes, scale)


def quantise_vector(x: Array) -> tuple[Array, Array]:
    """The same for each token: s_t = max_c |x_tc| / 127, code_tc = round(x_tc / s_t).

    A vector that holds NaN or infinity has scale NaN and codes 0, so that NaN comes of it and not a number.
    x (T, in) → codes (T, in) int8, scale (T) float32.
    """
    return _quantise(x)


def int8_sums(x: Array, weight: Array) -> Array:
    """n_tr = Σ_c x_tc w_rc, exactly. Codes x (T, in) and weight (out, in) → (T, out) whole numbers.

    int32 holds them up to in = 133144.
    """
    # In float64, because numpy is slow at products of whole numbers: below 2⁵³ it holds every partial sum exactly.
    return (x.astype(np.float64) @ weight.T.astype(np.float64)).astype(np.int64)


def int8_linear(x: Array, weight: Int8) -> Array:
    """y_tr = n_tr · (s_t · scale_r), n_tr the sum over the codes and s_t the scale of token t's vector.

    In the dtype of x: n is rounded to it, the scales are multiplied first. x (T, in) → (T, out).
    """
    codes, scale = quantise_vector(x)
    sums = int8_sums(codes, weight.codes).astype(x.dtype)  # (T, out)
    return sums * (scale.astype(x.dtype)[:, None] * weight.scale.astype(x.dtype))  # (T, out)


def quantise(weights: Mapping[str, Array]) -> Mapping[str, Any]:
    """The weights with each projection W (out, in) as an Int8, for `forward`.

    Projections are receptance, key, value and output of the time mix (and of an RWKV-X's attention), key and value of
    the channel mix, and the head. Nothing else is quantised: no embedding, no LoRA pair, no vector.
    """
    return {name: _named(name, value) if is_quantised(name) else value for name, value in weights.items()}


def is_quantised(name: str) -> bool:
    """Whether the tensor of that official name is a projection."""
    block, _, part = name.partition(".")
    if block not in ("blocks", "moba"):
        return name == "head.weight"
    return part.partition(".")[2] in PROJECTIONS


def _named(name: str, weight: Array) -> Int8:
    try:
        return quantise_rows(weight)
    except InputError as error:
        raise InputError(f"{name} {error.problem}", expected="finite weights") from None


def _quantise(x: Array) -> tuple[Array, Array]:
    """Codes and scale of each row, NaN for the scale of a row that is not finite."""
    x = x.astype(np.float32)
    scale = np.abs(x).max(axis=-1) / np.float32(127)  # (rows); NaN and infinity come through
    scale = np.where(np.isfinite(scale), scale, np.float32(np.nan))
    # Below 2⁻¹²⁶ a scale loses bits until w / scale is no longer 127 at most, and some machines take it for zero.
    scale = np.where(scale < SMALLEST, np.float32(0), scale)
    usable = scale > 0
    ratio = np.divide(x, scale[..., None], out=np.zeros_like(x), where=usable[..., None])
    return np.rint(ratio).astype(np.int8), scale
