"""Numbers that know how wrong an honest engine may have them.

A `Bounded` array has the value of each formula in float64, to the last bit, and beside it the mean square of the error
that rounding makes in an engine of some format: to first order, and by the rules of probability. A result is off by

- what its operands are off by, times the derivative. Errors of different elements are independent, and their squares
  add up (N. Higham and T. Mary, "A new approach to probabilistic rounding error analysis", 2019). The worst case, in
  which the errors themselves add up, allows a sum over n numbers √n times what any engine loses;
- its own rounding: anything up to u of it, so u²/3 in mean square;
- for a sum of n terms, the rounding of n partial sums. Where the terms' signs are random, their mean square is at most
  q, the sum of the terms' squares; where they are all one, s²/3, s being the sum.

How many standard deviations a bound is, `tolerances.py` says.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from .formats import Format, inside
from .held import Array, Held, meeting

__all__ = ["Bounded", "handed_on", "rounding"]

Maybe: TypeAlias = Array | None  # a mean square error; None where there is no error

# exp and tanh of good libraries are off by a unit in the last place, which is two roundings, and seldom by two.
LIBRARY = 2.0

# The standard deviations within which an error must be told rightly: as many as a bound has, in `tolerances.py`.
REACH = 8.0

# What is divided by so much is nothing. In σ(x) = 1 / (1 + e⁻ˣ), e⁻ˣ may be so large that the square of its error is
# beyond float64.
VAST = 1e100


class Bounded(Held):
    """Values in float64, the mean squares of their errors (None: exact), and how an engine holds them."""

    __slots__ = ("mse",)

    def __init__(self, value: Array, mse: Maybe, format: Format | None) -> None:
        self.value, self.mse, self.format = value, mse, format

    @classmethod
    def of(cls, x: Any) -> "Bounded":
        return x if isinstance(x, Bounded) else Bounded(np.asarray(x), None, None)

    def each(self, change: Callable[..., Array], *others: "Bounded") -> "Bounded":
        all_ = (self, *others)
        errors = None if all(x.mse is None for x in all_) else change(*(x.known for x in all_))
        return Bounded(change(*(x.value for x in all_)), errors, self.format)

    @property
    def known(self) -> Array:
        """The mean square errors, zero where there are none."""
        return np.zeros(self.shape) if self.mse is None else self.mse

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method != "__call__" or keywords or ufunc not in RULES:
            return NotImplemented
        operands = [Bounded.of(x) for x in inputs]
        to, format = meeting(ufunc, operands)
        with np.errstate(all="ignore"):  # infinities and NaN are the comparison's to judge
            value = ufunc(*(x.value for x in operands))
            mse = RULES[ufunc](value, to, *operands)
        return Bounded(value, mse, format)

    def __setitem__(self, key: Any, new: Any) -> None:
        self.value[key] = new.value
        self.mse = self.known
        self.mse[key] = new.known

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Bounded":
        return self._reduced(self.value.sum(axis=axis, keepdims=keepdims), axis, keepdims, divisor=1)

    def mean(self, axis: Any = None, keepdims: bool = False) -> "Bounded":
        value = self.value.mean(axis=axis, keepdims=keepdims)
        return self._reduced(value, axis, keepdims, divisor=self._terms(value))

    def max(self, axis: Any = None) -> Array:
        """Plain values: a softmax takes its largest score from every score, and none of its error is left."""
        return self.value.max(axis=axis)

    def _terms(self, reduced: Array) -> int:
        """How many are added up; of an empty cache, none."""
        return self.size // max(reduced.size, 1)

    def _reduced(self, value: Array, axis: Any, keepdims: bool, divisor: int) -> "Bounded":
        assert self.format is not None
        to = inside(self.format)
        squares = np.square(self.value).sum(axis=axis, keepdims=keepdims)
        mse = (to.unit**2 / 3) * _partial_sums(self._terms(value), value * divisor, squares)
        if self.mse is not None:
            mse = mse + self.mse.sum(axis=axis, keepdims=keepdims)
        return Bounded(value, mse / divisor**2 + rounding(value, to), to)


def rounding(value: Array, format: Format) -> Array:
    """The mean square error of rounding to that format, and of losing what is too small for it."""
    mse = np.square(value)
    mse *= format.unit**2 / 3
    mse += format.underflow**2
    return mse


def handed_on(x: Any, format: Format) -> Array:
    """The mean square errors of a formula's result in the format that it is handed on in: a rounding at least."""
    own = rounding(x.value, format)
    return own if x.mse is None else np.maximum(x.mse, own)


def _partial_sums(terms: int, total: Array, squares: Array) -> Array:
    """The squares of `terms` partial sums, added up, of numbers with that total and that sum of squares."""
    return terms * np.maximum(squares, np.square(total) / 3)


# --- operations --------------------------------------------------------------------------------------------------
# Each gives the mean square error of `value`, the result of its operands, when it is rounded `to` some format.


def _sum(value: Array, to: Format, a: Bounded, b: Bounded) -> Array:
    mse = rounding(value, to)
    for x in (a, b):
        if x.mse is not None:
            mse += x.mse
    return mse


def _product(value: Array, to: Format, a: Bounded, b: Bounded) -> Array:
    if a is b:
        return _square(value, to, a)
    mse = rounding(value, to)
    if a.mse is not None:
        mse += a.mse * np.square(b.value)
    if b.mse is not None:
        mse += b.mse * (np.square(a.value) + a.known)
    return mse


def _square(value: Array, to: Format, a: Bounded) -> Array:
    """(x + e)² − x² is 2xe + e². The square of e matters where relu has left 0; its own mean square is 3 mse²."""
    mse = rounding(value, to)
    return mse if a.mse is None else mse + a.mse * (4 * value + 3 * a.mse)


def _quotient(value: Array, to: Format, a: Bounded, b: Bounded) -> Array:
    """Of a number divided by a vast one, all may be lost."""
    error = (0.0 if a.mse is None else a.mse) + (0.0 if b.mse is None else np.square(value) * b.mse)
    mse = rounding(value, to) + error / np.square(b.value)
    vast = np.abs(b.value) > VAST
    return np.where(vast, np.square(value) + to.underflow**2, mse) if vast.any() else mse


def _root(value: Array, to: Format, a: Bounded) -> Array:
    """The derivative is 1 / 2√x; but nothing moves a root by more than the root of what it moves x by."""
    mse = rounding(value, to)
    return mse if a.mse is None else mse + np.fmin(a.mse / (4 * a.value), np.sqrt(a.mse))


def _exponential(value: Array, to: Format, a: Bounded) -> Array:
    """As far as a bound reaches, e^x grows by a factor of its own, which is 1 but for a 16-bit exponent far from 0."""
    mse = rounding(value, to) + _library(value, to)
    if a.mse is None:
        return mse
    grown = np.expm1(np.minimum(REACH * np.sqrt(a.mse), 300)) / REACH  # √mse, where it is small
    return np.fmin(mse + np.square(value * grown), VAST**2)


def _tangent(value: Array, to: Format, a: Bounded) -> Array:
    mse = rounding(value, to) + _library(value, to)
    return mse if a.mse is None else mse + a.mse * np.square(1 - np.square(value))


def _library(value: Array, to: Format) -> Array:
    return ((LIBRARY * to.unit) ** 2 / 3) * np.square(value)


def _larger(value: Array, to: Format, a: Bounded, b: Bounded) -> Array:
    """The larger of two errors: which of two numbers is larger may itself be a matter of rounding."""
    return np.broadcast_to(np.maximum(a.known, b.known), value.shape)


def _negative(value: Array, to: Format, a: Bounded) -> Maybe:
    return a.mse


def _matrix_product(value: Array, to: Format, x: Bounded, w: Bounded) -> Array:
    """x (T, in), w (in, out): `in` products and as many partial sums, in float32 at least."""
    x2, w2 = np.square(x.value), np.square(w.value)
    squares = x2 @ w2
    mse = rounding(value, to)
    mse += (inside(to).unit ** 2 / 3) * (squares + _partial_sums(x.shape[-1], value, squares))
    x_error, w_error = _entering(x, to), _entering(w, to)
    if x_error is not None:
        mse += x_error @ w2
    if w_error is not None:
        mse += x2 @ w_error
    return mse


def _entering(x: Bounded, to: Format) -> Maybe:
    """The errors of a matrix that is cast to a format before it is multiplied."""
    return x.mse if x.format in (None, to) else x.known + rounding(x.value, to)


RULES: Mapping[np.ufunc, Callable[..., Maybe]] = {
    np.add: _sum,
    np.subtract: _sum,
    np.multiply: _product,
    np.square: _square,
    np.true_divide: _quotient,
    np.sqrt: _root,
    np.exp: _exponential,
    np.tanh: _tangent,
    np.maximum: _larger,
    np.negative: _negative,
    np.matmul: _matrix_product,
}
