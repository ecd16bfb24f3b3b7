"""The fast engine on a CUDA device."""

from typing import Any

from ...optimized import Engine as Optimized

__all__ = ["Engine"]


class Engine(Optimized):
    """Without what runs on the CPU alone: INT8, and the number of its threads."""

    name = "optimized on cuda"
    capabilities = Optimized.capabilities - {"int8", "threads"}

    def __init__(self, dtype: str = "float32", **options: Any) -> None:
        super().__init__(dtype, "cuda", **options)
