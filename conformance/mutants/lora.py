"""The low-rank pairs, done wrong in all four places at once."""

from collections.abc import Callable

from ... import reference
from ..engine import Array
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "y = activation(x A) B, of the rank that the checkpoint's A and B have, unscaled"

Activation = Callable[[Array], Array] | None


def rank_16(x: Array, down: Array, up: Array, activation: Activation = None) -> Array:
    return reference.lora(x, down[:, :16], up[:16], activation)


def scaled(x: Array, down: Array, up: Array, activation: Activation = None) -> Array:
    return reference.lora(x, down, up, activation) / up.shape[0]


def no_activation(x: Array, down: Array, up: Array, activation: Activation = None) -> Array:
    return reference.lora(x, down, up)


def bfloat16(x: Array, down: Array, up: Array, activation: Activation = None) -> Array:
    hidden = kept_in("bfloat16", x @ down)
    return (hidden if activation is None else activation(hidden)) @ up


def merged(x: Array, down: Array, up: Array, activation: Activation = None) -> Array:
    return x @ (down @ up) if activation is None else reference.lora(x, down, up, activation)


MUTANTS = (
    Mutant(
        "lora.rank_16",
        "LoRA ranks fixed in the code: what is beyond is left out",
        RIGHT,
        {"lora": rank_16},
        seen="keras-team/keras-hub#2556",
    ),
    Mutant("lora.scaled", "LoRA pairs divided by their rank, as adapters of that name are", RIGHT, {"lora": scaled}),
    Mutant(
        "lora.no_activation",
        "LoRA pairs without what stands between: no tanh (decay), no σ (gate)",
        RIGHT,
        {"lora": no_activation},
    ),
    Mutant("lora.bfloat16", "LoRA pairs' hidden layer in bfloat16", RIGHT, {"lora": bfloat16}, rounding=True),
    Mutant(
        "lora.merged",
        "LoRA pairs multiplied beforehand, where nothing stands between",
        RIGHT,
        {"lora": merged},
        same="(x A) B = x (A B)",
    ),
)
