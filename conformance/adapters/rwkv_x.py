"""PyPI `rwkv-x` as an engine, fp32 on the CPU: the official program for RWKV-X. It shows logits and state, no taps.

The package is two programs: `model_old` attends to every token or to chosen chunks, `model` to what a prefill left.
"""

import contextlib
import copy
import os
import sys
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ...checkpoint import Checkpoint, write
from ...errors import InputError, needs
from ...traces import DENSE, Dense, Memory, Package, Policy, state_tensors
from ..engine import Array, Arrays

__all__ = ["Engine"]

os.environ.setdefault("RWKV_JIT_ON", "0")  # read when the package is imported
os.environ.setdefault("RWKV_CUDA_ON", "0")

with needs("engine 'rwkv-x'", "rwkv-x"), contextlib.redirect_stdout(sys.stderr):  # results go to stdout
    from rwkv_x import model, model_old

STRATEGY = "cpu fp32"
SHIFTS = ("att_x", "wkv", "ffn_x")  # the package's order in a block, wkv as [value, key]
CACHES = {"k": "k_cache", "v": "v_cache", "ffn_x": "ffn_x_prev"}


class Engine:
    """PyPI rwkv-x. Its state is a mapping; an empty one is before the first token."""

    name = "rwkv-x"
    dtype = "float32"
    capabilities = frozenset({"state", "snapshot", "attention", "threads"})

    def __init__(self, attention: Policy = DENSE) -> None:
        if not isinstance(attention, Dense | Memory | Package):
            raise InputError(f"engine 'rwkv-x' has no attention {attention}", expected="dense, package or memory")
        self._attention = attention

    def load(self, checkpoint: Checkpoint) -> None:
        config = checkpoint.config
        if config.head_size != 64 or (config.ffn != 4 * config.width and config.attention_layers):
            raise ValueError("the package takes heads of 64 only, and an RWKV-X's F of four times its width")
        self._config = config
        self._own_threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            path = str(Path(folder, "model.pth"))
            write(checkpoint, path, "rwkvx")
            self._model = _opened(path, self._attention)

    def close(self) -> None:
        self._model = None

    def initial_state(self) -> dict[str, Any]:
        return {}

    def forward(
        self, tokens: Sequence[int], state: dict[str, Any], *, taps: MutableMapping[str, Array] | None = None
    ) -> Array:
        logits, after = self._model.forward(list(tokens), state or None, full_output=True)
        state.update(after)
        return np.asarray(logits.reshape(len(tokens), -1).numpy())

    def clone(self, state: dict[str, Any]) -> dict[str, Any]:
        return copy.deepcopy(state)

    snapshot = clone

    def reset(self, state: dict[str, Any]) -> None:
        state.clear()

    def rollback(self, state: dict[str, Any], snapshot: dict[str, Any]) -> None:
        state.clear()
        state.update(copy.deepcopy(snapshot))

    def set_threads(self, threads: int | None) -> None:
        torch.set_num_threads(threads or self._own_threads)

    def export_state(self, state: dict[str, Any]) -> Arrays:
        config = self._config
        if not state:
            sizes = {**config.dims, "M": 0}
            return {each.name: np.zeros(each.shape(sizes), np.float32) for each in config.state}
        arrays: Arrays = {}
        for at, tensor in enumerate(state["rwkv"]):
            arrays[f"blocks.{at // 3}.state.{SHIFTS[at % 3]}"] = tensor.numpy().copy()
        for n, kept in enumerate(state["attn"]):
            for name, theirs in CACHES.items():
                arrays[f"moba.{n}.state.{name}"] = kept[theirs].numpy().reshape(-1, config.width).copy()
            arrays[f"moba.{n}.state.ffn_x"] = arrays[f"moba.{n}.state.ffn_x"].reshape(-1)
        return {name: arrays[name] for name in (each.name for each in config.state)}

    def import_state(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        def given(name: str) -> torch.Tensor:
            return torch.from_numpy(np.array(arrays[name], np.float32))

        config = self._config
        names = [each.name for each in state_tensors(config.layers)]
        zeros = torch.zeros(config.width)
        recurrent = [
            given(name) if name in arrays else (zeros.clone() if "_x" in name else self._no_wkv()) for name in names
        ]
        attention = [
            {
                "k_cache": given(f"moba.{n}.state.k")[None],
                "v_cache": given(f"moba.{n}.state.v")[None],
                "ffn_x_prev": given(f"moba.{n}.state.ffn_x"),
            }
            for n in range(config.attention_layers)
        ]
        return {"rwkv": recurrent, "attn": attention}

    def _no_wkv(self) -> torch.Tensor:
        """Of a block that is never run."""
        return torch.zeros(self._config.heads, self._config.head_size, self._config.head_size)


def _opened(path: str, attention: Policy) -> Any:
    """The program that follows the policy, on a file."""
    if isinstance(attention, Memory):
        return model.RWKV_X(path, STRATEGY, model.RWKV_X_Memory_Config(memory_keep_tokens=attention.tokens))
    policy, mode = (attention, "sparse") if isinstance(attention, Package) else (Package(), "full")
    config = SimpleNamespace(
        attn_chunk_size=policy.chunk,
        attn_topk=policy.top_k,
        short_sequence_criteria=policy.short,
        enable_kv_cache_management=policy.evict_at > 0,
        max_kv_cache_size=policy.evict_at,
        min_kv_cache_size=policy.keep,
        kv_cache_window_size=policy.window,
        prefill_attn_mode="full" if mode == "full" else "chunk",
        decoding_attn_mode=mode,
        head_size=64,
    )
    return model_old.RWKV_X(path, STRATEGY, config)
