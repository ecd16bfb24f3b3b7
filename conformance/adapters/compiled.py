"""The fast engine with its compiled loops on, however small the model: what a large model is run by."""

from typing import Any

from ... import optimized

__all__ = ["Engine"]


class Engine(optimized.Engine):
    """`optimized`, compiled."""

    name = "compiled"

    def __init__(self, dtype: str = "float32", **options: Any) -> None:
        super().__init__(dtype, compiled=True, **options)
