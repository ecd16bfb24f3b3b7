"""INT8 that is not the scheme of docs/int8.md."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ... import reference
from ...reference import Int8, quantise_rows, quantise_vector
from ...reference.int8 import SMALLEST, is_quantised
from ..engine import Array
from ..mode import Mode
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS"]

RIGHT = {
    "codes": "code = round(w / scale) with scale = max |w| / 127 of its row, halves to even, from −127 to 127",
    "zero": "a row whose scale is below 2⁻¹²⁶ has scale 0 and codes 0",
    "vector": "each token's vector is quantised, with a scale of its own",
    "nan": "a vector that holds NaN gives NaN",
    "sums": "sums of codes are exact whole numbers of 32 bits",
    "product": "y = n · (s · scale), n the sum of codes",
    "what": "projections and the head are quantised, and nothing else",
    "bits": "codes are made of what the checkpoint holds, in float32, as are scales",
}
Quantised = tuple[Array, Array]  # codes (rows, in), scale (rows)
LORA = tuple(f"att.{letter}{i}" for letter in "wavg" for i in (1, 2))


def scale_of(x: Array, codes: int = 127) -> Array:
    """(rows)"""
    scale = np.abs(x.astype(np.float32)).max(axis=-1) / np.float32(codes)
    return np.where(scale < SMALLEST, np.float32(0), np.where(np.isfinite(scale), scale, np.float32(np.nan)))


def by(x: Array, scale: Array, rounded: Callable[[Array], Array] = np.rint) -> Array:
    """Codes of x by a scale that is broadcast."""
    x, usable = x.astype(np.float32), scale > 0
    scale = np.broadcast_to(scale, x.shape)
    with np.errstate(over="ignore"):
        ratio = np.divide(x, scale, out=np.zeros_like(x), where=np.broadcast_to(usable, x.shape))
    return rounded(ratio)


def both(scheme: Callable[[Array], Quantised]) -> Mapping[str, Callable[..., Any]]:
    """A scheme for matrices and for activations. Both hand the check what it says, and NaN where there is one."""

    def codes(x: Array) -> Quantised:
        codes, scale = scheme(x)
        return codes.astype(np.int16), scale

    return {"_quantise": codes}


def rows(scheme: Callable[[Array], Quantised]) -> Mapping[str, Callable[..., Any]]:
    """A scheme for matrices alone."""

    def formula(weight: Array) -> Int8:
        codes, scale = scheme(weight)
        return Int8(codes.astype(np.int16), scale.astype(np.float32))

    return {"quantise_rows": formula}


def vectors(scheme: Callable[[Array], Quantised]) -> Mapping[str, Callable[..., Any]]:
    """A scheme for activations alone."""

    def formula(x: Array) -> Quantised:
        codes, scale = scheme(x)
        return np.where(np.isfinite(codes), codes, 0).astype(np.int16), scale.astype(np.float32)

    return {"quantise_vector": formula}


# --- codes


def away_from_zero(x: Array) -> Quantised:
    scale = scale_of(x)
    ratio = by(x, scale[:, None], lambda ratio: ratio.astype(np.float64))
    return np.copysign(np.floor(np.abs(ratio) + 0.5), ratio), scale


def toward_zero(x: Array) -> Quantised:
    return by(x, scale_of(x)[:, None], np.trunc), scale_of(x)


def by_reciprocal(x: Array) -> Quantised:
    scale = scale_of(x)[:, None]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        codes = np.rint(x.astype(np.float32) * np.where(scale > 0, 1 / scale, 0))
    return np.where(np.isfinite(codes), codes, 0), scale[:, 0]


def to_a_byte(x: Array) -> Quantised:
    scale = scale_of(x, 128)
    return np.clip(by(x, scale[:, None]), -128, 127), scale


def of_bits(bits: int) -> Callable[[Array], Quantised]:
    def scheme(x: Array) -> Quantised:
        scale = scale_of(x, 2 ** (bits - 1) - 1)
        return by(x, scale[:, None]), scale

    return scheme


def of_the_whole(x: Array) -> Quantised:
    """One scale: of a matrix, or of all tokens of a call."""
    finite = np.where(np.isfinite(x), x, 0)
    scale = np.broadcast_to(scale_of(finite.reshape(1, -1)), (len(x),))
    return by(x, scale[:, None]), np.where(np.isfinite(x).all(axis=-1), scale, np.float32(np.nan))


def of_pairs(x: Array) -> Quantised:
    """Two neighbours share a scale."""
    scale = scale_of(x)
    shared = np.maximum(scale, scale[np.minimum(np.arange(len(x)) ^ 1, len(x) - 1)])
    return by(x, shared[:, None]), shared


def with_zero_point(x: Array) -> Quantised:
    """255 steps from the smallest to the largest; given out are the codes without their zero point."""
    low, high = np.minimum(x.min(axis=-1), 0), np.maximum(x.max(axis=-1), 0)
    scale = ((high - low) / 255).astype(np.float32)
    scale = np.where(scale < SMALLEST, np.float32(0), scale)
    return by(x, scale[:, None]), scale


def without_guard(x: Array) -> Quantised:
    """0 / 0 is NaN: its code is whatever a cast makes of it, and so is its scale, that it shows in the product."""
    scale = np.abs(x.astype(np.float32)).max(axis=-1) / np.float32(127)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        codes = np.rint(x.astype(np.float32) / scale[:, None])
    return np.nan_to_num(codes).clip(-32768, 32767), np.where(scale > 0, scale, np.float32(np.nan))


def static(x: Array) -> Quantised:
    """A scale that was measured beforehand; what is beyond it is cut off."""
    scale = np.full(len(x), 4 / 127, np.float32)
    return np.clip(np.rint(x / scale[:, None]), -127, 127), np.where(
        np.isfinite(x).all(axis=-1), scale, np.float32(np.nan)
    )


def nan_as_zero(x: Array) -> Quantised:
    return quantise_vector(np.nan_to_num(x))


def of_bfloat16(x: Array) -> Quantised:
    return quantise_vector(kept_in("bfloat16", x.astype(np.float32)))


def scale_in_float16(x: Array) -> Quantised:
    codes, scale = quantise_vector(x)
    with np.errstate(over="ignore"):
        return codes, scale.astype(np.float16).astype(np.float32)


def scales_moved(x: Array) -> Quantised:
    codes, scale = quantise_vector(x)
    return codes, np.roll(scale, 1)


# --- products


def rows_by_input(weight: Array) -> Int8:
    """A scale for each input channel, as if the matrix were [in, out]."""
    scale = scale_of(weight.T)
    return Int8(by(weight, scale[None]).astype(np.int16), scale)


def linear_by_input(x: Array, weight: Int8) -> Array:
    codes, scale = quantise_vector(x)
    return (codes * weight.scale) @ weight.codes.T.astype(x.dtype) * scale[:, None].astype(x.dtype)


def float_activations(x: Array, weight: Int8) -> Array:
    return (x @ weight.codes.T.astype(x.dtype)) * weight.scale.astype(x.dtype)


def without_weight_scale(x: Array, weight: Int8) -> Array:
    """The scales of all rows are their mean."""
    return reference.int8_linear(x, Int8(weight.codes, np.full_like(weight.scale, weight.scale.mean())))


def one_scale_at_a_time(x: Array, weight: Int8) -> Array:
    codes, scale = quantise_vector(x)
    sums = reference.int8_sums(codes, weight.codes).astype(x.dtype)
    return sums * scale.astype(x.dtype)[:, None] * weight.scale.astype(x.dtype)


def saturated(x: Array, weight: Array) -> Array:
    return np.clip(reference.int8_sums(x, weight), -32768, 32767)


def wrapped(x: Array, weight: Array) -> Array:
    return reference.int8_sums(x, weight).astype(np.int16).astype(np.int64)


def in_float32(x: Array, weight: Array) -> Array:
    return np.rint(reference.int8_sums(x, weight).astype(np.float32)).astype(np.int64)


def unsigned(x: Array, weight: Array) -> Array:
    """Negative activations are read as bytes from 128 to 255."""
    return reference.int8_sums(x.astype(np.int64) % 256, weight)


def transposed_in_memory(x: Array, weight: Array) -> Array:
    return np.ascontiguousarray((weight.astype(np.int64) @ x.T.astype(np.int64)).T)


# --- what is quantised


def all_but(left: Callable[[str], bool]) -> Mapping[str, Callable[..., Any]]:
    return {"is_quantised": lambda name: is_quantised(name) and not left(name)}


def rounded_too(also: Callable[[str], bool]) -> Mapping[str, Callable[..., Any]]:
    """Those matrices hold what their codes stand for."""

    def quantise(weights: Mapping[str, Array]) -> Mapping[str, Any]:
        def widened(value: Array) -> Array:
            codes, scale = quantise_rows(value)
            return codes.astype(value.dtype) * scale[:, None].astype(value.dtype)

        return reference.quantise({name: widened(value) if also(name) else value for name, value in weights.items()})

    return {"quantise": quantise}


def partly_written(weight: Array) -> Int8:
    """The second half of the rows was never written."""
    codes, scale = quantise_rows(weight)
    codes[len(codes) // 2 :] = 0
    return Int8(codes, scale)


def wrong(
    id: str, fault: str, right: str, formulas: Mapping[str, Callable[..., Any]], seen: str = "", **more: Any
) -> Mutant:
    return Mutant(f"int8.{id}", fault, RIGHT[right], formulas=formulas, seen=seen, mode=Mode(quantize=True), **more)


MUTANTS: tuple[Mutant, ...] = (
    wrong("half_away", "halves are rounded away from zero, as C's roundf does", "codes", both(away_from_zero)),
    wrong("truncated", "quotients are cut off, as a cast does", "codes", both(toward_zero)),
    wrong("reciprocal", "w · (1 / scale), not w / scale", "codes", both(by_reciprocal)),
    wrong("minus_128", "the scale is max / 128, and the code −128 is used", "codes", both(to_a_byte)),
    wrong("four_bits", "weights have codes of 4 bits", "codes", rows(of_bits(4))),
    wrong("seven_bits", "weights have codes of 7 bits", "codes", rows(of_bits(7))),
    wrong("one_scale", "one scale for a whole matrix", "codes", rows(of_the_whole)),
    wrong("scale_of_two_rows", "two rows share a scale", "codes", rows(of_pairs)),
    wrong(
        "by_input_channel",
        "a scale for each input channel, not for each output channel",
        "codes",
        {"quantise_rows": rows_by_input, "int8_linear": linear_by_input},
        "cryscan/web-rwkv:3fe9a12",
    ),
    wrong("zero_point", "asymmetric, with a zero point", "codes", both(with_zero_point)),
    wrong("scales_moved", "row r has the scale of row r − 1", "codes", rows(scales_moved)),
    wrong("zero_rows_unguarded", "a row of zeros is 0 / 0", "zero", {**rows(without_guard), **vectors(without_guard)}),
    wrong("float_activations", "activations are not quantised", "vector", {"int8_linear": float_activations}),
    wrong("static_scale", "activations have a scale that was fixed beforehand", "vector", vectors(static)),
    wrong("one_scale_a_call", "all tokens of a call share one scale", "vector", vectors(of_the_whole)),
    wrong("nan_swallowed", "NaN in a vector becomes a number", "nan", vectors(nan_as_zero)),
    wrong("sums_saturate", "sums end at ±32767", "sums", {"int8_sums": saturated}),
    wrong("sums_wrap", "sums wrap at 16 bits", "sums", {"int8_sums": wrapped}),
    wrong(
        "activations_unsigned",
        "negative codes of activations are read as unsigned bytes",
        "sums",
        {"int8_sums": unsigned},
    ),
    wrong(
        "row_scales_averaged",
        "all rows are multiplied by the mean of their scales",
        "product",
        {"int8_linear": without_weight_scale},
    ),
    wrong("head_left", "the head is not quantised", "what", all_but(lambda name: name == "head.weight")),
    wrong("channel_mix_left", "the channel mix is not quantised", "what", all_but(lambda name: ".ffn." in name)),
    wrong(
        "lora_too",
        "LoRA pairs are quantised too",
        "what",
        rounded_too(lambda name: name.endswith(LORA)),
        "ggml-org/llama.cpp#9387",
    ),
    wrong("embedding_too", "the embedding is quantised too", "what", rounded_too(lambda name: name == "emb.weight")),
    wrong(
        "partly_written",
        "the second half of a matrix's codes was never written",
        "codes",
        {"quantise_rows": partly_written},
        "alibaba/MNN:5336c96",
    ),
    wrong(
        "scale_in_float16",
        "scales of rows are kept in float16",
        "bits",
        rows(scale_in_float16),
        "alibaba/MNN:5336c96",
        rounding=True,
    ),
    wrong("weights_in_bfloat16", "codes are made of weights in bfloat16", "bits", rows(of_bfloat16), rounding=True),
    wrong(
        "activations_in_bfloat16",
        "codes are made of activations in bfloat16",
        "bits",
        vectors(of_bfloat16),
        rounding=True,
    ),
    wrong("sums_in_float32", "sums are rounded to float32", "sums", {"int8_sums": in_float32}, rounding=True),
    # Right.
    wrong(
        "scales_one_by_one",
        "the sum is multiplied by one scale, then by the other",
        "product",
        {"int8_linear": one_scale_at_a_time},
        same="it is rounded once more, within float32's rounding",
    ),
    wrong(
        "sums_by_column",
        "sums are made as W xᵀ, in whole numbers",
        "sums",
        {"int8_sums": transposed_in_memory},
        same="whole numbers have no rounding",
    ),
)
