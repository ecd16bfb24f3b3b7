"""PyPI `rwkv` as an engine: the official inference program, fp32 on the CPU. It shows logits and state, no taps."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

import numpy as np
import torch

from ...checkpoint import Checkpoint, write
from ...errors import needs
from ...traces import state_tensors
from ..engine import Array, Arrays

__all__ = ["Engine"]

os.environ["RWKV_V7_ON"] = "1"  # read when the package is imported
os.environ.setdefault("RWKV_JIT_ON", "0")
os.environ.setdefault("RWKV_CUDA_ON", "0")

with needs("engine 'rwkv'", "rwkv"), contextlib.redirect_stdout(sys.stderr):  # its greeting; results go to stdout
    from rwkv.model import RWKV


class Engine:
    """PyPI rwkv, strategy "cpu fp32"."""

    name = "rwkv"
    dtype = "float32"
    capabilities = frozenset({"state"})

    def load(self, checkpoint: Checkpoint) -> None:
        self._config = checkpoint.config
        with tempfile.TemporaryDirectory() as folder:  # the package reads a .pth, named without its suffix
            path = Path(folder) / "model"
            write(checkpoint, path.with_suffix(".pth"), "official")
            with contextlib.redirect_stdout(sys.stderr):
                self._model = RWKV(model=str(path), strategy="cpu fp32")

    def close(self) -> None:
        self._model = None

    def initial_state(self) -> list[torch.Tensor]:
        return list(self._model.generate_zero_state())

    def forward(
        self, tokens: Sequence[int], state: list[torch.Tensor], *, taps: MutableMapping[str, Array] | None = None
    ) -> Array:
        logits, after = self._model.forward(list(tokens), state, full_output=True)
        state[:] = after
        return np.asarray(logits.reshape(len(tokens), -1).float().numpy())

    def export_state(self, state: list[torch.Tensor]) -> Arrays:
        """The package keeps [att_x, wkv, ffn_x] of each block in one list, wkv as [value, key]: the canonical order."""
        names = [tensor.name for tensor in state_tensors(self._config.layers)]
        return {name: value.float().numpy().copy() for name, value in zip(names, state, strict=True)}

    def import_state(self, arrays: Mapping[str, Array]) -> list[torch.Tensor]:
        names = [tensor.name for tensor in state_tensors(self._config.layers)]
        return [torch.from_numpy(np.array(arrays[name], np.float32)) for name in names]
