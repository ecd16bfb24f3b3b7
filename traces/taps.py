"""The canonical names of what an engine shows: taps during a call, and the state between calls.

T tokens, H heads of N, D = H·N, F the channel mix's width, V vocabulary rows. The recurrent state S is [value, key].
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InputError, nearest

__all__ = ["OPTIONAL_TAPS", "Tensor", "block_tensors", "named", "op_of", "state_tensors", "taps"]


@dataclass(frozen=True)
class Tensor:
    """A named tensor and its axes, e.g. `blocks.0.att.w` with axes `("T", "H", "N")`."""

    name: str
    axes: tuple[str, ...]

    def shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """The shape for `dims`, e.g. `{"T": 17, "H": 3, "N": 64, ...}`."""
        return tuple(dims[axis] for axis in self.axes)


TD, THN, TF, TV = ("T", "D"), ("T", "H", "N"), ("T", "F"), ("T", "V")

# One block's taps in the order in which they are computed.
_BLOCK: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("att.in", TD),  # ln1(x): what token shift keeps
    ("att.xr", TD),
    ("att.xw", TD),
    ("att.xk", TD),
    ("att.xv", TD),
    ("att.xa", TD),
    ("att.xg", TD),
    ("att.r", THN),
    ("att.w", THN),  # the decay itself, after exp
    ("att.k", THN),  # the raw key
    ("att.v", THN),  # the raw value
    ("att.a", THN),  # the in-context learning rate
    ("att.kk", THN),  # the removal key, l2-normalised
    ("att.k_mod", THN),  # the key after the k_a update
    ("att.v_mix", THN),  # the value after the lerp toward v_first
    ("att.g", TD),
    ("att.wkv", THN),  # S r
    ("att.norm", TD),  # GroupNorm(wkv)
    ("att.bonus", TD),
    ("att.gated", TD),  # (norm + bonus) · g
    ("att.out", TD),
    ("mid", TD),  # residual stream after the time mix
    ("ffn.in", TD),
    ("ffn.xk", TD),
    ("ffn.k", TF),  # relu²
    ("ffn.out", TD),
    ("out", TD),  # residual stream after the channel mix
)

OPTIONAL_TAPS = {"att.states": ("T", "H", "N", "N")}  # S after each token: large, allowed in a trace, never asked for


# What one block carries from one call to the next.
_STATE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("state.att_x", ("D",)),
    ("state.wkv", ("H", "N", "N")),
    ("state.ffn_x", ("D",)),
)

_BEFORE, _AFTER = (Tensor("emb", TD),), (Tensor("ln_out", TD), Tensor("logits", TV))  # the blocks


def taps(layers: int) -> list[Tensor]:
    """Every tap of an RWKV-7 of `layers` blocks, in execution order."""
    blocks = [Tensor(f"blocks.{i}.{name}", axes) for i in range(layers) for name, axes in _BLOCK]
    return [*_BEFORE, *blocks, *_AFTER]


def state_tensors(layers: int) -> list[Tensor]:
    """What an RWKV-7 of `layers` blocks carries from one call to the next."""
    return [Tensor(f"blocks.{i}.{name}", axes) for i in range(layers) for name, axes in _STATE]


def block_tensors(block: int) -> list[Tensor]:
    """All that may be shown of one block: its taps, the optional ones too, and its state."""
    return [Tensor(f"blocks.{block}.{name}", axes) for name, axes in (*_BLOCK, *OPTIONAL_TAPS.items(), *_STATE)]


def named(name: str) -> Tensor:
    """The tap or state tensor of that name, whatever the number of blocks. InputError with the nearest names else."""
    inside = re.fullmatch(r"blocks\.(0|[1-9]\d{0,5})\..+", name)
    known = {tensor.name: tensor for tensor in (*_BEFORE, *block_tensors(int(inside[1]) if inside else 0), *_AFTER)}
    if name not in known:
        raise InputError(f"no tap or state is called {name!r}", expected=nearest(name, known))
    return known[name]


def op_of(name: str) -> str:
    """A tap's or a state's name without its block: `blocks.2.att.norm` → `att.norm`."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name
