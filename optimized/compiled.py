"""The compiled loops, imported when they are first wanted, and what is given to them."""

import hashlib
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = [
    *("Codes", "Floats", "Matrix", "Sums", "Values"),
    *("NO_SCALE", "block_kernels", "kernels", "set_threads", "values_of"),
]

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]
Sums = npt.NDArray[np.int32]  # of products of codes
Values = npt.NDArray[Any]  # a matrix [out, in]: floats, their bits, or codes
Matrix = tuple[Values, Floats]  # and, of codes, a scale for each row; a plain tuple, which numba tells apart faster

NO_SCALE = np.empty(0, np.float32)  # of floats

BITS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}  # numba has neither


def kernels() -> ModuleType:
    """Those of products."""
    return _imported()[0]


def block_kernels() -> ModuleType:
    """Those of a block."""
    return _imported()[1]


@cache
def _imported() -> tuple[ModuleType, ModuleType]:
    """numba takes half a second to import: who does not need it does not pay for it.

    It keeps what it compiled, and looks for changes in the file of the function that is called, not in that of one
    which that calls: so what is kept is in a folder named by the content of all.
    """
    config: Any = import_module("numba.core.config")
    here = Path(__file__).parent
    sources = b"".join((here / name).read_bytes() for name in ("code_dots.py", "kernels.py", "block_kernels.py"))
    chosen = config.CACHE_DIR
    config.CACHE_DIR = str(Path(chosen or here / "__pycache__") / f"gander-{hashlib.sha256(sources).hexdigest()[:16]}")
    try:
        from . import block_kernels, kernels
    finally:
        config.CACHE_DIR = chosen
    return kernels, block_kernels


def set_threads(threads: int) -> None:
    """How many threads the compiled loops may use, as far as numba has them; all else uses torch's."""
    kernels().set_threads(threads)


def values_of(tensor: Tensor) -> Values:
    """A tensor as the compiled loops read it, no copy."""
    bits = BITS.get(tensor.dtype)
    values: Values = (tensor if bits is None else tensor.view(bits)).numpy()
    return values
