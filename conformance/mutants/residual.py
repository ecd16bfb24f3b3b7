"""How a block's two halves are wired to the residual stream, done wrong."""

from ... import reference
from ..engine import Array
from .block import Block, instead
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "mid = x + TimeMix(LN(x; ln1)), then out = mid + ChannelMix(LN(mid; ln2))"

EVERY = 2  # blocks between two halvings


def normed_input(block: Block, value: Array) -> Array:
    return block.tap("att.in") + block.tap("att.out")


def parallel(block: Block, value: Array) -> Array:
    return reference.layer_norm(block.x, *block.norm("ln2"))


def halved(block: Block, value: Array) -> Array:
    return value / 2 if block.index % EVERY == EVERY - 1 else value


def bfloat16(block: Block, value: Array) -> Array:
    return kept_in("bfloat16", value)


MUTANTS = (
    Mutant(
        "residual.time_mix_replaces",
        "x not added to the time mix's output",
        RIGHT,
        methods=instead(mid=lambda block, _: block.tap("att.out")),
    ),
    Mutant(
        "residual.channel_mix_replaces",
        "mid not added to the channel mix's output",
        RIGHT,
        methods=instead(out=lambda block, _: block.tap("ffn.out")),
    ),
    Mutant(
        "residual.normed_input",
        "the normed input added to the time mix's output instead of x",
        RIGHT,
        methods=instead(mid=normed_input),
    ),
    Mutant(
        "residual.mid_lost",
        "the channel mix's output added to x: the time mix's is lost",
        RIGHT,
        methods=instead(out=lambda block, _: block.x + block.tap("ffn.out")),
    ),
    Mutant(
        "residual.parallel",
        "the channel mix reads x, not mid: both halves side by side",
        RIGHT,
        methods=instead(ffn_in=parallel),
    ),
    Mutant(
        "residual.halved",
        "the stream halved every few blocks against overflow, but not the weights that write into it",
        RIGHT,
        methods=instead(out=halved),
        seen="huggingface/transformers#23848",
    ),
    Mutant(
        "residual.bfloat16",
        "the residual stream kept in bfloat16",
        RIGHT,
        methods=instead(mid=bfloat16, out=bfloat16),
        rounding=True,
    ),
)
