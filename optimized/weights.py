"""A checkpoint's tensors as the forward pass wants them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import Checkpoint, Config
from ..checkpoint.model import squeezed, used
from ..errors import InputError
from .int8 import Int8, quantise_rows
from .int8_step import pack
from .ops import embedding

# Stored [out, in] in a checkpoint. The LoRA pairs are [in, out] there already.
PROJECTIONS = ("receptance.weight", "key.weight", "value.weight", "output.weight", "head.weight")


@dataclass(frozen=True)
class Weights:
    """Tensors in the model's dtype (w0 in float32), matrices [in, out]; of a quantised model, projections as Int8."""

    config: Config
    emb: Tensor  # (V, D), ln0 folded in
    blocks: dict[str, dict[str, Any]]  # by block, in execution order: official names without it and its dot
    ln_out: tuple[Tensor, Tensor]  # weight and bias
    head: Tensor | Int8  # (D, V)


def prepare(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, *, quantize: bool = False) -> Weights:
    config = checkpoint.config
    tensors: dict[str, Any] = {}
    for name, tensor in checkpoint.tensors.items():
        if quantize and name.endswith(PROJECTIONS) and used(name, config):
            tensors[name] = _quantised(name, tensor)
        elif used(name, config):
            tensors[name] = _placed(name, squeezed(name, tensor), dtype, device)
    step = quantize and dtype == torch.float32
    emb, eps = tensors["emb.weight"], config.layer_norm_eps
    return Weights(
        config=config,
        emb=embedding(emb, tensors["blocks.0.ln0.weight"], tensors["blocks.0.ln0.bias"], eps),
        blocks={block: _block(tensors, f"{block}.", config, step) for block in config.blocks},
        ln_out=(tensors["ln_out.weight"], tensors["ln_out.bias"]),
        head=tensors["head.weight"],
    )


def _placed(name: str, tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Of its dtype, on its device; a matrix as [in, out] with its longer axis contiguous."""
    tensor = tensor.to(device, torch.float32 if name.endswith("att.w0") else dtype)
    if name.endswith(PROJECTIONS):
        tensor = tensor.T
    if tensor.ndim == 2:  # long rows stream from memory up to twice as fast as short ones
        tensor = tensor.contiguous() if tensor.shape[1] >= tensor.shape[0] else tensor.T.contiguous().T
    return tensor


def _quantised(name: str, tensor: Tensor) -> Int8:
    """In codes, from what the checkpoint holds: rounded to the model's dtype it would have others."""
    try:
        return quantise_rows(tensor)
    except InputError as error:
        raise InputError(f"{name} {error.problem}", expected=error.expected) from None


def _block(tensors: dict[str, Any], prefix: str, config: Config, step: bool) -> dict[str, Any]:
    """One block's tensors: k_k, k_a, r_k as (H, N), and the six token-shift mixes as one, in the order r w k v a g.
    `step`: also all of them as `packed` for `int8_step`. An attention block has none of these."""
    p = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if prefix.startswith("moba."):
        return p
    packed = {"packed": pack(p, config.width)} if step else {}
    heads = config.heads, config.head_size
    mixes = torch.stack([p.pop(f"att.x_{c}") for c in "rwkvag"])[:, None, None]  # (6, 1, 1, D)
    headed = {name: p[name].view(heads) for name in ("att.k_k", "att.k_a", "att.r_k")}
    return p | {"att.x_rwkvag": mixes} | headed | packed
