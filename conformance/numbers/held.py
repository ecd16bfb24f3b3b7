"""What an array needs to go through the formulas of `reference/` as a numpy array does."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from .formats import Format, inside, met

__all__ = ["Array", "Held", "meeting", "values"]

Array: TypeAlias = npt.NDArray[Any]


class Held(np.lib.mixins.NDArrayOperatorsMixin):
    """Values, and the format in which an engine holds them; None for plain numbers. The kinds of it are subclasses."""

    __slots__ = ("format", "value")

    value: Array
    format: Format | None

    @classmethod
    def of(cls, x: Any) -> Self:
        """Itself, or plain numbers made one."""
        raise NotImplementedError

    def each(self, change: Callable[..., Array], *others: Self) -> Self:
        """With something done to values and whatever goes with them, that only moves numbers about."""
        raise NotImplementedError

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        return FUNCTIONS[function](*arguments, **keywords) if function in FUNCTIONS else NotImplemented

    def __pow__(self, exponent: Any) -> Any:
        return self * self if exponent == 2 else NotImplemented  # as numpy's own arrays do it, to the last bit

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def size(self) -> int:
        return self.value.size

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.value.dtype

    @property
    def T(self) -> Self:
        return self.each(np.transpose)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, key: Any) -> Self:
        return self.each(lambda x: x[key])

    def reshape(self, *shape: Any) -> Self:
        return self.each(lambda x: x.reshape(*shape))

    def astype(self, kind: npt.DTypeLike) -> Any:
        """Itself; in a narrower type, plain values: INT8 chooses its codes by them, and a choice has no error."""
        return self if np.dtype(kind) == self.dtype else self.value.astype(kind)


def values(x: Any) -> Any:
    """A plain array of what may be held in some way."""
    return getattr(x, "value", x)


def meeting(ufunc: np.ufunc, operands: Sequence[Held]) -> tuple[Format, Format]:
    """What an operation rounds to, and the format of its result. Plain numbers leave both alone."""
    first, *others = (x.format for x in operands if x.format is not None)
    if ufunc in (np.exp, np.tanh):
        return inside(first), inside(first)
    if ufunc is np.matmul:
        coarser = max(first, *others, key=lambda format: format.unit)
        return coarser, coarser
    return met(first, others[0]) if others else (first, first)


# --- functions of numpy that are no ufuncs -----------------------------------------------------------------------


def _joining(join: Callable[..., Array]) -> Callable[..., Held]:
    def rule(parts: Sequence[Any]) -> Held:
        kind = next(type(part) for part in parts if isinstance(part, Held))
        first, *others = (kind.of(part) for part in parts)
        return first.each(lambda *arrays: join(arrays), *others)

    return rule


def _by_values(function: Callable[..., Array]) -> Callable[..., Array]:
    """A plain answer: attention's policies choose tokens by it."""
    return lambda *arguments, **keywords: function(*(values(x) for x in arguments), **keywords)


FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    np.concatenate: _joining(np.concatenate),
    np.stack: _joining(np.stack),
    np.empty_like: lambda x: x.each(np.empty_like),
    np.zeros_like: lambda x: x.each(np.zeros_like),
    np.take_along_axis: lambda x, indices, axis: x.each(lambda array: np.take_along_axis(array, indices, axis)),
    np.argsort: _by_values(np.argsort),
    np.einsum: _by_values(np.einsum),
}
