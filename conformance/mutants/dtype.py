"""Too few bits: the value is right, its precision is not what the engine claims."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ... import reference
from ...reference.attention import attend
from ..engine import Array, Arrays
from .mutant import Mutant
from .port import Port
from .precision import kept_in

__all__ = ["MUTANTS"]

RIGHT = {
    "state": "the state is kept in the precision that the engine claims, S in float32 at least",
    "decay": "decay is float32 at least: it can be very close to 1",
    "stream": "what a formula gives is handed on in the precision that the engine claims",
    "sums": "sums are added up in float32 at least",
}
BFLOAT16, FLOAT16 = "bfloat16", "float16"
DTYPES = (BFLOAT16, FLOAT16)


# --- state


def carried(part: str, dtype: str) -> Mapping[str, Callable[..., Any]]:
    """Rounded between calls."""

    def carry(port: Port, before: Arrays, after: Arrays) -> Arrays:
        return {name: kept_in(dtype, value) if name.endswith(part) else value for name, value in after.items()}

    return {"carry": carry}


def stored(dtype: str) -> Mapping[str, Callable[..., Any]]:
    """S is rounded after every token."""

    def wkv7(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, state: Array) -> tuple[Array, Array]:
        y = np.empty_like(v)
        for t in range(len(r)):
            y[t], state = one_token(t, r, w, k, v, kk, a, state)
            state = kept_in(dtype, state)
        return y, state

    return {"wkv7": wkv7}


def one_token(t: int, r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, state: Array) -> tuple[Array, Array]:
    here = slice(t, t + 1)
    y, state = reference.wkv7(r[here], w[here], k[here], v[here], kk[here], a[here], state)
    return y[0], state


def read_in_bfloat16(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, state: Array) -> tuple[Array, Array]:
    """S stays as it is, but is rounded for S r."""
    y = np.empty_like(v)
    for t in range(len(r)):
        _, state = one_token(t, r, w, k, v, kk, a, state)
        y[t] = (kept_in(BFLOAT16, state) @ r[t, :, :, None])[..., 0]
    return y, state


def written_in_bfloat16(
    r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, state: Array
) -> tuple[Array, Array]:
    """v kᵀ is rounded before it is added to S."""
    y, nothing = np.empty_like(v), np.zeros_like(k)
    for t in range(len(r)):
        _, state = one_token(t, r, w, nothing, nothing, kk, a, state)
        state = state + kept_in(BFLOAT16, v[t, :, :, None] * k[t, :, None, :])
        y[t] = (state @ r[t, :, :, None])[..., 0]
    return y, state


# --- formulas


def result(name: str, dtype: str) -> Mapping[str, Callable[..., Any]]:
    """What the reference's function of that name gives, rounded."""

    def formula(*inputs: Array) -> Array:
        return kept_in(dtype, getattr(reference, name)(*inputs))

    return {name: formula}


def inside(name: str, kind: type[np.floating]) -> Mapping[str, Callable[..., Any]]:
    """The reference's function of that name, run in another precision."""

    def formula(*inputs: Any) -> Array:
        arrays = (x.astype(kind) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in inputs)
        with np.errstate(all="ignore"):
            y: Array = getattr(reference, name)(*arrays)
        return y.astype(inputs[0].dtype)

    return {name: formula}


def factors(dtype: str) -> Mapping[str, Callable[..., Any]]:
    """Both factors of a projection are rounded, its sums are not."""

    def linear(x: Array, weight: Array) -> Array:
        return reference.linear(kept_in(dtype, x), kept_in(dtype, weight))

    return {"linear": linear}


def squares_in_float16(k: Array, k_k: Array) -> Array:
    """‖z‖² underflows where z is small."""
    z = k * k_k
    return z / np.maximum(np.sqrt(kept_in(FLOAT16, z * z).sum(axis=-1, keepdims=True)), 1e-12)


def softmax_in_bfloat16(q: Array, keys: Array, values: Array) -> Array:
    return attend(kept_in(BFLOAT16, q), kept_in(BFLOAT16, keys), values)


def linear_in_float64(x: Array, weight: Array) -> Array:
    return reference.linear(x.astype(np.float64), weight.astype(np.float64)).astype(x.dtype)


# --- what is handed on


def seen_as(ends: tuple[str, ...], dtype: str) -> Mapping[str, Callable[..., Any]]:
    """Taps whose names end so are rounded before they go on."""

    def see(port: Port, name: str, value: Array, seen: Mapping[str, Array]) -> Array:
        return kept_in(dtype, value) if name.endswith(ends) else value

    return {"see": see}


def coarse(id: str, fault: str, right: str, **parts: Any) -> Mutant:
    return Mutant(f"dtype.{id}", fault, RIGHT[right], rounding=True, **parts)


STREAM = ("emb", ".mid", "s.0.out", "s.1.out", "s.2.out", "s.3.out")  # blocks.{i}.out, and not att.out or ffn.out

MUTANTS: tuple[Mutant, ...] = (
    *(
        coarse(f"{part}_carried_in_{dtype}", f"{part} is {dtype} between calls", "state", methods=carried(part, dtype))
        for part in ("wkv", "att_x", "ffn_x")
        for dtype in DTYPES
    ),
    *(
        coarse(
            f"wkv_stored_in_{dtype}",
            f"S is {dtype} from token to token",
            "state",
            formulas=stored(dtype),
            seen="ml-explore/mlx-lm#997",
        )
        for dtype in DTYPES
    ),
    coarse(
        "wkv_read_in_bfloat16",
        "S is rounded to bfloat16 for S r",
        "state",
        formulas={"wkv7": read_in_bfloat16},
    ),
    coarse(
        "wkv_written_in_bfloat16",
        "v kᵀ is rounded to bfloat16 before it is added to S",
        "state",
        formulas={"wkv7": written_in_bfloat16},
        seen="huggingface/transformers#47787",
    ),
    *(
        coarse(
            f"decay_in_{dtype}",
            f"the decay is rounded to {dtype}",
            "decay",
            formulas=result("decay", dtype),
            seen="fla-org/fla#181",
        )
        for dtype in DTYPES
    ),
    *(
        coarse(f"{formula}_in_bfloat16", f"{what} is rounded to bfloat16", "stream", formulas=result(formula, BFLOAT16))
        for formula, what in (
            ("in_context_rate", "the in-context learning rate"),
            ("gate", "the gate"),
            ("l2norm", "the removal key"),
            ("v_first", "the value residual"),
            ("bonus", "the bonus"),
        )
    ),
    *(
        coarse(f"logits_in_{dtype}", f"logits are rounded to {dtype}", "stream", methods=seen_as(("logits",), dtype))
        for dtype in DTYPES
    ),
    coarse("stream_in_bfloat16", "the residual stream is bfloat16", "stream", methods=seen_as(STREAM, BFLOAT16)),
    coarse("normed_in_bfloat16", "ln1 and ln2 give bfloat16", "stream", methods=seen_as((".in",), BFLOAT16)),
    coarse(
        "group_norm_in_float16",
        "GroupNorm runs in float16, where small variances are zero",
        "sums",
        formulas=inside("group_norm", np.float16),
        seen="MollySophia/rwkv-qualcomm:45eb2af",
    ),
    coarse("layer_norm_in_float16", "LayerNorm runs in float16", "sums", formulas=inside("layer_norm", np.float16)),
    coarse(
        "l2norm_squares_in_float16",
        "the removal key's squares are float16, where small ones are zero",
        "sums",
        formulas={"l2norm": squares_in_float16},
    ),
    coarse(
        "projections_in_float16",
        "projections are added up in float16",
        "sums",
        formulas=inside("linear", np.float16),
        seen="BlinkDL/ChatRWKV#155",
    ),
    coarse("projections_in_bfloat16", "projections take bfloat16", "sums", formulas=factors(BFLOAT16)),
    coarse("lora_in_float16", "LoRA pairs are multiplied in float16", "sums", formulas=inside("lora", np.float16)),
    coarse(
        "scores_in_bfloat16",
        "attention scores are made of bfloat16",
        "sums",
        formulas={"attend": softmax_in_bfloat16},
        model="golden:hybrid",
    ),
    # Right.
    Mutant(
        "dtype.projections_in_float64",
        "projections are added up in float64",
        RIGHT["sums"],
        formulas={"linear": linear_in_float64},
        same="more bits than are asked for",
    ),
    Mutant(
        "dtype.decay_in_float64",
        "the decay is made in float64",
        RIGHT["decay"],
        formulas=inside("decay", np.float64),
        same="more bits than are asked for",
    ),
)
