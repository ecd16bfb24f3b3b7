"""From the residual stream to logits, done wrong."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ... import reference
from ...checkpoint import Checkpoint
from ..engine import Array
from .mutant import Mutant
from .port import Port

__all__ = ["MUTANTS", "RIGHT"]

RIGHT = "logits = W_head LayerNorm(x; ln_out), without a softmax"


def at(tap: str, formula: Callable[[Port, Array, Mapping[str, Array]], Array]) -> dict[str, Callable[..., Any]]:
    """The method `see` with another formula for one of the last taps."""

    def see(port: Port, name: str, value: Array, seen: Mapping[str, Array]) -> Array:
        return formula(port, value, seen) if name == tap else value

    return {"see": see}


def stream(port: Port, value: Array, seen: Mapping[str, Array]) -> Array:
    return list(seen.values())[-1]


def normed_twice(port: Port, value: Array, seen: Mapping[str, Array]) -> Array:
    return reference.layer_norm(value, port.p["ln_out.weight"], port.p["ln_out.bias"], port.config.layer_norm_eps)


def log_softmax(port: Port, value: Array, seen: Mapping[str, Array]) -> Array:
    return value - np.logaddexp.reduce(value, axis=-1, keepdims=True)


def last_ln2(port: Port, checkpoint: Checkpoint) -> Mapping[str, Any]:
    weights = checkpoint.weights(port.kind)
    last = port.config.blocks[-1]
    return {**weights, **{f"ln_out.{part}": weights[f"{last}.ln2.{part}"] for part in ("weight", "bias")}}


MUTANTS = (
    Mutant("head.no_ln_out", "no LayerNorm before the head", RIGHT, methods=at("ln_out", stream)),
    Mutant("head.ln_out_twice", "ln_out applied twice", RIGHT, methods=at("ln_out", normed_twice)),
    Mutant("head.last_ln2", "ln2 of the last block in place of ln_out", RIGHT, methods={"weights": last_ln2}),
    Mutant("head.log_softmax", "log-probabilities in place of logits", RIGHT, methods=at("logits", log_softmax)),
)
