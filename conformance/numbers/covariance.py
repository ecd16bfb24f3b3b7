"""The recurrent state with the covariance of its rounding error.

The delta rule mixes the channels of a row at every token. Bounds on single elements know nothing of how their errors
hang together, and grow without end where the errors themselves fade (after 130 tokens: 10¹² times what they are). So
the error of a row is carried as a whole, by its covariance: S M moves row s to s M, and its covariance C to Mᵀ C M.

There is one C (N, N) for all rows of a head: their mean, which is exact. How errors are spread over the rows is told by
the mean squares of single elements, carried as if they were independent and then scaled to have C's diagonal for their
mean over the rows.
"""

from typing import Any

import numpy as np

from .bounded import Bounded, rounding
from .formats import Format, inside
from .held import Array

__all__ = ["Covariant", "start"]


class Covariant:
    """Rows of a state: values and mean square errors (H, N, K), and the mean covariance of their errors (H, K, K).

    Its diagonal is the mean of the mean squares, which are what is kept up to date.
    """

    __slots__ = ("covariance", "format", "mse", "value")

    def __init__(self, value: Array, mse: Array, covariance: Array, format: Format) -> None:
        self.value, self.mse, self.covariance, self.format = value, mse, covariance, format

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def __getitem__(self, key: Any) -> Bounded:
        return Bounded(self.value[key], self.mse[key], self.format)

    def __add__(self, other: Bounded) -> "Covariant":
        """S + X: what X is off by is independent of what S is."""
        value = self.value + other.value
        mse = self.mse + rounding(value, self.format)
        if other.mse is not None:
            mse += other.mse
        return Covariant(value, mse, self.covariance, self.format)

    def __matmul__(self, other: Bounded) -> "Covariant":
        """S M, with M (H, N, N) a transition or (H, N, 1) what the state is read with."""
        assert other.format is not None
        M, terms = other.value, self.shape[-1]
        to = max(self.format, other.format, key=lambda format: format.unit)
        value, squares, M2 = self.value @ M, np.square(self.value), np.square(M)
        # A program may round S to its dtype before it reads it. Products are rounded, and so are their partial sums, of
        # which a term is in every second: that is as if S itself were off.
        mse = squares * (to.unit**2 / 3 + inside(to).unit ** 2 / 3 * (1 + terms / 2))
        mse += self.mse
        mse += to.underflow**2
        covariance = self.covariance.copy()
        _diagonal(covariance)[...] = _mean_of_rows(mse)
        covariance = M.swapaxes(-1, -2) @ covariance @ M
        mse = mse @ M2
        mean, wanted = _mean_of_rows(mse), _diagonal(covariance)  # (H, K)
        mse *= np.divide(wanted, mean, out=np.zeros_like(mean), where=mean > 0)[:, None, :]
        mse += rounding(value, to)
        if other.mse is not None:
            mse += squares @ other.mse
            if value.shape == self.shape:
                mse += _alike(value, self.value, M, M2, other.mse)
        return Covariant(value, mse, covariance, other.format)


def start(state: Array, format: Format) -> Covariant:
    """A state (H, N, N) without error."""
    return Covariant(state, np.zeros_like(state), np.zeros_like(state), format)


def _mean_of_rows(x: Array) -> Array:
    """(H, N, K) → (H, K): as a product, which is the fastest way."""
    rows = x.shape[-2]
    return (np.full((1, rows), 1 / rows) @ x)[..., 0, :]


def _alike(value: Array, S: Array, M: Array, M2: Array, mse: Array) -> Array:
    """What errors of M do that are the same all down a column: the rounding of kk_j · a_j stands in each element of it.

    But not in the decay, on the diagonal, which is rounded apart.
    """
    removed = value - S * _diagonal(M)[:, None, :]
    error, size = _mean_of_rows(_off_diagonal(mse)), _mean_of_rows(_off_diagonal(M2))  # (H, N)
    relative = np.divide(error, size, out=np.zeros_like(size), where=size > 0)
    return relative[:, None, :] * np.square(removed)


def _diagonal(x: Array) -> Array:
    """A view of it."""
    return np.einsum("hii->hi", x)


def _off_diagonal(x: Array) -> Array:
    x = x.copy()
    _diagonal(x)[...] = 0
    return x
