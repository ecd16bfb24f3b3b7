"""The start of the residual stream, done wrong."""

import numpy as np

from ... import reference
from ..engine import Array
from .block import Block, instead
from .mutant import Mutant

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "x_t = LayerNorm(emb[token_t]; ln0), and the residual stream starts from the normed row"

PANTHEON = "Pantheon's description of its RWKV-X engine"


def ln0_dropped(tokens: Array, emb: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return emb[tokens]


def l2_rows(tokens: Array, emb: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    rows = emb[tokens]
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def ln0_twice(tokens: Array, emb: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return reference.layer_norm(reference.embedding(tokens, emb, weight, bias, eps), weight, bias, eps)


def rms(tokens: Array, emb: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    rows = emb[tokens]
    return rows / np.sqrt((rows * rows).mean(-1, keepdims=True) + eps) * weight + bias


def no_affine(tokens: Array, emb: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return reference.embedding(tokens, emb, np.ones_like(weight), np.zeros_like(bias), eps)


def id_off_by_one(tokens: Array, emb: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return reference.embedding((tokens + 1) % len(emb), emb, weight, bias, eps)


def last_id_wraps(tokens: Array, emb: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return reference.embedding(tokens % (len(emb) - 1), emb, weight, bias, eps)


def table_normed(tokens: Array, emb: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return reference.layer_norm(emb, weight, bias, eps)[tokens]


def ln0_in_the_first_block(block: Block, value: Array) -> Array:
    """ln1 of ln0, while the stream itself stays as it is."""
    if block.index > 0:
        return value
    return reference.layer_norm(reference.layer_norm(block.x, *block.norm("ln0")), *block.norm("ln1"))


MUTANTS = (
    Mutant("embedding.ln0_dropped", "the embedding row without ln0", RIGHT, {"embedding": ln0_dropped}),
    Mutant(
        "embedding.l2_rows",
        "embedding rows divided by their L2 norm instead of ln0",
        RIGHT,
        {"embedding": l2_rows},
        seen=PANTHEON,
    ),
    Mutant(
        "embedding.ln0_twice",
        "ln0 folded into the table and applied again at run time",
        RIGHT,
        {"embedding": ln0_twice},
    ),
    Mutant("embedding.rms", "ln0 as an RMS norm: the mean is not taken off", RIGHT, {"embedding": rms}),
    Mutant("embedding.no_affine", "ln0 without its weight and bias", RIGHT, {"embedding": no_affine}),
    Mutant(
        "embedding.ln0_on_the_branch",
        "ln0 only in front of the first block's ln1: the residual stream starts from the un-normed row",
        RIGHT,
        {"embedding": ln0_dropped},
        instead(att_in=ln0_in_the_first_block),
    ),
    Mutant("embedding.id_off_by_one", "each token has the row of the next id", RIGHT, {"embedding": id_off_by_one}),
    Mutant(
        "embedding.last_id_wraps",
        "the last id wraps to row 0: the number of rows does not fit the type of ids",
        RIGHT,
        {"embedding": last_id_wraps},
        seen="cryscan/web-rwkv:34a7308",
    ),
    Mutant(
        "embedding.table_normed",
        "ln0 folded into the table",
        RIGHT,
        {"embedding": table_normed},
        same="LayerNorm looks at one row: it may come before the look-up",
    ),
)
