"""The canonical names of what an engine shows: taps during a call, and the state between calls.

T tokens, H heads of N, D = H·N, F the channel mix's width, V vocabulary rows. The recurrent state S is [value, key].
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["OPTIONAL_TAPS", "Tensor", "op_of", "state_tensors", "taps"]


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


def taps(layers: int) -> list[Tensor]:
    """Every tap of an RWKV-7 of `layers` blocks, in execution order."""
    blocks = [Tensor(f"blocks.{i}.{name}", axes) for i in range(layers) for name, axes in _BLOCK]
    return [Tensor("emb", TD), *blocks, Tensor("ln_out", TD), Tensor("logits", TV)]


def state_tensors(layers: int) -> list[Tensor]:
    """What an RWKV-7 of `layers` blocks carries from one call to the next."""
    return [
        Tensor(f"blocks.{i}.state.{name}", axes)
        for i in range(layers)
        for name, axes in (("att_x", ("D",)), ("wkv", ("H", "N", "N")), ("ffn_x", ("D",)))
    ]


def op_of(name: str) -> str:
    """A tap's or a state's name without its block: `blocks.2.att.norm` → `att.norm`."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name
