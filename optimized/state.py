"""What the model carries from call to call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..checkpoint import Config
from ..errors import InputError, nearest
from ..traces.taps import state_tensors

Array = npt.NDArray[np.floating]


@dataclass
class State:
    """The state of B sequences. Tensors are only ever written in place, so a view of a State stays one."""

    att_x: Tensor  # (L, B, D): the last ln1(x)
    wkv: Tensor  # (L, B, H, N, N) float32: S, [value, key]
    ffn_x: Tensor  # (L, B, D): the last ln2(x)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.att_x, self.wkv, self.ffn_x

    def clone(self) -> "State":
        return State(*(tensor.clone() for tensor in self.tensors))

    def assign(self, other: "State") -> None:
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine.copy_(theirs)


def zeros(config: Config, dtype: torch.dtype, device: torch.device) -> State:
    """One sequence before its first token."""
    x = (config.layers, 1, config.width)
    wkv = (config.layers, 1, config.heads, config.head_size, config.head_size)
    return State(
        torch.zeros(x, dtype=dtype, device=device),
        torch.zeros(wkv, dtype=torch.float32, device=device),
        torch.zeros(x, dtype=dtype, device=device),
    )


def join(states: Sequence[State]) -> State:
    """A copy of all sequences as one batch."""
    return State(*(torch.cat(tensors, dim=1) for tensors in zip(*(s.tensors for s in states), strict=True)))


def split(state: State) -> list[State]:
    """Views of each sequence of a batch."""
    return [State(*tensors) for tensors in zip(*(t.chunk(t.shape[1], dim=1) for t in state.tensors), strict=True)]


def export(state: State) -> dict[str, Array]:
    """Copies of one sequence's state under the canonical names."""
    return {
        f"blocks.{i}.state.{part}": getattr(state, part)[i, 0].to("cpu", torch.float32, copy=True).numpy()
        for i in range(len(state.wkv))
        for part in ("att_x", "wkv", "ffn_x")
    }


def restore(arrays: Mapping[str, Array], config: Config, dtype: torch.dtype, device: torch.device) -> State:
    """The state that `arrays` describe: exactly the canonical names, in exactly their shapes."""
    wanted = {tensor.name: tensor.shape(config.dims) for tensor in state_tensors(config.layers)}
    for name in arrays:
        if name not in wanted:
            raise InputError(f"the state has no tensor {name!r}", mend=nearest(name, wanted))
    state = zeros(config, dtype, device)
    for name, shape in wanted.items():
        if name not in arrays:
            raise InputError(f"the state lacks {name!r}", expected=f"shape {shape}")
        array = np.asarray(arrays[name])
        if array.shape != shape:
            raise InputError(f"{name!r} has shape {array.shape}", expected=f"shape {shape}")
        _, layer, _, part = name.split(".")
        getattr(state, part)[int(layer), 0] = torch.from_numpy(array.astype(np.float32))
    return state
