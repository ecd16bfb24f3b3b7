"""The removal key, done wrong."""

from collections.abc import Callable

import numpy as np

from ... import reference
from ..engine import Array
from .block import Block, instead
from .mutant import Mutant
from .precision import kept_in

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "kk_h = z_h / max(‖z_h‖, 1e-12), z = k · k_k, k as projected, each head on its own"


def divided(by: Callable[[Array], Array]) -> Callable[..., Array]:
    """z over something else than its clamped norm. `by` gets z (T, H, N)."""

    def l2norm(k: Array, k_k: Array) -> Array:
        z = k * k_k
        with np.errstate(invalid="ignore"):
            return z / by(z)

    return l2norm


def squares(z: Array) -> Array:
    return (z * z).sum(-1, keepdims=True)


def whole_width(z: Array) -> Array:
    norm = np.sqrt((z * z).sum((-2, -1), keepdims=True))
    return np.maximum(norm, 1e-12)


def float16_square(z: Array) -> Array:
    return np.maximum(np.sqrt(kept_in("float16", squares(z))), 1e-12)


def no_k_k(k: Array, k_k: Array) -> Array:
    return reference.l2norm(k, np.ones_like(k_k))


def k_k_after(k: Array, k_k: Array) -> Array:
    return reference.l2norm(k, np.ones_like(k_k)) * k_k


def of_updated_key(block: Block, _: Array) -> Array:
    k = reference.k_update(block.tap("att.k"), block.tap("att.a"), block.heads(block.weight("att.k_a")))
    return reference.l2norm(k, block.heads(block.weight("att.k_k")))


MUTANTS = (
    Mutant(
        "l2norm.whole_width",
        "kk normalised over all of D instead of each head",
        RIGHT,
        {"l2norm": divided(whole_width)},
    ),
    Mutant(
        "l2norm.none",
        "kk not normalised: the raw k · k_k",
        RIGHT,
        {"l2norm": divided(np.ones_like)},
        seen="yuyi2439/rwkv-tl:b2de0f7",
    ),
    Mutant(
        "l2norm.eps_1e-6_in_root",
        "kk = z / √(‖z‖² + 1e-6), as fla has it fused",
        RIGHT,
        {"l2norm": divided(lambda z: np.sqrt(squares(z) + 1e-6))},
        seen="fla-org/fla, fuse_norm",
    ),
    Mutant(
        "l2norm.eps_added",
        "kk's norm with 1e-12 added instead of clamped at it",
        RIGHT,
        {"l2norm": divided(lambda z: np.sqrt(squares(z)) + 1e-12)},
    ),
    Mutant(
        "l2norm.clamp_1e-7",
        "kk's norm clamped at 1e-7 instead of 1e-12",
        RIGHT,
        {"l2norm": divided(lambda z: np.maximum(np.sqrt(squares(z)), 1e-7))},
        seen="ggml's test-backend-ops",
    ),
    Mutant(
        "l2norm.square_clamped",
        "1e-12 taken for the square of kk's norm: the norm clamped at 1e-6",
        RIGHT,
        {"l2norm": divided(lambda z: np.sqrt(np.maximum(squares(z), 1e-12)))},
    ),
    Mutant(
        "l2norm.no_clamp",
        "kk's norm not clamped: a head of zeros is 0 / 0",
        RIGHT,
        {"l2norm": divided(lambda z: np.sqrt(squares(z)))},
    ),
    Mutant(
        "l2norm.updated_key",
        "kk from the key after the k_a update",
        RIGHT,
        methods=instead(att_kk=of_updated_key),
    ),
    Mutant("l2norm.no_k_k", "kk without k_k", RIGHT, {"l2norm": no_k_k}),
    Mutant("l2norm.k_k_after", "kk multiplied by k_k after the norm, not before", RIGHT, {"l2norm": k_k_after}),
    Mutant(
        "l2norm.l1",
        "kk divided by its sum of absolute values, not its L2 norm",
        RIGHT,
        {"l2norm": divided(lambda z: np.maximum(np.abs(z).sum(-1, keepdims=True), 1e-12))},
    ),
    Mutant(
        "l2norm.no_root",
        "kk divided by the square of its norm",
        RIGHT,
        {"l2norm": divided(lambda z: np.maximum(squares(z), 1e-24))},
    ),
    Mutant(
        "l2norm.rms",
        "kk divided by the root of its mean square: a norm of √N",
        RIGHT,
        {"l2norm": divided(lambda z: np.maximum(np.sqrt((z * z).mean(-1, keepdims=True)), 1e-12))},
    ),
    Mutant(
        "l2norm.float16_square",
        "kk's sum of squares held in float16, where a small one is zero",
        RIGHT,
        {"l2norm": divided(float16_square)},
        rounding=True,
    ),
    Mutant(
        "l2norm.root_of_clamped_square",
        "kk = z / √max(‖z‖², 1e-24)",
        RIGHT,
        {"l2norm": divided(lambda z: np.sqrt(np.maximum(squares(z), 1e-24)))},
        same="the root of the larger is the larger root",
    ),
)
