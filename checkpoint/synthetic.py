"""Weights made from nothing: weight = f(tensor name, index, seed), the same in every language.

`golden/RECIPES.md` describes the arithmetic for those who write it again; its test values are this file's tests.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from .layout import shapes
from .model import Checkpoint, Config
from .read import official_eps

__all__ = ["Fill", "Part", "bits", "filled", "synthesize"]

Words = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float64]

FINEST = 2.0**-24  # the smallest step between two weights: float16's smallest number
CHUNK = 1 << 16  # numbers made at a time: small enough for the cache


@dataclass(frozen=True)
class Part:
    """Indices start to stop of one axis, which have their own scale and offset."""

    axis: int
    start: int
    stop: int
    scale: float
    offset: float = 0.0


@dataclass(frozen=True)
class Fill:
    """Numbers spread evenly over [offset − scale, offset + scale), but for some parts; a later part wins."""

    scale: float
    offset: float = 0.0
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        for scale, offset in ((self.scale, self.offset), *((part.scale, part.offset) for part in self.parts)):
            # Whole multiples of 2^-24 below 64: then offset + scale · u is exact in float64, and no rounding mode, no
            # fused multiply-add and no order of evaluation can change a weight.
            if any(value % FINEST for value in (scale, offset)) or abs(scale) + abs(offset) > 64:
                raise ValueError(f"scale {scale} and offset {offset} are not exact")


def bits(name: str, seed: int, start: int, stop: int) -> Words:
    """Outputs start to stop of the SplitMix64 that begins at FNV-1a(name) xor seed."""
    key = _fnv1a(name) ^ seed
    z = np.arange(start + 1, stop + 1, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(key)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def filled(name: str, shape: tuple[int, ...], fill: Fill, seed: int) -> npt.NDArray[np.float32]:
    """The tensor `name`: numbers in row-major order, each exact in float32, bfloat16 and float16."""
    out = np.empty(int(np.prod(shape)), np.float32)
    scales, offsets = _spread(fill, shape)
    for start in range(0, out.size, CHUNK):
        chunk = slice(start, min(start + CHUNK, out.size))
        unit = (bits(name, seed, chunk.start, chunk.stop) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1
        out[chunk] = _rounded(offsets[chunk] + scales[chunk] * unit)
    return out.reshape(shape)


def synthesize(
    config: Config, fill: Callable[[str], Fill], seed: int, *, source: str, dtype: torch.dtype = torch.float32
) -> Checkpoint:
    """The model of that shape whose tensor `name` is filled by `fill(name)`."""

    def tensor(item: tuple[str, tuple[int, ...]]) -> torch.Tensor:
        name, shape = item
        return torch.from_numpy(filled(name, shape, fill(name), seed)).to(dtype)

    sizes: Mapping[str, tuple[int, ...]] = shapes(config)
    with ThreadPoolExecutor() as pool:  # numpy lets go of the interpreter's lock
        tensors = dict(zip(sizes, pool.map(tensor, sizes.items()), strict=True))
    return Checkpoint(config, tensors, scheme="recipe", source=source, notes=(official_eps(config),))


def _fnv1a(name: str) -> int:
    """The 64-bit FNV-1a hash of the name's UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def _spread(fill: Fill, shape: tuple[int, ...]) -> tuple[Values, Values]:
    """Scale and offset of each number, row-major. Axes are counted without the singletons of official vectors."""
    axes = tuple(size for size in shape if size > 1)
    count = int(np.prod(shape))
    if not fill.parts:  # the usual case, without memory for each number
        return np.broadcast_to(np.float64(fill.scale), count), np.broadcast_to(np.float64(fill.offset), count)
    scales, offsets = np.full(axes, fill.scale), np.full(axes, fill.offset)
    for part in fill.parts:
        where = (slice(None),) * part.axis + (slice(part.start, part.stop),)
        scales[where], offsets[where] = part.scale, part.offset
    return scales.reshape(-1), offsets.reshape(-1)


def _rounded(values: Values) -> Values:
    """To 8 significant bits, half to even, but in steps no finer than 2^-24."""
    dropped = np.uint64(52 - 7)  # a float64's fraction has 52 bits; 7 stay, after the leading one
    words = values.view(np.uint64)
    odd = (words >> dropped) & np.uint64(1)
    words = (words + odd + np.uint64(2**44 - 1)) >> dropped << dropped
    coarse = np.rint(values / FINEST) * FINEST
    return np.where(np.abs(values) < 2.0**-17, coarse, words.view(np.float64))  # below 2^-17, 8 bits would be finer
