"""Are the golden traces still what the reference says?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..checkpoint import Checkpoint
from ..errors import InputError
from ..traces import named
from .manifest import GoldenSet, GoldenTrace, Manifest
from .models import open_model
from .record import Seen, expected_names, run

__all__ = ["Verdict", "Verified", "deviation", "verify"]

Verdict = Literal["same", "missing", "wrong"]
Values = npt.NDArray[np.floating[Any]]

ROUNDING = 2.0**-24  # float64 to float32, relative
FLOAT64 = 1e-12  # what the reference may differ from itself on another BLAS; against longdouble it is off by 4e-13


@dataclass(frozen=True)
class Verified:
    """What became of one file."""

    model: str
    file: str
    verdict: Verdict
    detail: str


def verify(manifest: Manifest, *, seen: Seen = lambda name: None) -> Iterator[Verified]:
    """Each file of the manifest against a new run of the reference; `seen` is told of each tap that is done."""
    for model in manifest.models:
        checkpoint = open_model(model.source)
        found = checkpoint.fingerprint()
        for trace in model.traces:
            if found != model.fingerprint:
                detail = f"{model.source} is another model: {found[:12]}…, not {model.fingerprint[:12]}…"
                yield Verified(model.name, trace.file, "wrong", detail)
            else:
                yield Verified(model.name, trace.file, *_verify_trace(model, trace, checkpoint, seen))


def _verify_trace(model: GoldenSet, trace: GoldenTrace, checkpoint: Checkpoint, seen: Seen) -> tuple[Verdict, str]:
    if not model.path(trace).is_file():
        return "missing", "no such file"
    try:
        stored = model.read(trace)
    except InputError as error:
        return "wrong", str(error)
    names = expected_names(checkpoint.config, trace.holds)
    absent = [name for name in names if name not in stored.tensors]
    if absent:
        return "missing", f"{len(absent)} of {len(names)} tensors, first {absent[0]}"
    expected = run(checkpoint, trace.tokens, path=trace.path, start=trace.start, attention=trace.attention, seen=seen)
    for name in names:
        worst = deviation(name, stored.tensors[name], expected[name])
        if not worst <= 1:
            return "wrong", f"{name}: max |Δ| is {worst:.3g} × its bound"
    return "same", f"{len(names)} tensor{'s' if len(names) > 1 else ''}"


def deviation(name: str, stored: Values, expected: Values) -> float:
    """The largest |stored − expected| in units of its bound; infinite for NaN and for a wrong shape.

    The bound is the rounding to float32, and 1e-12 of the tensor's largest number (of each head's, where heads have an
    axis of their own) for float64's own rounding.
    """
    if stored.shape != expected.shape:
        return float("inf")
    others = tuple(axis for axis, letter in enumerate(named(name).axes) if letter != "H")
    scale = np.abs(expected).max(axis=others, keepdims=True)
    difference = np.abs(stored.astype(np.float64) - expected)
    bound = ROUNDING * np.abs(expected) + FLOAT64 * scale
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(difference == 0, 0, difference / bound)
    return float(np.where(np.isnan(ratio), np.inf, ratio).max())
