"""What the model carries from call to call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..checkpoint import Config
from ..errors import InputError, nearest
from .cache import Cache

Array = npt.NDArray[np.floating]


@dataclass
class State:
    """The state of B sequences: of the L blocks of RWKV-7 that are run, and of A attention blocks.

    All but the caches is float32 whatever the model's dtype. Tensors are only ever written in place, so a view of a
    State stays one.
    """

    caches: list[list[Cache]]  # A lists of B
    att_x: Tensor  # (L, B, D): the last ln1(x)
    wkv: Tensor  # (L, B, H, N, N): S, [value, key]
    ffn_x: Tensor  # (L, B, D): the last ln2(x)
    moba_x: Tensor  # (A, B, D): the last ln2(x)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.att_x, self.wkv, self.ffn_x, self.moba_x

    def block(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """What block i of RWKV-7 carries: att_x (B, D), S (B, H, N, N), ffn_x (B, D)."""
        return self.att_x[i], self.wkv[i], self.ffn_x[i]

    @property
    def cached(self) -> int | None:
        """How many tokens each attention block keeps of the first sequence; None without such blocks."""
        return len(self.caches[0][0]) if self.caches else None

    def clone(self) -> "State":
        caches = [[cache.copy() for cache in block] for block in self.caches]
        return State(caches, *(tensor.clone() for tensor in self.tensors))

    def assign(self, other: "State") -> None:
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine.copy_(theirs)
        for ours, others in zip(self.caches, other.caches, strict=True):
            for cache, another in zip(ours, others, strict=True):
                cache.assign(another)


def zeros(config: Config, dtype: torch.dtype, device: torch.device) -> State:
    """One sequence before its first token."""
    run = sum(block.startswith("blocks.") for block in config.blocks)
    wkv = (run, 1, config.heads, config.head_size, config.head_size)
    return State(
        [[Cache(config.heads, config.head_size, dtype, device)] for _ in range(config.attention_layers)],
        torch.zeros(run, 1, config.width, device=device),
        torch.zeros(wkv, device=device),
        torch.zeros(run, 1, config.width, device=device),
        torch.zeros(config.attention_layers, 1, config.width, device=device),
    )


def join(states: Sequence[State]) -> State:
    """A copy of all sequences as one batch."""
    blocks = zip(*(state.caches for state in states), strict=True)
    caches = [[cache.copy() for (cache,) in block] for block in blocks]
    return State(caches, *(torch.cat(tensors, dim=1) for tensors in zip(*(s.tensors for s in states), strict=True)))


def split(state: State) -> list[State]:
    """Views of each sequence of a batch."""
    rows = zip(*(tensor.chunk(tensor.shape[1], dim=1) for tensor in state.tensors), strict=True)
    return [State([[block[b]] for block in state.caches], *tensors) for b, tensors in enumerate(rows)]


def export(state: State, config: Config) -> dict[str, Array]:
    """Copies of one sequence's state under the canonical names."""
    names = (tensor.name for tensor in config.state)
    return {name: _part(state, name).to("cpu", torch.float32, copy=True).numpy() for name in names}


def restore(arrays: Mapping[str, Array], config: Config, dtype: torch.dtype, device: torch.device) -> State:
    """The state that `arrays` describe: exactly the canonical names, in exactly their shapes."""
    some = np.shape(arrays.get("moba.0.state.k", ()))
    dims = {**config.dims, "M": some[0] if len(some) == 2 else 0}  # what the first block says holds for all
    wanted = {tensor.name: tensor.shape(dims) for tensor in config.state}
    for name in arrays:
        if name not in wanted:
            raise InputError(f"the state has no tensor {name!r}", mend=nearest(name, wanted))
    state = zeros(config, dtype, device)
    for name, shape in wanted.items():
        if name not in arrays:
            raise InputError(f"the state lacks {name!r}", expected=_shape(name, shape))
        array = np.asarray(arrays[name])
        if array.shape != shape:
            raise InputError(f"{name!r} has shape {array.shape}", expected=_shape(name, shape))
        if not _is_cached(name):
            _part(state, name).copy_(_tensor(array))
    for n, (cache,) in enumerate(state.caches):
        k, v = (_tensor(arrays[f"moba.{n}.state.{part}"]).view(-1, config.heads, config.head_size) for part in "kv")
        cache.append(k.transpose(0, 1), v.transpose(0, 1))
    return state


def _part(state: State, name: str) -> Tensor:
    """One sequence's tensor of that canonical name: what is not in a cache, as a view."""
    kind, number, _, part = name.split(".")
    if kind == "blocks":
        x: Tensor = getattr(state, part)[int(number), 0]
        return x
    if part == "ffn_x":
        return state.moba_x[int(number), 0]
    rows: Tensor = getattr(state.caches[int(number)][0], part)  # (H, M, N)
    return rows.transpose(0, 1).flatten(1)  # (M, D)


def _shape(name: str, shape: tuple[int, ...]) -> str:
    if _is_cached(name):
        return f"shape (M, {shape[1]}), M as many tokens in every block's k and v"
    return f"shape {shape}"


def _is_cached(name: str) -> bool:
    return name.endswith((".state.k", ".state.v"))


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.asarray(array).astype(np.float32))
