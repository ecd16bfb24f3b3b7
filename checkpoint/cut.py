"""A part of a model as a model of its own, so that a large one can be checked in the memory that a layer takes.

`blocks.15` is that block behind block 0, which makes the v_first that every other mixes toward; `moba.2` an attention
block behind the block before it. `vocab.3` is block 0 with F rows of embedding and head, the fourth. A part's tensors
are the whole model's, mapped where those are.
"""

from dataclasses import replace

import torch

from ..errors import InputError, nearest
from .model import Checkpoint, Config
from .names import block_of

__all__ = ["cut", "parts"]

ROWS = 64  # of embedding and head, where a part is about a block


def parts(config: Config) -> list[str]:
    """The parts that make the whole model, each as large as a layer."""
    return [*config.blocks, *(f"vocab.{k}" for k in range(-(-config.vocab // config.ffn)))]


def cut(checkpoint: Checkpoint, part: str) -> Checkpoint:
    """That part of a model: no block in it but its own and those that give it what it takes."""
    config = checkpoint.config
    if part not in parts(config):
        raise InputError(f"{checkpoint.source} has no part {part!r}", expected=nearest(part, parts(config)))
    names = _blocks(config, part)
    kind, _, number = part.partition(".")
    if kind == "vocab":
        rows: slice | torch.Tensor = slice(int(number) * config.ffn, (int(number) + 1) * config.ffn)
    else:
        rows = torch.linspace(0, config.vocab - 1, min(ROWS, config.vocab)).long()  # spread, the first and the last
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        block = block_of(name)
        if name in ("emb.weight", "head.weight"):
            tensors[name] = tensor[rows]
        elif block is None:
            tensors[name] = tensor
        elif block in names:
            tensors[names[block] + name.removeprefix(block)] = tensor
    layers = sum(name.startswith("blocks.") for name in names)
    smaller = replace(
        config,
        layers=layers,
        attention_layers=len(names) - layers,
        rank_v=config.rank_v if layers > 1 else 0,  # as a model of one layer has no value residual
        vocab=len(tensors["emb.weight"]),
    )
    return replace(
        checkpoint,
        config=smaller,
        tensors=tensors,
        source=f"{checkpoint.source}#{part}",
        whole={own: name for name, own in names.items()},
    )


def _blocks(config: Config, part: str) -> dict[str, str]:
    """The blocks of a part: their names in the whole model, and in the part."""
    order = config.blocks
    last = part if part in order else order[0]
    wanted = {order[0], last} if last.startswith("blocks.") else {order[0], order[order.index(last) - 1], last}
    counts = {"blocks": 0, "moba": 0}
    names = {}
    for block in (block for block in order if block in wanted):
        kind = block.partition(".")[0]
        names[block] = f"{kind}.{counts[kind]}"
        counts[kind] += 1
    return names
