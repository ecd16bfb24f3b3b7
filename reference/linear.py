"""A projection without bias."""

from ._array import Array


def linear(x: Array, weight: Array) -> Array:
    """y_t = W x_t for each token.

    x (T, in), weight (out, in) as checkpoints store it → (T, out).
    """
    return x @ weight.T  # (T, out)
