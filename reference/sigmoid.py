"""The logistic function."""

import numpy as np

from ._array import Array


def sigmoid(x: Array) -> Array:
    """σ(x) = 1 / (1 + e⁻ˣ), elementwise.

    Exact in the limits: e⁻ˣ may overflow to infinity, and 1 / (1 + ∞) is the right 0.
    """
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))
