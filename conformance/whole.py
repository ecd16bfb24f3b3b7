"""A whole run of the engine, its logits and final state, against the reference."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .compare import Tally
from .context import Context
from .engine import Array, Arrays
from .results import Given

__all__ = ["compare_run"]


def compare_run(
    context: Context,
    tally: Tally,
    tokens: tuple[int, ...],
    parts: Sequence[int],
    shown: Arrays,
    state: Any,
    path: str,
    start: Mapping[str, Array] | None = None,
) -> None:
    """What the engine showed of `tokens`, taken in `parts` from `start` (or zero), and the state that it left.

    In INT8 the reference has the engine's codes, so their inputs are compared as well: every tap is.
    """
    before = len(tally.findings)
    value, taps, states = context.expected(tokens, parts, shown, start)
    if "state" in context.capabilities:
        tally.tensors(context.export(state), value.state, states, path=path, token_axis=False)
    wanted = value.taps if context.mode.quantize else {"logits": value.logits}
    tally.tensors(shown, wanted, taps, path=path)
    # Any random start will do to show it again, but where it needs all of float32 that must too.
    drawn = f"{'finer' if context.dtype == 'float32' else 'random'}:{context.seed}"
    given = Given(tokens, tuple(parts), "zero" if start is None else drawn)
    tally.findings[before:] = [replace(finding, given=given) for finding in tally.findings[before:]]
