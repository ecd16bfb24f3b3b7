"""INT8 on the CPU: matrices in codes of one byte, whole-number dot products, no dequantised copy.

Codes, sums and results are those of the reference (`reference/int8.py`, docs/int8.md) to the last bit, for the same
float32 input.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from .compiled import Codes, Floats, Sums, kernels

__all__ = ["Int8", "linear", "quantise_rows", "quantise_vector"]

FEW = 32  # rows up to which the loops over codes are faster than float32 products of them
EXACT = 1024  # products of two codes whose every sum float32 holds exactly: 1024 · 127² < 2²⁴
TILE = 128  # rows of codes that are widened at a time: half a megabyte, which the cache keeps


class Int8(NamedTuple):
    """A matrix W ≈ codes · scale, as a checkpoint stores it: [out, in]. In numpy, since its products are."""

    codes: Codes  # (out, in)
    scale: Floats  # (out)


def quantise_rows(weight: Tensor) -> Int8:
    """A matrix (out, in) with a scale for each row. Codes are made from its float32 values, whatever its dtype."""
    codes, scale = quantise_vector(weight)
    if not np.isfinite(scale).all():
        row = int(np.argmin(np.isfinite(scale)))
        raise InputError(f"cannot be quantised: row {row} holds NaN or infinity", expected="finite weights")
    return Int8(codes, scale)


def quantise_vector(x: Tensor) -> tuple[Codes, Floats]:
    """Codes (rows, in) and scale (rows) of each row of x (rows, in)."""
    codes, scale = np.empty(x.shape, np.int8), np.empty(len(x), np.float32)
    kernels().quantise(_array(x), codes, scale)
    return codes, scale


def linear(x: Tensor, weight: Int8, sums: Sums | None = None) -> Tensor:
    """x W for each row: x (rows, in) → (rows, out), in the dtype of x. The sums of codes go into `sums`, if given."""
    rows = _array(x)
    if len(rows) > FEW:
        return _many_rows(rows, weight, sums).to(x.dtype)
    codes, scale = weight
    y = np.empty((len(rows), len(scale)), np.float32)
    kernels().linear(rows, codes, scale, y, sums)
    return torch.from_numpy(y).to(x.dtype)


def _many_rows(x: Floats, weight: Int8, sums: Sums | None) -> Tensor:
    """The same in float32 products of codes, exact in slices of EXACT columns, with one tile widened at a time."""
    x_codes, x_scale = (torch.from_numpy(array) for array in quantise_vector(torch.from_numpy(x)))
    codes, scale = (torch.from_numpy(array) for array in weight)
    wide = x_codes.float()  # (rows, in)
    y = torch.empty(len(x), len(scale))
    room = torch.empty(TILE, min(EXACT, len(x[0])))  # the same for every tile: fresh memory costs more than products
    for tile in _cut(len(scale), TILE):
        total: Tensor | None = None  # (rows, tile)
        for columns in _cut(len(x[0]), EXACT):
            narrow = codes[tile, columns]
            part = wide[:, columns] @ room[: len(narrow), : narrow.shape[1]].copy_(narrow).T
            total = part if total is None else total.int() + part.int()
        assert total is not None
        if sums is not None:
            sums[:, tile] = total.numpy()
        torch.mul(total.float(), x_scale[:, None] * scale[tile], out=y[:, tile])
    return y


def _cut(length: int, step: int) -> list[slice]:
    return [slice(begin, min(begin + step, length)) for begin in range(0, length, step)]


def _array(x: Tensor) -> Floats:
    return np.ascontiguousarray((x if x.dtype == torch.float32 else x.float()).numpy())
