"""One token of each of a few sequences through a block of RWKV-7, in a single compiled call on the CPU."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import Config
from .compiled import NO_SCALE, Floats, Matrix, Values, block_kernels, values_of
from .int8 import Int8
from .products import Stored
from .tap import Tap, unseen

__all__ = ["Packed", "block_step", "pack", "show"]

LORAS = "wavg"
PER_HEAD = frozenset(f"att.{name}" for name in ("r", "w", "k", "v", "a", "kk", "k_mod", "v_mix", "wkv"))
MATRICES = ("att.receptance", "att.key", "att.value", "att.output", "ffn.key", "ffn.value")


class Packed(NamedTuple):
    """A block's weights as the compiled loops take them: its vectors widened, its matrices as they are kept."""

    vectors: Floats  # (19, D)
    downs: tuple[Values, ...]  # of the LoRAs of w, a, v and g, (rank, D) each
    ups: tuple[Values, ...]  # (rank, D) each
    projections: tuple[Matrix, ...]  # of r, k and v
    output: Matrix
    ffn_key: Matrix
    ffn_value: Matrix


def pack(p: Mapping[str, Any], width: int) -> Packed:
    """p: a block's weights, official names without the block's."""
    some = p["att.w1"]
    none = torch.zeros(width, 0, dtype=some.dtype)
    p = {"att.v0": torch.zeros(width), "att.v1": none, "att.v2": none.T, **p}  # layer 0 has none of these
    vectors = [p[name].float().flatten().numpy() for name in block_kernels().VECTORS]
    r, k, v, *others = (_matrix(p[f"{name}.weight"]) for name in MATRICES)
    return Packed(
        np.stack(vectors),
        tuple(values_of(p[f"att.{c}1"].T.contiguous()) for c in LORAS),
        tuple(values_of(p[f"att.{c}2"].contiguous()) for c in LORAS),
        (r, k, v),
        *others,
    )


def _matrix(weight: Int8 | Stored) -> Matrix:
    return (weight.codes, weight.scale) if isinstance(weight, Int8) else (values_of(weight.values), NO_SCALE)


def block_step(
    x: Tensor,
    first: Tensor | None,
    packed: Packed,
    state: tuple[Tensor, Tensor, Tensor],
    *,
    config: Config,
    see: Tap,
) -> tuple[Tensor, Tensor]:
    """x (B, 1, D) after the block, and layer 0's v in float32. The states att_x, S and ffn_x of B sequences advance in
    place. Inside everything is float32; x comes and goes in the model's dtype."""
    loops = block_kernels()
    B = len(x)
    rows, ffn_k = np.empty((B, len(loops.SHOWN), config.width), np.float32), np.empty((B, config.ffn), np.float32)
    before = x[:, 0].float().numpy()
    loops.block_step(
        before,
        before if first is None else first[:, 0].numpy(),
        *packed,
        tuple(part.numpy() for part in state),
        np.float32(config.layer_norm_eps),
        np.float32(config.group_norm_eps),
        rows,
        ffn_k,
    )
    values = torch.from_numpy(rows)[:, None]  # (B, 1, ROWS, D)
    out = values[:, :, loops.OUT].to(x.dtype)
    show(see, config, values, {"ffn.k": torch.from_numpy(ffn_k)[:, None], "out": out})
    return out, values[:, :, loops.V] if first is None else first


def show(see: Tap, config: Config, rows: Tensor, beside: Mapping[str, Tensor]) -> None:
    """Every value of a block in the order of execution, if anybody looks: those `beside`, the others from rows
    (B, T, ROWS, D)."""
    if see is unseen:
        return
    heads = *rows.shape[:2], config.heads, config.head_size
    for i, name in enumerate(block_kernels().SHOWN):
        if name == "ffn.out":
            see("ffn.k", beside["ffn.k"])
        value = beside[name] if name in beside else rows[:, :, i]
        see(name, value.view(heads) if name in PER_HEAD else value)
