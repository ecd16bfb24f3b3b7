"""Rows times a matrix, in whatever format the matrix is kept."""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import int8
from .compiled import NO_SCALE, kernels, values_of

__all__ = ["Stored", "Weight", "multiplies_16_bits", "product"]

FEW = 8  # rows up to which the compiled loops are faster than a library's product
TILE = 1 << 20  # elements of a 16-bit matrix that are widened at a time: four megabytes, which the cache keeps


class Stored(NamedTuple):
    """A float matrix on the CPU as a checkpoint stores it, [out, in], which the compiled loops read."""

    values: Tensor


Weight = Tensor | Stored | int8.Int8  # a tensor is [in, out]


def product(x: Tensor, weight: Weight) -> Tensor:
    """x (rows, in) → (rows, out), in the dtype of x."""
    if isinstance(weight, int8.Int8):
        return int8.linear(x, weight)
    if isinstance(weight, Tensor):
        return x @ weight.to(x.dtype)
    if len(x) <= FEW:
        return _few_rows(x, weight.values)
    if weight.values.dtype == torch.float32 or multiplies_16_bits(weight.values.dtype):
        return x @ weight.values.T.to(x.dtype)
    return _many_rows(x, weight.values)


def _few_rows(x: Tensor, stored: Tensor) -> Tensor:
    y = np.empty((len(x), len(stored)), np.float32)
    kernels().linear(x.float().numpy(), values_of(stored), NO_SCALE, y)
    return torch.from_numpy(y).to(x.dtype)


def _many_rows(x: Tensor, stored: Tensor) -> Tensor:
    """In float32, a tile of the matrix widened at a time."""
    rows = x.float()
    y = torch.empty(len(x), len(stored))
    tile = max(1, TILE // stored.shape[1])
    room = torch.empty(min(tile, len(stored)), stored.shape[1])  # fresh memory costs more than products
    for start in range(0, len(stored), tile):
        some = stored[start : start + tile]
        y[:, start : start + tile] = rows @ room[: len(some)].copy_(some).T
    return y.to(x.dtype)


@cache
def multiplies_16_bits(dtype: torch.dtype) -> bool:
    """Whether it is of 16 bits, and this processor multiplies such floats: where not, torch takes many times as long
    for their products as for float32's."""
    tests = {
        torch.bfloat16: ("_is_avx512_bf16_supported", "_is_amx_tile_supported"),
        torch.float16: ("_is_amx_fp16_supported",),
    }
    return any(getattr(torch.cpu, test, bool)() for test in tests.get(dtype, ()))
