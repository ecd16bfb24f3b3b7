"""The recurrence, done wrong."""

from collections.abc import Callable

import numpy as np

from ... import reference
from ..engine import Array
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS", "RECURRENCE", "RIGHT"]

RIGHT = "S_t = S_{t−1} (diag(w) − kk (kk · a)ᵀ) + v kᵀ, y = S_t r; S is [value, key] and read before it decays"

PANTHEON = "Pantheon's description of its RWKV-X engine"

# One token: r, w, k, v, kk, a (H, N) and the state (H, N, N) → y (H, N) and the state after it.
Step = Callable[[Array, Array, Array, Array, Array, Array, Array], tuple[Array, Array]]


def stepped(step: Step) -> Callable[..., tuple[Array, Array]]:
    def wkv7(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, state: Array) -> tuple[Array, Array]:
        y = np.empty_like(v)
        for t in range(len(r)):
            y[t], state = step(r[t], w[t], k[t], v[t], kk[t], a[t], state)
        return y, state

    return wkv7


def read(S: Array, key: Array) -> Array:
    """S key."""
    return (S @ key[..., None])[..., 0]


def outer(column: Array, row: Array) -> Array:
    return column[..., :, None] * row[..., None, :]


def turned(S: Array) -> Array:
    return S.swapaxes(-1, -2)


def columns(x: Array) -> Array:
    """A factor for each column, S · columns(w) = S diag(w)."""
    return x[..., None, :]


def three_terms(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    """The right one, as kernels write it."""
    S = S * columns(w) - outer(read(S, kk), kk * a) + outer(v, k)
    return read(S, r), S


RECURRENCE = stepped(three_terms)


def decay_before_read(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    S = S * columns(w)
    S = S - outer(read(S, kk), kk * a) + outer(v, k)
    return read(S, r), S


def no_delta(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    S = S * columns(w) + outer(v, k)
    return read(S, r), S


def key_for_rate(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    S = S * columns(w) - outer(read(S, kk), k) + outer(v, k)
    return read(S, r), S


def no_rate(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    return three_terms(r, w, k, v, kk, np.ones_like(a), S)


def rate_squared(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    return three_terms(r, w, k, v, kk, a * a, S)


def plus(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    return three_terms(r, w, k, v, kk, -a, S)


def exchanged(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    S = S * columns(w) - outer(read(S, kk * a), kk) + outer(v, k)
    return read(S, r), S


def decay_of_rows(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    S = S * w[..., None] - outer(read(S, kk), kk * a) + outer(v, k)
    return read(S, r), S


def decay_after_write(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    S = (S - outer(read(S, kk), kk * a) + outer(v, k)) * columns(w)
    return read(S, r), S


def decay_after_delta(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    S = (S - outer(read(S, kk), kk * a)) * columns(w) + outer(v, k)
    return read(S, r), S


def write_decayed(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    return three_terms(r, w, k * w, v, kk, a, S)


def textbook_delta(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    S = S * columns(w) + outer(v - read(S, kk), kk * a)
    return read(S, r), S


def delta_turned(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    S = S * columns(w) - outer(read(turned(S), kk), kk * a) + outer(v, k)
    return read(S, r), S


def output_turned(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    _, S = three_terms(r, w, k, v, kk, a, S)
    return read(turned(S), r), S


def write_turned(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    return three_terms(r, w, v, k, kk, a, S)


def old_state_read(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    _, after = three_terms(r, w, k, v, kk, a, S)
    return read(S, r), after


def scaled(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    y, S = three_terms(r, w, k, v, kk, a, S)
    return y * y.shape[-1] ** -0.5, S


def decay_of_head_0(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    return three_terms(r, np.broadcast_to(w[:1], w.shape), k, v, kk, a, S)


def pantheon(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    S = S * columns(w)
    S = S + outer(read(S, -kk), k)
    S = S + outer(v, k)
    return read(S, r), S


def pantheon_in_rows(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    S = S * columns(w)
    S = S + outer(read(turned(S), -kk), k)
    S = S + outer(v, k)
    return read(turned(S), r), S


def bfloat16_state(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    _, S = three_terms(r, w, k, v, kk, a, S)
    S = kept_in("bfloat16", S)
    return read(S, r), S


def bfloat16_products(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, S: Array) -> tuple[Array, Array]:
    removed = kept_in("bfloat16", outer(kk, kk * a))
    S = S * columns(w) - S @ removed + kept_in("bfloat16", outer(v, k))
    return read(S, r), S


def held_turned(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, state: Array) -> tuple[Array, Array]:
    """T = Sᵀ, [key, value], as fla and MNN keep it; turned at the border."""
    y, T = np.empty_like(v), turned(state)
    for t in range(len(r)):
        T = w[t][..., None] * T - outer(kk[t] * a[t], read(turned(T), kk[t])) + outer(k[t], v[t])
        y[t] = read(turned(T), r[t])
    return y, turned(T)


def two_at_once(r: Array, w: Array, k: Array, v: Array, kk: Array, a: Array, state: Array) -> tuple[Array, Array]:
    """The transitions of two tokens multiplied first, as a parallel scan has them."""
    one = np.eye(w.shape[-1], dtype=w.dtype)
    transition, write = columns(w) * one - outer(kk, kk * a), outer(v, k)
    y = np.empty_like(v)
    for t in range(0, len(r) - 1, 2):
        y[t] = read(state, read(transition[t], r[t])) + v[t] * (k[t] * r[t]).sum(-1, keepdims=True)
        state = state @ (transition[t] @ transition[t + 1]) + (write[t] @ transition[t + 1] + write[t + 1])
        y[t + 1] = read(state, r[t + 1])
    if len(r) % 2:
        state = state @ transition[-1] + write[-1]
        y[-1] = read(state, r[-1])
    return y, state


def _wrong(name: str, fault: str, step: Step, *, seen: str = "", rounding: bool = False) -> Mutant:
    return Mutant(f"wkv7.{name}", fault, RIGHT, {"wkv7": stepped(step)}, seen=seen, rounding=rounding)


MUTANTS = (
    _wrong("decay_before_read", "the state decays before the delta rule reads it", decay_before_read, seen=PANTHEON),
    _wrong(
        "no_delta",
        "no delta rule: diagonal decay and additive write, like RWKV-6",
        no_delta,
        seen="ooples/AiDotNet#875",
    ),
    _wrong("key_for_rate", "k in place of kk · a: removed under the written key", key_for_rate, seen=PANTHEON),
    _wrong("no_rate", "kk in place of kk · a: a left out of the removal", no_rate),
    _wrong("rate_squared", "a multiplied twice into the removal", rate_squared),
    _wrong("plus", "the delta rule adds what it should remove", plus),
    _wrong(
        "exchanged", "read with kk · a, removed under kk: a and b exchanged", exchanged, seen="RWKV/rwkv.cpp:7b43193"
    ),
    _wrong("decay_of_rows", "decay multiplies rows (values), not columns (keys)", decay_of_rows),
    _wrong("decay_after_write", "the decay comes last: the new value decays at once", decay_after_write),
    _wrong("decay_after_delta", "what was removed decays too: (S − s (kk · a)ᵀ) diag(w)", decay_after_delta),
    _wrong("write_decayed", "the written key multiplied by the decay", write_decayed),
    _wrong("textbook_delta", "DeltaNet's rule: v is written under kk · a, not under k", textbook_delta),
    _wrong(
        "delta_turned",
        "the delta rule reads the transposed state",
        delta_turned,
        seen="cryscan/web-rwkv:5af7fc4",
    ),
    _wrong("output_turned", "y = Sᵀ r", output_turned),
    _wrong("write_turned", "k vᵀ is written in place of v kᵀ", write_turned, seen="RWKV/rwkv.cpp:7b43193"),
    _wrong("old_state_read", "y comes from the state before the token", old_state_read),
    _wrong("scaled", "y divided by √N, as attention is", scaled, seen="fla-org/fla#445"),
    _wrong("decay_of_head_0", "the first head's decay for every head", decay_of_head_0, seen="fla-org/fla#1085"),
    _wrong("pantheon", "decay first, then S += (S a) kᵀ with a = −kk", pantheon, seen=PANTHEON),
    _wrong(
        "pantheon_in_rows", "the same read with row vectors: S += (aᵀ S) kᵀ, y = rᵀ S", pantheon_in_rows, seen=PANTHEON
    ),
    _wrong("bfloat16_state", "the state kept in bfloat16", bfloat16_state, seen="ml-explore/mlx-lm#997", rounding=True),
    _wrong(
        "bfloat16_products",
        "v kᵀ and kk (kk · a)ᵀ formed in bfloat16",
        bfloat16_products,
        seen="huggingface/transformers#47787",
        rounding=True,
    ),
    Mutant(
        "wkv7.one_matrix",
        "S multiplied by the token's transition as one matrix, as the paper writes it",
        RIGHT,
        {"wkv7": reference.wkv7},
        same="three terms, factored",
    ),
    Mutant(
        "wkv7.held_turned",
        "the state held as [key, value], every read turned with it",
        RIGHT,
        {"wkv7": held_turned},
        same="(S x)ᵀ = xᵀ Sᵀ",
    ),
    Mutant(
        "wkv7.two_at_once",
        "two tokens' transitions multiplied before the state is",
        RIGHT,
        {"wkv7": two_at_once},
        same="products of matrices are associative",
    ),
)
