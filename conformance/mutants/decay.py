"""The decay of the state, done wrong."""

import math
from collections.abc import Callable

import numpy as np

from ... import reference
from ..engine import Array
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "w = exp(−e^(−1/2) · σ(w0 + tanh(xw w1) w2))"

SCALE = math.exp(-0.5)


def level(xw: Array, w0: Array, w1: Array, w2: Array) -> Array:
    """The right σ's argument."""
    return w0 + reference.lora(xw, w1, w2, np.tanh)


def softplus(x: Array) -> Array:
    return np.logaddexp(x, np.zeros_like(x))


def of_level(formula: Callable[[Array], Array]) -> Callable[..., Array]:
    """A decay that is wrong from the level on."""

    def decay(xw: Array, w0: Array, w1: Array, w2: Array) -> Array:
        return formula(level(xw, w0, w1, w2))

    return decay


def scaled(constant: float) -> Callable[..., Array]:
    return of_level(lambda level: np.exp(-constant * reference.sigmoid(level)))


def no_tanh(xw: Array, w0: Array, w1: Array, w2: Array) -> Array:
    return np.exp(-SCALE * reference.sigmoid(w0 + reference.lora(xw, w1, w2)))


def tanh_outside(xw: Array, w0: Array, w1: Array, w2: Array) -> Array:
    return np.exp(-SCALE * reference.sigmoid(w0 + np.tanh(reference.lora(xw, w1, w2))))


def sigmoid_for_tanh(xw: Array, w0: Array, w1: Array, w2: Array) -> Array:
    return np.exp(-SCALE * reference.sigmoid(w0 + reference.lora(xw, w1, w2, reference.sigmoid)))


def no_w0(xw: Array, w0: Array, w1: Array, w2: Array) -> Array:
    return reference.decay(xw, np.zeros_like(w0), w1, w2)


MUTANTS = (
    Mutant("decay.no_tanh", "the decay without tanh between its LoRA's matrices", RIGHT, {"decay": no_tanh}),
    Mutant("decay.tanh_outside", "the decay's tanh after its LoRA's second matrix", RIGHT, {"decay": tanh_outside}),
    Mutant(
        "decay.sigmoid_for_tanh",
        "the decay with σ between its LoRA's matrices instead of tanh",
        RIGHT,
        {"decay": sigmoid_for_tanh},
    ),
    Mutant("decay.no_w0", "the decay without w0", RIGHT, {"decay": no_w0}),
    Mutant(
        "decay.logarithm",
        "the logarithm of the decay used as the decay: exp missing",
        RIGHT,
        {"decay": of_level(lambda level: -SCALE * reference.sigmoid(level))},
    ),
    Mutant("decay.no_scale", "the decay without the factor e^(−1/2)", RIGHT, {"decay": scaled(1.0)}),
    Mutant("decay.grows", "the decay without its minus sign: exp(+e^(−1/2) · σ)", RIGHT, {"decay": scaled(-SCALE)}),
    Mutant("decay.twice", "the decay applied twice to each token", RIGHT, {"decay": scaled(2 * SCALE)}),
    Mutant(
        "decay.constant_0.6065", "e^(−1/2) written as 0.6065", RIGHT, {"decay": scaled(0.6065)}, seen="alibaba/MNN wiki"
    ),
    Mutant(
        "decay.rwkv6",
        "RWKV-6's decay, exp(−exp(level))",
        RIGHT,
        {"decay": of_level(lambda level: np.exp(-np.exp(level)))},
    ),
    Mutant(
        "decay.logarithm_for_level",
        "the logarithm of the decay given to a kernel that takes exp(−exp(·)) of it",
        RIGHT,
        {"decay": of_level(lambda level: np.exp(-np.exp(-SCALE * reference.sigmoid(level))))},
        seen="fla-org/fla#415",
    ),
    Mutant(
        "decay.softplus_of_level",
        "softplus(level) instead of softplus(−level) in the kernels' form",
        "w = exp(−exp(−softplus(−level) − 1/2))",
        {"decay": of_level(lambda level: np.exp(-np.exp(-softplus(level) - 0.5)))},
    ),
    Mutant(
        "decay.half_outside",
        "the 1/2 of the kernels' form outside the inner exponential",
        "w = exp(−exp(−softplus(−level) − 1/2))",
        {"decay": of_level(lambda level: np.exp(-np.exp(-softplus(-level)) - 0.5))},
    ),
    Mutant(
        "decay.bfloat16",
        "the decay, and the σ in it, in bfloat16",
        RIGHT,
        {
            "decay": of_level(
                lambda level: kept_in("bfloat16", np.exp(-SCALE * kept_in("bfloat16", reference.sigmoid(level))))
            )
        },
        seen="fla-org/fla#181",
        rounding=True,
    ),
    Mutant(
        "decay.softplus_form",
        "exp(−exp(−softplus(−level) − 1/2)), as the training kernels write it",
        RIGHT,
        {"decay": of_level(lambda level: np.exp(-np.exp(-softplus(-level) - 0.5)))},
        same="exp(−softplus(−l)) = σ(l)",
    ),
    Mutant(
        "decay.power_of_two",
        "2^(−log2(e) · e^(−1/2) · σ(level)), as GPUs compute an exponential",
        RIGHT,
        {"decay": of_level(lambda level: np.exp2(-math.log2(math.e) * SCALE * reference.sigmoid(level)))},
        same="eˣ = 2^(x · log2 e)",
    ),
    Mutant(
        "decay.constant_0.606531",
        "e^(−1/2) written as 0.606531",
        RIGHT,
        {"decay": scaled(0.606531)},
        seen="PyPI rwkv and llama.cpp",
        same="moves a decay by 2e-7 at the most, two or three roundings of a float32 (a float64 engine would be told)",
    ),
)
