"""The state that a run starts from: zeros, or one drawn by the generator of the weights."""

import numpy as np

from ..checkpoint import Config
from ..checkpoint.synthetic import Fill, Part, filled
from ..reference import State, initial_state
from ..traces import op_of

__all__ = ["start_of", "start_state"]

# S by head, in turn: strong; so faint that GroupNorm's eps shows; and between the two.
HEAD_SCALES = (2**-1, 2**-12, 2**-5)

CACHED = 19  # keys that an attention block starts with: no multiple of a chunk


def start_state(config: Config, seed: int, cached: int = CACHED) -> State:
    """A state under the canonical names that is random and not symmetric: no transposed S passes for it.

    An attention block has `cached` keys. float64 arrays, whose numbers are exact in float32, bfloat16 and float16.
    """
    heads = tuple(Part(0, head, head + 1, HEAD_SCALES[head % 3]) for head in range(config.heads))
    others, wkv = Fill(1.0), Fill(HEAD_SCALES[0], parts=heads)
    sizes = {**config.dims, "M": cached}
    return {
        tensor.name: filled(
            tensor.name, tensor.shape(sizes), wkv if op_of(tensor.name) == "state.wkv" else others, seed
        ).astype(np.float64)
        for tensor in config.state
    }


def start_of(config: Config, start: str) -> State:
    """The state that a trace's `start` means: `zero`, or `random:SEED`."""
    return initial_state(config) if start == "zero" else start_state(config, int(start.removeprefix("random:")))
