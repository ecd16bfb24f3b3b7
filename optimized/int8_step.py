"""One token through a quantised block of RWKV-7 in a single compiled call, float32 on the CPU."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import Config
from .int8 import Codes, Floats, kernels

__all__ = ["Packed", "block_step", "pack"]

LORAS = "wavg"
PER_HEAD = frozenset(f"att.{name}" for name in ("r", "w", "k", "v", "a", "kk", "k_mod", "v_mix", "wkv"))
MATRICES = ("att.receptance", "att.key", "att.value", "att.output", "ffn.key", "ffn.value")


class Packed(NamedTuple):
    """A block's weights as the compiled loops take them."""

    vectors: Floats  # (19, D)
    downs: tuple[Floats, ...]  # of the LoRAs of w, a, v and g, (rank, D) each
    ups: tuple[Floats, ...]  # (rank, D) each
    projections: tuple[tuple[Codes, Floats], ...]  # of r, k and v: plain tuples, which numba tells apart faster
    output: tuple[Codes, Floats]
    ffn_key: tuple[Codes, Floats]
    ffn_value: tuple[Codes, Floats]


def pack(p: Mapping[str, Any], width: int) -> Packed:
    """Copies of a block's vectors, views of its matrices. p: official names without the block's."""
    none = torch.zeros(width, 0)
    p = {"att.v0": torch.zeros(width), "att.v1": none, "att.v2": none.T, **p}  # layer 0 has none of these
    vectors = [p[name].flatten().numpy() for name in kernels().VECTORS]
    r, k, v, *others = (tuple(p[f"{name}.weight"]) for name in MATRICES)
    return Packed(
        np.stack(vectors),
        tuple(np.ascontiguousarray(p[f"att.{c}1"].T.numpy()) for c in LORAS),
        tuple(np.ascontiguousarray(p[f"att.{c}2"].numpy()) for c in LORAS),
        (r, k, v),
        *others,
    )


def block_step(
    x: Tensor,
    first: Tensor | None,
    packed: Packed,
    state: tuple[Tensor, Tensor, Tensor],
    *,
    config: Config,
    see: Callable[[str, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """x (1, 1, D) after the block, and layer 0's v. att_x, S and ffn_x of one sequence advance in place."""
    shown = kernels().SHOWN
    rows, ffn_k = np.empty((len(shown), config.width), np.float32), np.empty((1, config.ffn), np.float32)
    before = x.numpy()[0, 0]
    kernels().block_step(
        before,
        before if first is None else first.numpy()[0, 0],
        *packed,
        tuple(part[0].numpy() for part in state),
        np.float32(config.layer_norm_eps),
        np.float32(config.group_norm_eps),
        rows,
        ffn_k,
    )
    heads = config.heads, config.head_size
    for name, row in zip(shown, rows, strict=True):
        if name == "ffn.out":
            see("ffn.k", torch.from_numpy(ffn_k)[None])
        see(name, torch.from_numpy(row).view(1, 1, *(heads if name in PER_HEAD else row.shape)))
    by_name = dict(zip(shown, torch.from_numpy(rows)[:, None, None], strict=True))
    return by_name["out"], by_name["att.v"] if first is None else first
