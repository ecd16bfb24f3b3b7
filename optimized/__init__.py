"""The fast engine: RWKV-7 in torch, on any of its devices. Prefill in matrix products, the recurrence in chunks."""

from .engine import Engine

__all__ = ["Engine"]
