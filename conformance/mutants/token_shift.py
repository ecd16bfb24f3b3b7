"""Token shift, done wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import reference
from ..engine import Array, Arrays
from .block import Block, entering, instead, weights_from
from .mutant import Mutant
from .port import Port

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "y_t = x_t + (x_{t−1} − x_t) · mix, x normed, x_{−1} the last row of the call before"
LETTERS = "each of r, w, k, v, a, g is mixed by its own x_r, x_w, x_k, x_v, x_a, x_g, fused in this order"


def mix_swapped(x: Array, previous: Array, mix: Array) -> Array:
    return reference.token_shift(x, previous, 1 - mix)


def starts_from_itself(x: Array, previous: Array, mix: Array) -> Array:
    return reference.token_shift(x, x[0], mix)


def starts_from_zero(x: Array, previous: Array, mix: Array) -> Array:
    return reference.token_shift(x, np.zeros_like(previous), mix)


def two_back(x: Array, previous: Array, mix: Array) -> Array:
    shifted = np.concatenate([previous[None], previous[None], x])[: len(x)]
    return x + (shifted - x) * mix


def looks_ahead(x: Array, previous: Array, mix: Array) -> Array:
    return x + (np.concatenate([x[1:], x[-1:]]) - x) * mix


def added(x: Array, previous: Array, mix: Array) -> Array:
    return x + np.concatenate([previous[None], x[:-1]]) * mix


def weighted_mean(x: Array, previous: Array, mix: Array) -> Array:
    return np.concatenate([previous[None], x[:-1]]) * mix + x * (1 - mix)


def shifted_stream(mix: str) -> Callable[[Block, Array], Array]:
    def mixed(block: Block, value: Array) -> Array:
        """The call's first row is right already: what `keep_stream` has left in the state is mixed in."""
        u, x = block.tap("att.in"), block.x
        return np.concatenate([value[:1], u[1:] + (x[:-1] - u[1:]) * block.weight(mix)])

    return mixed


def keep_stream(port: Port, tokens: list[int], state: Arrays, seen: Arrays) -> Array:
    """The residual stream's last row goes into the state, not the normed one."""
    logits = Port.piece(port, tokens, state, seen)
    for block in port.config.blocks:
        if f"{block}.state.att_x" in state:
            state[f"{block}.state.att_x"] = entering(port, block, seen)[-1]
    return logits


def letters(order: str) -> dict[str, Callable[..., Any]]:
    """The fused mixes, in the right order in the file, read in another."""
    return weights_from({f"att.x_{read}": f"att.x_{stored}" for stored, read in zip("rwkvag", order, strict=True)})


MUTANTS = (
    Mutant(
        "token_shift.mix_swapped",
        "token shift's mix weighs the token itself and 1 − mix the one before, as in RWKV-4 and 5",
        RIGHT,
        {"token_shift": mix_swapped},
    ),
    Mutant(
        "token_shift.residual_stream",
        "token shift with the token before from the residual stream, before ln1",
        RIGHT,
        methods={
            **instead(**{f"att_x{letter}": shifted_stream(f"att.x_{letter}") for letter in "rwkvag"}),
            "piece": keep_stream,
        },
    ),
    Mutant(
        "token_shift.starts_from_itself",
        "token shift of a call's first token with itself",
        RIGHT,
        {"token_shift": starts_from_itself},
    ),
    Mutant(
        "token_shift.starts_from_zero",
        "token shift of a call's first token with zeros, whatever came before",
        RIGHT,
        {"token_shift": starts_from_zero},
        seen="ggml-org/llama.cpp#11445",
    ),
    Mutant("token_shift.two_back", "token shift by two tokens", RIGHT, {"token_shift": two_back}),
    Mutant(
        "token_shift.looks_ahead",
        "token shift toward the next token instead of the one before",
        RIGHT,
        {"token_shift": looks_ahead},
    ),
    Mutant(
        "token_shift.added", "token shift that adds x_{t−1} · mix: x_t not taken off", RIGHT, {"token_shift": added}
    ),
    Mutant("token_shift.letters_w_k", "x_w and x_k exchanged", LETTERS, methods=letters("rkwvag")),
    Mutant("token_shift.order_rkvwag", "fused mixes read in the order r k v w a g", LETTERS, methods=letters("rkvwag")),
    Mutant(
        "token_shift.weighted_mean",
        "token shift as x_{t−1} · mix + x_t · (1 − mix)",
        RIGHT,
        {"token_shift": weighted_mean},
        same="the same sum, with x_t taken out",
    ),
)
