"""The fast engine: RWKV-7 in torch, on any of its devices. Prefill in matrix products, the recurrence in chunks."""

from .engine import Engine
from .tokenizer import Tokenizer

__all__ = ["Engine", "Tokenizer"]
