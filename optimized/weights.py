"""A checkpoint's tensors as the forward pass wants them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import Checkpoint, Config
from ..checkpoint.model import squeezed, used
from ..errors import InputError
from .int8 import quantise_rows
from .ops import embedding
from .products import Stored, Weight, multiplies_16_bits
from .step import pack

LARGE = 10_000_000  # parameters from which single tokens are worth the half minute that compiling takes, once a machine

# Stored [out, in] in a checkpoint. The LoRA pairs are [in, out] there already.
PROJECTIONS = ("receptance.weight", "key.weight", "value.weight", "output.weight", "head.weight")


@dataclass(frozen=True)
class Weights:
    """Tensors in the model's dtype (w0 in float32), matrices [in, out]; projections as they are stored if the compiled
    loops read them, in codes if the model is quantised."""

    config: Config
    compiled: bool  # whether the compiled loops take single tokens
    emb: Tensor  # (V, D), ln0 folded in
    blocks: dict[str, dict[str, Any]]  # by block, in execution order: official names without it and its dot
    ln_out: tuple[Tensor, Tensor]  # weight and bias
    head: Weight  # (D, V)

    @property
    def in_passages(self) -> bool:
        """Whether they take many tokens too: not where the processor has products of 16 bits, which torch uses."""
        return self.compiled and not multiplies_16_bits(self.emb.dtype)


def prepare(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    *,
    quantize: bool = False,
    compiled: bool | None = None,
) -> Weights:
    config = checkpoint.config
    if compiled is None:
        large = checkpoint.parameters >= LARGE
        compiled = device.type == "cpu" and (quantize or large)
    tensors: dict[str, Any] = {}
    for name, tensor in checkpoint.tensors.items():
        if not used(name, config):
            continue
        if name.endswith(PROJECTIONS) and quantize:
            tensors[name] = _quantised(name, tensor)
        elif name.endswith(PROJECTIONS) and compiled:
            tensors[name] = Stored(tensor.to(dtype).contiguous())
        else:
            tensors[name] = _placed(name, squeezed(name, tensor), dtype, device)
    emb, eps = tensors["emb.weight"], config.layer_norm_eps
    return Weights(
        config=config,
        compiled=compiled,
        emb=embedding(emb, tensors["blocks.0.ln0.weight"], tensors["blocks.0.ln0.bias"], eps),
        blocks={block: _block(tensors, f"{block}.", config, compiled) for block in config.blocks},
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


def _quantised(name: str, tensor: Tensor) -> Weight:
    """In codes, from what the checkpoint holds: rounded to the model's dtype it would have others."""
    try:
        return quantise_rows(tensor)
    except InputError as error:
        raise InputError(f"{name} {error.problem}", expected=error.expected) from None


def _block(tensors: dict[str, Any], prefix: str, config: Config, compiled: bool) -> dict[str, Any]:
    """One block's tensors: k_k, k_a, r_k as (H, N), and the six token-shift mixes as one, in the order r w k v a g.
    If `compiled`, also all of them as `packed` for `step`. An attention block has none of these."""
    p = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if prefix.startswith("moba."):
        return p
    packed = {"packed": pack(p, config.width)} if compiled else {}
    heads = config.heads, config.head_size
    mixes = torch.stack([p.pop(f"att.x_{c}") for c in "rwkvag"])[:, None, None]  # (6, 1, 1, D)
    headed = {name: p[name].view(heads) for name in ("att.k_k", "att.k_a", "att.r_k")}
    return p | {"att.x_rwkvag": mixes} | headed | packed
