"""Where the gate multiplies, done wrong."""

from ... import reference
from ..engine import Array
from .block import Block, instead
from .mutant import Mutant

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "out = W_o ((norm + bonus) · g)"


def no_gate(norm: Array, bonus: Array, g: Array) -> Array:
    return norm + bonus


def norm_only(norm: Array, bonus: Array, g: Array) -> Array:
    return norm * g + bonus


def bonus_only(norm: Array, bonus: Array, g: Array) -> Array:
    return norm + bonus * g


def bonus_taken_off(norm: Array, bonus: Array, g: Array) -> Array:
    return (norm - bonus) * g


def multiplied_out(norm: Array, bonus: Array, g: Array) -> Array:
    return norm * g + bonus * g


def gated_inside(block: Block, _: Array) -> Array:
    y = block.tap("att.wkv") * block.heads(block.tap("att.g"))
    return reference.group_norm(y, *block.norm("att.ln_x"))


def gated_after(block: Block, _: Array) -> Array:
    ungated = block.tap("att.norm") + block.tap("att.bonus")
    return reference.linear(ungated, block.weight("att.output.weight")) * block.tap("att.g")


MUTANTS = (
    Mutant("gate_correction.no_gate", "the gate left out", RIGHT, {"gate_correction": no_gate}),
    Mutant(
        "gate_correction.norm_only",
        "the bonus joins after the gate: norm · g + bonus",
        RIGHT,
        {"gate_correction": norm_only},
    ),
    Mutant(
        "gate_correction.bonus_only",
        "the gate multiplies the bonus alone: norm + bonus · g",
        RIGHT,
        {"gate_correction": bonus_only},
    ),
    Mutant(
        "gate_correction.bonus_taken_off",
        "the bonus taken off: (norm − bonus) · g",
        RIGHT,
        {"gate_correction": bonus_taken_off},
    ),
    Mutant(
        "gate_correction.before_norm",
        "the gate multiplies before GroupNorm, as in Mamba-2",
        RIGHT,
        {"gate_correction": no_gate},
        instead(att_norm=gated_inside),
    ),
    Mutant(
        "gate_correction.after_output",
        "the gate multiplies after the output projection",
        RIGHT,
        {"gate_correction": no_gate},
        instead(att_out=gated_after),
    ),
    Mutant(
        "gate_correction.multiplied_out",
        "the gate multiplied out: norm · g + bonus · g",
        RIGHT,
        {"gate_correction": multiplied_out},
        same="the same product, multiplied out",
    ),
)
