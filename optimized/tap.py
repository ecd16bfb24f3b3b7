"""How the forward pass shows its values."""

from collections.abc import Callable

from torch import Tensor

__all__ = ["Tap", "unseen"]

Tap = Callable[[str, Tensor], Tensor]  # sees a value under its name and gives it back


def unseen(name: str, value: Tensor) -> Tensor:
    """Where nobody looks."""
    return value
