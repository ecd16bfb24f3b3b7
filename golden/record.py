"""Runs the reference in float64 and keeps what it shows, as float32."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checkpoint import Checkpoint
from ..reference import forward, initial_state
from ..traces import Trace, state_tensors, taps
from .start import start_of

__all__ = ["HOLDS", "Seen", "expected_names", "greedy", "record", "run"]

HOLDS = ("taps", "logits", "state")  # what a golden trace may hold: every tap but logits, logits, the state at the end

Values = dict[str, npt.NDArray[np.floating[Any]]]
Seen = Callable[[str], object]  # called with each tap's name when it is done: for progress


def run(
    checkpoint: Checkpoint, tokens: Sequence[int], *, start: str = "zero", seen: Seen = lambda name: None
) -> Values:
    """Every tap of the reference in float64, and the state after the last token, by canonical name."""
    shown: Values = {}

    def keep(name: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        shown[name] = value
        seen(name)
        return value

    config = checkpoint.config
    _, after = forward(checkpoint.weights(), config, tokens, start_of(config, start), keep)
    return shown | after


def record(
    checkpoint: Checkpoint,
    tokens: Sequence[int],
    *,
    start: str = "zero",
    holds: Collection[str] = HOLDS,
    seen: Seen = lambda name: None,
) -> Trace:
    """The reference's trace of `tokens`: computed in float64, kept in float32."""
    shown = run(checkpoint, tokens, start=start, seen=seen)
    return Trace(
        model=checkpoint.fingerprint(),
        tokens=tuple(tokens),
        engine="reference",
        dtype="float64",
        path="prefill",
        start=start,
        tensors={name: shown[name].astype(np.float32) for name in expected_names(checkpoint.config.layers, holds)},
    )


def expected_names(layers: int, holds: Collection[str]) -> list[str]:
    """The tensors that a golden trace of a model of `layers` blocks has, in order."""
    names = [tap.name for tap in taps(layers) if ("logits" if tap.name == "logits" else "taps") in holds]
    return names + [tensor.name for tensor in state_tensors(layers) if "state" in holds]


def greedy(checkpoint: Checkpoint, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """`prompt` and the `count` tokens that the reference says next, each the likeliest."""
    weights, state = checkpoint.weights(), initial_state(checkpoint.config)
    tokens, fresh = list(prompt), list(prompt)
    for _ in range(count):
        logits, state = forward(weights, checkpoint.config, fresh, state)
        fresh = [int(logits[-1].argmax())]
        tokens += fresh
    return tuple(tokens)
