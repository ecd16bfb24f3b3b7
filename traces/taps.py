"""The canonical names of what an engine shows: taps during a call, and the state between calls.

T tokens, H heads of N, D = H·N, F the channel mix's width, V vocabulary rows, M keys that an attention block keeps.
The recurrent state S is [value, key]. `blocks.{i}` are RWKV-7's blocks, `moba.{n}` the attention blocks of an RWKV-X.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import InputError, nearest

__all__ = [
    "OPTIONAL_TAPS",
    "Tensor",
    "block_order",
    "block_tensors",
    "entering",
    "named",
    "op_of",
    "skipped",
    "state_tensors",
    "taps",
]


@dataclass(frozen=True)
class Tensor:
    """A named tensor and its axes, e.g. `blocks.0.att.w` with axes `("T", "H", "N")`."""

    name: str
    axes: tuple[str, ...]

    def shape(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """The shape for `dims`, e.g. `{"T": 17, "H": 3, "N": 64, ...}`."""
        return tuple(dims[axis] for axis in self.axes)


Axes = tuple[str, ...]
TD, THN, TF, TV = ("T", "D"), ("T", "H", "N"), ("T", "F"), ("T", "V")

# One block's taps in the order in which they are computed.
_BLOCK: tuple[tuple[str, Axes], ...] = (
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

# The same for an attention block.
_ATTENTION: tuple[tuple[str, Axes], ...] = (
    ("in", TD),  # ln1(x)
    ("q", THN),
    ("k", THN),
    ("v", THN),
    ("att", THN),  # each head's weighted mean of values
    ("out", TD),
    ("mid", TD),  # residual stream after the attention
    ("ffn.in", TD),
    ("ffn.xk", TD),
    ("ffn.k", TF),
    ("ffn.out", TD),
    ("end", TD),  # residual stream after the channel mix
)

OPTIONAL_TAPS = {"att.states": ("T", "H", "N", "N")}  # S after each token: large, allowed in a trace, never asked for

# What one block carries from one call to the next.
_STATE: tuple[tuple[str, Axes], ...] = (
    ("state.att_x", ("D",)),
    ("state.wkv", ("H", "N", "N")),
    ("state.ffn_x", ("D",)),
)
_ATTENTION_STATE: tuple[tuple[str, Axes], ...] = (
    ("state.k", ("M", "D")),
    ("state.v", ("M", "D")),
    ("state.ffn_x", ("D",)),
)

_BEFORE, _AFTER = (Tensor("emb", TD),), (Tensor("ln_out", TD), Tensor("logits", TV))  # the blocks


def block_order(layers: int, attention_layers: int = 0) -> list[str]:
    """The blocks in execution order, `blocks.{i}` and `moba.{n}`: `layers` of RWKV-7, and an RWKV-X's attention blocks.

    The official rule (RWKV-X, `get_block_exe_order`): each of n ≥ 2 attention blocks follows ⌊L / n⌋ blocks of RWKV-7,
    and those left over are never run; a single attention block comes last.
    """
    each = layers // attention_layers if attention_layers > 1 else layers
    order: list[str] = []
    for n in range(max(1, attention_layers)):
        order += [f"blocks.{i}" for i in range(n * each, (n + 1) * each)]
        order += [f"moba.{n}"] if attention_layers else []
    return order


def skipped(layers: int, attention_layers: int) -> list[str]:
    """The blocks that are in the checkpoint but never run, because the attention blocks do not divide them evenly."""
    run = set(block_order(layers, attention_layers))
    return [block for i in range(layers) if (block := f"blocks.{i}") not in run]


def taps(layers: int, attention_layers: int = 0) -> list[Tensor]:
    """Every tap of a model of that many blocks, in execution order."""
    order = block_order(layers, attention_layers)
    blocks = [Tensor(f"{block}.{name}", axes) for block in order for name, axes in _kind(block, _BLOCK, _ATTENTION)]
    return [*_BEFORE, *blocks, *_AFTER]


def entering(block: str, order: Sequence[str]) -> str:
    """The tap that goes into a block of that order: the residual stream as what is before it leaves it."""
    at = order.index(block)
    if at == 0:
        return _BEFORE[-1].name
    last, _ = _kind(order[at - 1], _BLOCK, _ATTENTION)[-1]
    return f"{order[at - 1]}.{last}"


def state_tensors(layers: int, attention_layers: int = 0) -> list[Tensor]:
    """What a model of that many blocks carries from one call to the next."""
    order = block_order(layers, attention_layers)
    return [Tensor(f"{block}.{name}", axes) for block in order for name, axes in _kind(block, _STATE, _ATTENTION_STATE)]


def block_tensors(block: str) -> list[Tensor]:
    """All that may be shown of one block, `blocks.{i}` or `moba.{n}`: its taps, the optional too, and its state."""
    every = _kind(block, (*_BLOCK, *OPTIONAL_TAPS.items(), *_STATE), (*_ATTENTION, *_ATTENTION_STATE))
    return [Tensor(f"{block}.{name}", axes) for name, axes in every]


def named(name: str) -> Tensor:
    """The tap or state tensor of that name, whatever the number of blocks. InputError with the nearest names else."""
    inside = re.fullmatch(r"((?:blocks|moba)\.(?:0|[1-9]\d{0,5}))\..+", name)
    some = "moba.0" if name.startswith("moba") else "blocks.0"
    known = {tensor.name: tensor for tensor in (*_BEFORE, *block_tensors(inside[1] if inside else some), *_AFTER)}
    if name not in known:
        raise InputError(f"no tap or state is called {name!r}", expected=nearest(name, known))
    return known[name]


def op_of(name: str) -> str:
    """A tensor's name without its block's number: `blocks.2.att.norm` → `att.norm`, `moba.1.q` → `moba.q`."""
    kind, *rest = name.split(".", 2)
    if kind == "blocks":
        return rest[1]
    return f"moba.{rest[1]}" if kind == "moba" else name


def _kind(
    block: str, rwkv: tuple[tuple[str, Axes], ...], attention: tuple[tuple[str, Axes], ...]
) -> tuple[tuple[str, Axes], ...]:
    return attention if block.startswith("moba.") else rwkv
