"""A trace of any engine."""

import re

import numpy as np

from ..checkpoint import Checkpoint
from ..errors import InputError
from ..traces import Trace
from .context import begin, end_to_end, path_name
from .engine import Arrays, Engine
from .guard import EngineFault, Guard

__all__ = ["check_start", "parse_path", "trace"]


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


def check_start(text: str) -> str:
    """`text` if it is a start that a trace can have: `zero`, or like `random:7`."""
    if text != "zero" and not re.fullmatch(r"random:\d{1,18}", text):
        raise InputError(f"start {text!r} is unknown", expected="zero, or like random:7")
    return text


def trace(
    engine: Engine, checkpoint: Checkpoint, tokens: tuple[int, ...], parts: tuple[int, ...], start: str = "zero"
) -> Trace:
    """Run `tokens` in calls of `parts` tokens from `start`, and keep what is shown."""
    guard = Guard(engine, checkpoint.config.vocab)
    guard.load(checkpoint)
    if start != "zero" and "state" not in engine.capabilities:
        raise EngineFault("import_state", "is not offered, so the engine can only start from zero")
    state = begin(guard, checkpoint.config, start)
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
        start=start,
        tensors={name: np.asarray(value) for name, value in tensors.items()},
    )
