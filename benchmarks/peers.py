"""Peers as their own users would run them on this machine: all cores, and no state carried in and out of a call."""

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import needs
from .machine import cores
from .runners import Array, Engines

__all__ = ["Llama", "Rwkv"]

BATCH = 512  # tokens that one call of llama.cpp takes: its own default


class Rwkv(Engines):
    """PyPI rwkv, fp32, its modules compiled by TorchScript."""

    def __init__(self, model: str) -> None:
        os.environ["RWKV_JIT_ON"] = "1"  # read when the package is imported
        from ..conformance.adapters.rwkv import Engine

        super().__init__(Engine(), model)

    def forward(self, tokens: Sequence[int], state: Any, logits: str) -> Array:
        given, after = self.engine._model.forward(list(tokens), state, full_output=logits == "all")
        state[:] = after
        rows: Array = given.reshape(-1, self.vocab).numpy()
        return rows


class Llama(Engines):
    """llama.cpp on a GGUF file. Its context keeps the state; logits stay where llama.cpp put them."""

    def __init__(self, path: str, vocab: int) -> None:
        with needs("engine 'llama.cpp'", "llama-cpp-python", module="llama_cpp", extra="llama"):
            import llama_cpp

        self._lib, self.vocab, self._position = llama_cpp, vocab, 0
        self.engine = self  # of its verbs, those that are asked for
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_default_params()
        model.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), model)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = context.n_outputs_max = BATCH
        context.n_threads = context.n_threads_batch = cores()
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        if not self._context:
            raise RuntimeError("llama.cpp does not load the model")

    def initial_state(self) -> None:
        """There is one state, the context's."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        self._position = 0

    def forward(self, tokens: Sequence[int], state: None, logits: str) -> Array:
        if len(tokens) > BATCH:
            raise ValueError(f"{len(tokens)} tokens in a call: llama.cpp's entries take {BATCH} at the most")
        batch = self._batch
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at] = token, self._position + at
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
            batch.logits[at] = logits == "all" or at == len(tokens) - 1
        batch.n_tokens = len(tokens)
        status = self._lib.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode gave {status}")
        self._position += len(tokens)
        rows = len(tokens) if logits == "all" else 1
        given = self._lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(ctypes.cast(given, ctypes.POINTER(ctypes.c_float)), (rows, self.vocab))
