"""Numbers that an honest engine of some dtype would have: rounded after each operation, where `formats.py` says.

Values are float32 arrays (float64 for a float64 engine), whatever they are rounded to. Where programs differ, this is
the official one on a CPU: products of the recurrence in the model's dtype, and the state cast to it before it is read.
In float32 the formulas run so are the reference in float32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from .formats import UNIT_ROUNDOFF, Format, inside
from .held import Array, Held, meeting, values

__all__ = ["Rounded", "nearest"]


class Rounded(Held):
    """Values as the format can hold them. With an `order`, sums take one term after the other, in random order."""

    __slots__ = ("order",)

    def __init__(self, value: Array, format: Format | None, order: np.random.Generator | None = None) -> None:
        self.value, self.format, self.order = value, format, order

    @classmethod
    def of(cls, x: Any) -> "Rounded":
        return x if isinstance(x, Rounded) else Rounded(np.asarray(x), None)

    def each(self, change: Callable[..., Array], *others: "Rounded") -> "Rounded":
        return Rounded(change(self.value, *(x.value for x in others)), self.format, self.order)

    def handed_on(self, format: Format) -> "Rounded":
        """As the next formula gets it."""
        return Rounded(nearest(self.value, format), format, self.order)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method != "__call__" or keywords:
            return NotImplemented
        to, format = meeting(ufunc, [x for x in inputs if isinstance(x, Rounded)])
        plain = [values(x) for x in inputs]
        with np.errstate(all="ignore"):  # infinities and NaN are the comparison's to judge
            value = self._product(*(nearest(x, to) for x in plain)) if ufunc is np.matmul else ufunc(*plain)
        return Rounded(nearest(value, to), format, self.order)

    def __setitem__(self, key: Any, new: "Rounded") -> None:
        assert self.format is not None
        self.value[key] = nearest(new.value, self.format)

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Rounded":
        return self._summed(_in_turn(self.value, axis, keepdims, self.order))

    def mean(self, axis: Any = None, keepdims: bool = False) -> "Rounded":
        total = _in_turn(self.value, axis, keepdims, self.order)
        return self._summed(total / total.dtype.type(self.size // max(total.size, 1)))

    def max(self, axis: Any = None) -> "Rounded":
        return self.each(lambda x: x.max(axis=axis))

    def _summed(self, total: Array) -> "Rounded":
        assert self.format is not None
        return Rounded(total, inside(self.format), self.order)

    def _product(self, x: Array, w: Array) -> Array:
        if self.order is None:
            return x @ w
        total = np.zeros((*x.shape[:-1], w.shape[-1]), x.dtype)
        for term in self.order.permutation(x.shape[-1]):
            total += x[..., term, None] * w[..., None, term, :]
        return total


def nearest(value: Array, format: Format) -> Array:
    """The number of the format that is next to each value, halves to even."""
    if format.unit == UNIT_ROUNDOFF["float16"]:
        with np.errstate(over="ignore"):  # to infinity, as it should be
            return value.astype(np.float16).astype(value.dtype)
    if format.unit != UNIT_ROUNDOFF["bfloat16"]:
        return value
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)  # whose upper half is a bfloat16
    bits = (bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(value), value, bits.view(np.float32))


def _in_turn(x: Array, axis: Any, keepdims: bool, order: np.random.Generator | None) -> Array:
    """The sum over an axis; numpy's own, or one term after the other in random order."""
    if order is None or not isinstance(axis, int):
        return x.sum(axis=axis, keepdims=keepdims)
    terms = np.moveaxis(x, axis, 0)[order.permutation(x.shape[axis])]
    total = np.add.accumulate(terms, axis=0)[-1]
    return np.expand_dims(total, axis) if keepdims else total
