"""Runs the reference in float64 and keeps what it shows, as float32."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checkpoint import Checkpoint, Config
from ..reference import forward, initial_state
from ..traces import Trace, cut, parse_attention, parse_path
from .start import start_of

__all__ = ["HOLDS", "Seen", "expected_names", "greedy", "record", "run"]

HOLDS = ("taps", "logits", "state")  # what a golden trace may hold: every tap but logits, logits, the state at the end

Values = dict[str, npt.NDArray[np.floating[Any]]]
Seen = Callable[[str], object]  # called with each tap's name when it is done: for progress


def run(
    checkpoint: Checkpoint,
    tokens: Sequence[int],
    *,
    path: str = "prefill",
    start: str = "zero",
    attention: str = "dense",
    seen: Seen = lambda name: None,
) -> Values:
    """Every tap of the reference in float64, and the state after the last token, by canonical name."""
    shown: dict[str, list[npt.NDArray[Any]]] = {}

    def keep(name: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        shown.setdefault(name, []).append(value)
        seen(name)
        return value

    config, weights, policy = checkpoint.config, checkpoint.weights(), parse_attention(attention)
    state = start_of(config, start)
    for _, call in cut(tokens, parse_path(path, len(tokens))):
        _, state = forward(weights, config, call, state, keep, policy)
    return {name: np.concatenate(calls) for name, calls in shown.items()} | state


def record(
    checkpoint: Checkpoint,
    tokens: Sequence[int],
    *,
    path: str = "prefill",
    start: str = "zero",
    attention: str = "dense",
    holds: Collection[str] = HOLDS,
    seen: Seen = lambda name: None,
) -> Trace:
    """The reference's trace of `tokens`: computed in float64, kept in float32."""
    shown = run(checkpoint, tokens, path=path, start=start, attention=attention, seen=seen)
    names = expected_names(checkpoint.config, holds)
    return Trace(
        model=checkpoint.fingerprint(),
        tokens=tuple(tokens),
        engine="reference",
        dtype="float64",
        path=path,
        start=start,
        attention=attention,
        tensors={name: shown[name].astype(np.float32) for name in names},
    )


def expected_names(config: Config, holds: Collection[str]) -> list[str]:
    """The tensors that a golden trace of a model has, in order."""
    names = [tap.name for tap in config.taps if ("logits" if tap.name == "logits" else "taps") in holds]
    return names + [tensor.name for tensor in config.state if "state" in holds]


def greedy(checkpoint: Checkpoint, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """`prompt` and the `count` tokens that the reference says next, each the likeliest."""
    weights, state = checkpoint.weights(), initial_state(checkpoint.config)
    tokens, fresh = list(prompt), list(prompt)
    for _ in range(count):
        logits, state = forward(weights, checkpoint.config, fresh, state)
        fresh = [int(logits[-1].argmax())]
        tokens += fresh
    return tuple(tokens)
