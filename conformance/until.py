"""A port on its way: the layer checks up to a tap, as if the model ended there."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ..errors import InputError, nearest
from ..traces import Tensor
from .compare import Tally
from .context import Context
from .registry import Check

__all__ = ["known_tap", "up_to"]

LAYER = ("layer.isolated", "layer.cumulative")


def known_tap(tap: str, taps: Sequence[Tensor]) -> str:
    """`tap`, if it is one of a model's."""
    names = [tensor.name for tensor in taps]
    if tap not in names:
        raise InputError(f"no tap {tap!r} in this model", expected=nearest(tap, names))
    return tap


def up_to(tap: str, checks: Sequence[Check]) -> list[Check]:
    """Those of `checks` that look at taps, comparing none behind `tap` in execution order."""
    chosen = [replace(check, run=partial(_run, check.run, tap)) for check in checks if check.id in LAYER]
    if not chosen:
        raise InputError("--until is for the layer checks alone", expected=f"{' or '.join(LAYER)} among the checks")
    return chosen


def _run(run: Callable[[Context, Tally], str | None], tap: str, context: Context, tally: Tally) -> str | None:
    names = [tensor.name for tensor in context.config.taps]
    tally.wanted = names[: names.index(tap) + 1]
    note = run(context, tally)
    return f"{note or ''}; {len(tally.wanted)} of {len(names)} taps, until {tap}"
