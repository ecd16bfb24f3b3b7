"""A checkpoint that is not the model it should be: the engine reads it rightly."""

from collections.abc import Callable
from dataclasses import replace

import torch

from ...checkpoint import Checkpoint
from .mutant import Mutant

__all__ = ["MUTANTS"]

RIGHT = "each tensor of the file is one that the model uses, and none is all zeros"


def with_tensor(name: str, make: Callable[[Checkpoint], torch.Tensor]) -> Callable[[Checkpoint], Checkpoint]:
    return lambda checkpoint: replace(checkpoint, tensors=checkpoint.tensors | {name: make(checkpoint)})


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "file.tensor_of_zeros",
        "a LoRA pair's second matrix was lost in export, and is zeros",
        RIGHT,
        spoils=with_tensor(
            "blocks.1.att.g2", lambda checkpoint: torch.zeros_like(checkpoint.tensors["blocks.1.att.g2"])
        ),
        model="golden:narrow",
        seen="alibaba/MNN:5336c96",
    ),
    Mutant(
        "file.tensor_nobody_reads",
        "a tensor is saved twice, once under a name of its own",
        RIGHT,
        spoils=with_tensor("blocks.1.att.k_k_copy", lambda checkpoint: checkpoint.tensors["blocks.1.att.k_k"]),
        model="golden:narrow",
        seen="fla-org/fla:452dd9a9",
    ),
)
