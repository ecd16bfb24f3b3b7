"""Numbers that need all of float32: those of golden models and drawn states are exact in 16 bits."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from ..checkpoint import Checkpoint
from .engine import Array, Arrays

__all__ = ["finer_state", "finer_weights"]

FINER = 1 + 2**-12  # times a number of 16 bits


def finer_weights(checkpoint: Checkpoint, dtype: str) -> Checkpoint:
    """Each weight a little larger; for an engine of 16 bits rounded to them first, as it may."""
    kind = getattr(torch, dtype)
    tensors = {name: (tensor.float() * FINER).to(kind).float() for name, tensor in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors)


def finer_state(state: Mapping[str, Array]) -> Arrays:
    """Each number a little larger, in float32."""
    return {name: (value * FINER).astype(np.float32) for name, value in state.items()}
