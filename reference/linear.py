"""A projection without bias."""

from ._array import Array
from .int8 import Int8, int8_linear


def linear(x: Array, weight: Array | Int8) -> Array:
    """y_t = W x_t for each token; with W in codes, `int8_linear`.

    x (T, in), weight (out, in) as checkpoints store it → (T, out).
    """
    return int8_linear(x, weight) if isinstance(weight, Int8) else x @ weight.T  # (T, out)
