"""A trace of any engine."""

import re

import numpy as np

from ..checkpoint import Checkpoint
from ..errors import InputError
from ..traces import Trace, path_name
from .context import begin, end_to_end
from .engine import Arrays, Engine
from .guard import EngineFault, Guard
from .mode import PLAIN, Mode

__all__ = ["check_start", "trace"]


def check_start(text: str) -> str:
    """`text` if it is a start that a trace can have: `zero`, or like `random:7`."""
    if text != "zero" and not re.fullmatch(r"random:\d{1,18}", text):
        raise InputError(f"start {text!r} is unknown", expected="zero, or like random:7")
    return text


def trace(
    engine: Engine,
    checkpoint: Checkpoint,
    tokens: tuple[int, ...],
    parts: tuple[int, ...],
    start: str = "zero",
    mode: Mode = PLAIN,
) -> Trace:
    """Run `tokens` in calls of `parts` tokens from `start`, and keep what is shown. `mode` is what the engine is in."""
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
        attention=str(mode.attention),
        quantized="int8" if mode.quantize else "none",
        tensors={name: np.asarray(value) for name, value in tensors.items()},
    )
