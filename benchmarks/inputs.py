"""The files that contenders read: models in each one's format, and traces. Each is made when it is first asked for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..checkpoint import Checkpoint, write, write_gguf
from ..golden import open_model
from ..traces import Trace
from ..traces import write as write_trace
from .rows import Entry

__all__ = ["Inputs"]

TOKENS = 256  # of a trace
CHANGED = "blocks.6.ffn.out"  # in the trace that is not the same


class Inputs:
    """In a folder. Golden models are made by whoever asks, in no time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._models: dict[str, Checkpoint] = {}

    def model(self, spec: str) -> Checkpoint:
        """The model, in memory."""
        if spec not in self._models:
            self._models[spec] = open_model(spec)
        return self._models[spec]

    def options(self, entry: Entry) -> dict[str, Any]:
        """What the entry's runner is made with: its options, with files for models."""
        options = dict(entry.options)
        model: str = options.get("model", "")
        if entry.runner == "llama":
            return {"path": self._gguf(model, options["dtype"]), "vocab": self.model(model).config.vocab}
        if entry.runner == "diff":
            return dict(zip(("a", "b", "changed"), self._traces(model), strict=True))
        if model and not model.startswith("golden:"):
            options["model"] = self._pth(model, torch.float32 if entry.runner == "load" else None)
        return options

    def _once(self, name: str, make: Callable[[Path], object]) -> str:
        path = self.folder / name.replace(":", "-")
        if not path.exists():
            make(path)
        return str(path)

    def _pth(self, model: str, dtype: torch.dtype | None) -> str:
        def make(path: Path) -> None:
            checkpoint = self.model(model)
            if dtype is not None:
                tensors = {name: tensor.to(dtype) for name, tensor in checkpoint.tensors.items()}
                checkpoint = replace(checkpoint, tensors=tensors)
            write(checkpoint, path, "rwkvx" if checkpoint.config.attention_layers else "official")

        return self._once(f"{model}{'' if dtype is None else '-float32'}.pth", make)

    def _gguf(self, model: str, dtype: str) -> str:
        return self._once(f"{model}-{dtype}.gguf", lambda path: write_gguf(self.model(model), path, dtype=dtype))

    def _traces(self, model: str) -> list[str]:
        """Two that differ by a rounding, and one in which a number is another."""
        config, random = self.model(model).config, np.random.default_rng(0)
        dims = {**config.dims, "T": TOKENS}
        tensors = {tap.name: random.standard_normal(tap.shape(dims), np.float32) for tap in config.taps}
        near = {name: np.nextafter(tensor, np.float32(np.inf)) for name, tensor in tensors.items()}
        wrong = {**near, CHANGED: near[CHANGED].copy()}
        wrong[CHANGED][TOKENS // 2, 0] += 1
        given: dict[str, Any] = {"tokens": (0,) * TOKENS, "dtype": "float32", "path": "prefill", "start": "zero"}

        def written(name: str, arrays: dict[str, Any]) -> str:
            trace = Trace(model="0" * 64, engine="random", tensors=arrays, **given)
            return self._once(f"{name}.safetensors", lambda path: write_trace(path, trace))

        return [written(name, arrays) for name, arrays in (("a", tensors), ("b", near), ("changed", wrong))]
