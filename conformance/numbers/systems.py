"""From plain arrays to a number system: what a run of the reference's formulas is started with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...reference import Int8
from .bounded import Bounded
from .covariance import start
from .formats import Formats
from .held import Array
from .rounded import Rounded

__all__ = ["System", "bounded", "plain", "rounded"]


@dataclass(frozen=True)
class System:
    """How an array is held, by the name of its weight, tap, state or input, once its values are of that kind."""

    kind: type[np.floating]
    hold: Callable[[str, Array], Any]

    def __call__(self, name: str, x: Any) -> Any:
        """Whole numbers stay what they are; a quantised matrix has its scale held."""
        if isinstance(x, Int8):
            return Int8(x.codes, self(f"{name}.scale", x.scale))
        return x if x.dtype.kind == "i" else self.hold(name, x.astype(self.kind, copy=False))


def plain(kind: type[np.floating]) -> System:
    """numpy's own floats."""
    return System(kind, lambda name, x: x)


def bounded(dtype: str) -> System:
    """Values in float64, and what an engine of `dtype` may be off by. The recurrent state has a covariance."""
    formats = Formats(dtype)

    def hold(name: str, x: Array) -> Any:
        recurrent = name == "state" or name.endswith(".state.wkv")
        return start(x, formats.of(name)) if recurrent else Bounded(x, None, formats.of(name))

    return System(np.float64, hold)


def rounded(dtype: str, order: np.random.Generator | None = None) -> System:
    """What an engine of `dtype` would have; with an `order`, one that adds up term by term, in random order."""
    formats = Formats(dtype)
    kind = np.float64 if dtype == "float64" else np.float32
    return System(kind, lambda name, x: Rounded(x, formats.of(name), order))
