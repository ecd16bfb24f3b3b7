"""What this machine gives, to hold the figures against: its memory's bandwidth, its cores' matrix rate, its load."""

import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .runners import Lap

__all__ = ["BUSY", "TEXT", "Multiply", "Read", "busy", "cores", "packages"]

READ = 1 << 29  # bytes: far more than a cache holds
WIDTH = 2048  # of a matrix product
TEXT = 500_000  # bytes of text for tokenizers: the literal one, which must agree, takes half a minute for them
BUSY = 0.5  # processes waiting for a core, on average over a minute: more, and something else is running

PACKAGES = ("torch", "numpy", "numba", "llama-cpp-python", "rwkv", "rwkv7-hf", "transformers", "pyrwkv-tokenizer")


class Read:
    """Reads memory on all cores, as fast as numba's loops can: a sum, as in STREAM, but nothing is written."""

    def __init__(self) -> None:
        from numba import njit, prange

        @njit(parallel=True, fastmath=True)  # type: ignore[untyped-decorator, unused-ignore]
        def total(x: Any) -> float:
            sum = 0.0
            for i in prange(x.size):
                sum += x[i]
            return sum

        self._total, self._x = total, np.ones(READ // 4, np.float32)
        total(self._x)

    def show(self) -> dict[str, Any]:
        return {}

    def work(self) -> "Lap":
        from .runners import Lap

        return Lap(lambda: self._total(self._x), READ / 1e9)


class Multiply:
    """A large matrix product, by the fastest way there is: numpy's BLAS or torch's, in float32 or in 16 bits."""

    def __init__(self) -> None:
        import torch

        ways: list[Callable[[int], Callable[[], object]]] = [self._numpy]
        ways += [self._torch(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
        self._product = min(ways, key=lambda way: _seconds(way(WIDTH // 4)))(WIDTH)

    def show(self) -> dict[str, Any]:
        return {}

    def work(self) -> "Lap":
        from .runners import Lap

        return Lap(self._product, 2 * WIDTH**3 / 1e9)

    @staticmethod
    def _numpy(n: int) -> Callable[[], object]:
        x = np.ones((n, n), np.float32)
        return lambda: x @ x

    @staticmethod
    def _torch(dtype: Any) -> Callable[[int], Callable[[], object]]:
        def way(n: int) -> Callable[[], object]:
            import torch

            x = torch.ones(n, n, dtype=dtype)
            return lambda: torch.mm(x, x)

        return way


def _seconds(run: Callable[[], object]) -> float:
    run()
    started = perf_counter()
    run()
    return perf_counter() - started


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy() -> str:
    """A warning, if others use the machine; else nothing."""
    load = os.getloadavg()[0]
    if load <= BUSY:
        return ""
    return f"the machine is busy (load {load:.1f} on {cores()} cores): these figures are worth little"


def packages() -> dict[str, str]:
    """The versions of what is measured."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
