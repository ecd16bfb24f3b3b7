"""A trace of any engine."""

import re

import numpy as np

from ..checkpoint import Checkpoint
from ..errors import InputError
from ..golden import start_state
from ..traces import Trace
from .context import end_to_end, path_name
from .engine import Arrays, Engine
from .guard import EngineFault, Guard

__all__ = ["parse_path", "parse_start", "trace"]


def parse_path(text: str, tokens: int) -> tuple[int, ...]:
    """The sizes of the calls that `prefill`, `step` or `split:5+3` mean for a number of tokens."""
    if text == "prefill":
        return (tokens,)
    if text == "step":
        return (1,) * tokens
    if not re.fullmatch(r"split:[1-9]\d*(\+[1-9]\d*)*", text):
        raise InputError(f"path {text!r} is unknown", expected="prefill, step, or like split:5+3")
    parts = tuple(int(part) for part in text.removeprefix("split:").split("+"))
    if sum(parts) != tokens:
        raise InputError(f"path {text!r} cuts {sum(parts)} tokens", expected=f"the {tokens} tokens given")
    return parts


def parse_start(text: str) -> int | None:
    """The seed of `random:SEED`, or None for `zero`."""
    if text == "zero":
        return None
    if not re.fullmatch(r"random:\d{1,18}", text):
        raise InputError(f"start {text!r} is unknown", expected="zero, or like random:7")
    return int(text.removeprefix("random:"))


def trace(
    engine: Engine, checkpoint: Checkpoint, tokens: tuple[int, ...], parts: tuple[int, ...], seed: int | None = None
) -> Trace:
    """Run `tokens` in calls of `parts` tokens, from zero or from the random state of `seed`, and keep what is shown."""
    guard = Guard(engine, checkpoint.config.vocab)
    guard.load(checkpoint)
    if seed is not None and "state" not in engine.capabilities:
        raise EngineFault("import_state", "is not offered, so the engine can only start from zero")
    state = guard.initial_state() if seed is None else guard.import_state(start_state(checkpoint.config, seed))
    tensors: Arrays = end_to_end(guard, tokens, state, parts, taps="taps" in engine.capabilities)
    if "state" in engine.capabilities:
        tensors |= guard.export_state(state)
    guard.close()
    return Trace(
        model=checkpoint.fingerprint(),
        tokens=tokens,
        engine=engine.name,
        dtype=engine.dtype,
        path=path_name(parts),
        start="zero" if seed is None else f"random:{seed}",
        tensors={name: np.asarray(value) for name, value in tensors.items()},
    )
