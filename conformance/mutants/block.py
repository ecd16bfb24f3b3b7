"""What a mistake that needs more than one formula's inputs may look at: one block of a running port."""

from collections.abc import Callable, Mapping
from typing import Any

from ... import traces
from ...checkpoint import Checkpoint
from ...traces import op_of
from ..engine import Array
from .port import Port

__all__ = ["Block", "entering", "instead", "weights_from"]


class Block:
    """The block that a tap belongs to: its number, its weights, and its taps of the call so far."""

    def __init__(self, port: Port, name: str, seen: Mapping[str, Array]) -> None:
        self.port, self.seen = port, seen
        self.name, _, _ = name.partition(f".{op_of(name)}")
        self.index = int(self.name.removeprefix("blocks."))

    def tap(self, name: str, block: int | None = None) -> Array:
        """Of this block, or another's of RWKV-7."""
        return self.seen[f"{self.name if block is None else f'blocks.{block}'}.{name}"]

    def weight(self, name: str) -> Array:
        return self.port.p[f"{self.name}.{name}"]

    def norm(self, name: str) -> tuple[Array, Array, float]:
        """Weight, bias and eps of one of its norms."""
        eps = self.port.config.group_norm_eps if name == "att.ln_x" else self.port.config.layer_norm_eps
        return self.weight(f"{name}.weight"), self.weight(f"{name}.bias"), eps

    def heads(self, value: Array) -> Array:
        """(…, D) → (…, H, N)."""
        return value.reshape(*value.shape[:-1], self.port.config.heads, self.port.config.head_size)

    @property
    def x(self) -> Array:
        """The residual stream as it enters the block."""
        return entering(self.port, self.name, self.seen)


def entering(port: Port, block: str, seen: Mapping[str, Array]) -> Array:
    """The residual stream as it enters `block`."""
    return seen[traces.entering(block, port.config.blocks)]


def instead(**formulas: Callable[[Block, Array], Array]) -> dict[str, Callable[..., Any]]:
    """The method `see` with other formulas for some taps of a block, `att_kk` for `att.kk`.

    A formula gets the block, and the right value of the tap.
    """
    by_tap = {name.replace("_", ".", 1) if name[:4] in ("att_", "ffn_") else name: formulas[name] for name in formulas}

    def see(port: Port, name: str, value: Array, seen: Mapping[str, Array]) -> Array:
        formula = by_tap.get(op_of(name))
        return value if formula is None else formula(Block(port, name, seen), value)

    return {"see": see}


def weights_from(others: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
    """The method `weights` that takes some of them from another's place: `{"att.x_w": "att.x_k"}`."""

    def weights(port: Port, checkpoint: Checkpoint) -> Mapping[str, Any]:
        right = checkpoint.weights(port.kind)
        sources = {name: name.replace(op_of(name), others.get(op_of(name), op_of(name))) for name in right}
        return {name: right[source] for name, source in sources.items()}

    return {"weights": weights}
