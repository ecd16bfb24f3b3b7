"""A checkpoint in memory: the shape of the model, and its tensors under the official names."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from ..traces.taps import Tensor, block_order, state_tensors, taps
from ..traces.taps import skipped as skipped_blocks
from .names import block_of, part_of

__all__ = ["LAYER_0_UNUSED", "VECTORS", "Checkpoint", "Config", "squeezed", "used"]

# Tensors stored with singleton axes ([1, 1, D]) in official files; everything else is what its shape says.
VECTORS = frozenset(
    f"{part}.{name}"
    for part, names in {
        "att": ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "w0", "a0", "v0", "k_k", "k_a"),
        "ffn": ("x_k",),
        "moba.ffn": ("x_k",),
    }.items()
    for name in names
)

HASHED = 1 << 24  # numbers at a time: a large tensor is not widened as a whole

# Layer 0 gives v_first and so never mixes toward it: some files hold these tensors, some do not, nobody reads them.
LAYER_0_UNUSED = frozenset({"blocks.0.att.v0", "blocks.0.att.v1", "blocks.0.att.v2"})

# These normalise the embedding, whether or not the block in which they are named is run.
_EMBEDDING_NORM = frozenset({"blocks.0.ln0.weight", "blocks.0.ln0.bias"})


@dataclass(frozen=True)
class Config:
    """The shape of an RWKV-7 or RWKV-X, read from its tensors.

    The attention blocks of an RWKV-X have its width, its F, and heads of 64, as all of its heads are.

    The two epsilons are the only numbers that a file's tensors do not tell: official files mean GroupNorm eps 64e-5,
    Hugging Face folders head_dim · norm_eps. They are equal for heads of 64 only.
    """

    layers: int  # L
    width: int  # D = heads · head_size
    heads: int  # H
    head_size: int  # N
    ffn: int  # F
    vocab: int  # V
    rank_w: int
    rank_a: int
    rank_v: int  # 0 for a model of one layer, which has no value residual
    rank_g: int
    layer_norm_eps: float = 1e-5
    group_norm_eps: float = 64e-5
    attention_layers: int = 0  # n of an RWKV-X

    @property
    def blocks(self) -> list[str]:
        """The blocks in execution order: `blocks.{i}`, and `moba.{n}` for attention."""
        return block_order(self.layers, self.attention_layers)

    @property
    def skipped(self) -> list[str]:
        """The blocks that are in the checkpoint but never run."""
        return skipped_blocks(self.layers, self.attention_layers)

    @property
    def taps(self) -> list[Tensor]:
        """Every tap, in execution order."""
        return taps(self.layers, self.attention_layers)

    @property
    def state(self) -> list[Tensor]:
        """What is carried from one call to the next."""
        return state_tensors(self.layers, self.attention_layers)

    @property
    def dims(self) -> dict[str, int]:
        """The sizes by the letters of the tap list (T, the number of tokens, is the caller's)."""
        return {"D": self.width, "H": self.heads, "N": self.head_size, "F": self.ffn, "V": self.vocab}


@dataclass(frozen=True)
class Checkpoint:
    """Tensors under their official names, layouts and stored dtypes, with the shape they imply.

    `[out, in]` for projections, `[in, out]` for the LoRA pairs, `[H, N]` for r_k, vectors with or without singleton
    axes.
    """

    config: Config
    tensors: dict[str, torch.Tensor]
    scheme: str  # official, hf, rwkvx, or recipe
    source: str  # the path or recipe it came from, for messages
    notes: tuple[str, ...] = field(default=())  # what a reader should know, e.g. which eps was chosen and why
    whole: Mapping[str, str] = field(default_factory=dict)  # of a part of a model: what that calls the part's blocks

    @cached_property
    def parameters(self) -> int:
        """How many numbers its tensors hold, used or not."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    @property
    def names(self) -> list[str]:
        """Of the tensors that the model uses."""
        return [name for name in self.tensors if used(name, self.config)]

    def weight(self, name: str, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[np.floating]:
        """A tensor as a numpy array of `dtype`, a vector squeezed to (D,)."""
        return squeezed(name, self.tensors[name]).to(torch.float32).numpy().astype(dtype, copy=False)

    def weights(self, dtype: npt.DTypeLike = np.float64) -> dict[str, npt.NDArray[np.floating]]:
        """All that the model uses."""
        return {name: self.weight(name, dtype) for name in self.names}

    def fingerprint(self) -> str:
        """sha256 of the model: its epsilons and every used tensor's name, shape and values.

        Values are hashed as little-endian float32, so a model has one fingerprint whatever naming scheme or storage
        dtype it came in. A large model takes seconds, once.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        digest.update(f"{self.config.layer_norm_eps!r} {self.config.group_norm_eps!r}\n".encode())
        for name in sorted(self.tensors):
            if used(name, self.config):
                tensor = squeezed(name, self.tensors[name])
                digest.update(f"{name} {list(tensor.shape)}\n".encode())
                for rows in torch.split(tensor.reshape(-1), HASHED):
                    digest.update(np.ascontiguousarray(rows.to(torch.float32).numpy(), dtype="<f4").data)
        return digest.hexdigest()


def used(name: str, config: Config) -> bool:
    """Whether the model uses a tensor that its file may hold: neither layer 0's unused ones nor blocks never run."""
    if name in LAYER_0_UNUSED:
        return False
    return name in _EMBEDDING_NORM or block_of(name) not in config.skipped


def squeezed(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` without the singleton axes that official files give to vectors."""
    return tensor.reshape(-1) if part_of(name) in VECTORS else tensor
