"""The low-rank pair behind decay, learning rate, value residual and gate."""

from collections.abc import Callable

from ._array import Array


def lora(x: Array, down: Array, up: Array, activation: Callable[[Array], Array] | None = None) -> Array:
    """y_t = activation(x_t A) B.

    x (T, D), down A (D, rank) and up B (rank, D), both stored [in, out], unlike the projections → (T, D).
    The activation is tanh for decay, σ for the gate, none for learning rate and value residual.
    """
    hidden = x @ down  # (T, rank)
    return (hidden if activation is None else activation(hidden)) @ up  # (T, D)
