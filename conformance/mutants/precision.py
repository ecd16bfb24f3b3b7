"""Fewer bits."""

import numpy as np
import torch

from ..engine import Array

__all__ = ["in_bits", "kept_in"]


def kept_in(dtype: str, value: Array) -> Array:
    """What is left of `value` after it was held in `dtype`."""
    held = torch.from_numpy(np.ascontiguousarray(value)).to(getattr(torch, dtype))
    return held.to(torch.float64).numpy().astype(value.dtype)


def in_bits(bits: int, value: Array) -> Array:
    """`value` with so many significant bits, halves to even."""
    mantissa, exponent = np.frexp(value)
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits).astype(value.dtype)
