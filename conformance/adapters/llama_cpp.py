"""llama.cpp as an engine, through PyPI llama-cpp-python: a GGUF file is written, loaded, and run on the CPU.

It shows logits and state, no taps. A state is kept outside of llama.cpp, as the bytes in which it saves a sequence, so
there may be any number of them; a call puts its own back, decodes, and saves it again.
"""

import ctypes
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...checkpoint import Checkpoint, write_gguf
from ...errors import InputError, needs
from ..engine import Array, Arrays
from ..runner import threads_for

__all__ = ["Engine"]

with needs("engine 'llama.cpp'", "llama-cpp-python", module="llama_cpp", extra="llama"):
    import llama_cpp as lib

DTYPES = {"float32": "f32", "float16": "f16"}  # of the large matrices; llama.cpp keeps the state in float32
SEQUENCES = 8  # rows that one call of llama.cpp takes
BATCH = 512  # tokens that one call takes, all rows together
F32, ERROR = 0, 4  # ggml's numbers for a type and for a level of its log
HEAD = np.dtype([("type", "<i4"), ("bytes", "<u8")])  # what is before each row of a saved sequence

_said: list[str] = []  # what llama.cpp logged last


@lib.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
def _log(level: int, text: bytes, data: object) -> None:
    """Keep the log off the terminal; an error's message has its last lines."""
    if level >= ERROR:
        del _said[:-3]
        _said.append(text.decode(errors="replace").strip())


@dataclass
class State:
    """The tokens that are behind it, and the sequence as llama.cpp saved it; None before the first token."""

    position: int = 0
    saved: bytes | None = None


class Engine:
    """llama.cpp on the CPU: float32 throughout, or with dtype="float16" the large matrices in it."""

    name = "llama.cpp"
    capabilities = frozenset({"state", "snapshot", "batch", "chunk", "threads"})

    def __init__(self, dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            raise InputError(f"engine 'llama.cpp' does not compute in {dtype}", expected=" or ".join(DTYPES))
        self.dtype = dtype
        self._model: Any = None
        self._context: Any = None
        self._chunk: int | None = None
        self._template = b""  # a sequence as llama.cpp saves it

    def load(self, checkpoint: Checkpoint) -> None:
        self._config = checkpoint.config
        self._own_threads = threads_for(checkpoint)
        self._threads = self._own_threads
        lib.llama_log_set(_log, ctypes.c_void_p(0))
        lib.llama_backend_init()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.gguf")
            write_gguf(checkpoint, path, dtype=DTYPES[self.dtype])
            options = lib.llama_model_default_params()
            options.n_gpu_layers = 0
            self._model = lib.llama_model_load_from_file(str(path).encode(), options)
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load the model: {_last()}")
        self._open()
        probe = State()
        self._decode([([0], probe)])
        assert probe.saved is not None
        self._template = probe.saved
        self._rows(self._template)  # to know now if this version saves it otherwise

    def close(self) -> None:
        if self._context:
            lib.llama_free(self._context)
        if self._model:
            lib.llama_model_free(self._model)
        self._model = self._context = None

    def initial_state(self) -> State:
        return State()

    def forward(self, tokens: Sequence[int], state: State, *, taps: MutableMapping[str, Array] | None = None) -> Array:
        parts = [tokens[at : at + BATCH] for at in range(0, len(tokens), BATCH)]
        return np.concatenate([self._decode([(part, state)])[0] for part in parts])

    def forward_batch(self, rows: Sequence[Sequence[int]], states: Sequence[State]) -> list[Array]:
        """As many rows in one call of llama.cpp as it takes."""
        logits: list[Array] = []
        pairs = list(zip(rows, states, strict=True))
        for group in (pairs[at : at + SEQUENCES] for at in range(0, len(pairs), SEQUENCES)):
            if sum(len(row) for row, _ in group) <= BATCH:
                logits += self._decode(group)
            else:
                logits += [self.forward(row, state) for row, state in group]
        return logits

    def clone(self, state: State) -> State:
        return State(state.position, state.saved)

    snapshot = clone  # bytes do not change

    def reset(self, state: State) -> None:
        state.position, state.saved = 0, None

    def rollback(self, state: State, snapshot: State) -> None:
        state.position, state.saved = snapshot.position, snapshot.saved

    def set_chunk(self, tokens: int | None) -> None:
        """What llama.cpp calls a micro-batch; it can be chosen only for a new context."""
        self._chunk = tokens
        self._open()

    def set_threads(self, threads: int | None) -> None:
        self._threads = threads or self._own_threads
        lib.llama_set_n_threads(self._context, self._threads, self._threads)

    def export_state(self, state: State) -> Arrays:
        saved = np.frombuffer(state.saved or self._template, np.uint8)
        arrays = {}
        for i, (shift, wkv) in enumerate(self._rows(saved)):
            pieces = shift.reshape(2, -1)[0], wkv, shift.reshape(2, -1)[1]
            for name, piece in zip(("att_x", "wkv", "ffn_x"), pieces, strict=True):
                arrays[f"blocks.{i}.state.{name}"] = piece.copy() if state.saved else np.zeros_like(piece)
        return arrays

    def import_state(self, arrays: Mapping[str, Array]) -> State:
        saved = np.frombuffer(self._template, np.uint8).copy()
        for i, (shift, wkv) in enumerate(self._rows(saved)):
            part = f"blocks.{i}.state"
            shift[:] = np.concatenate([arrays[f"{part}.att_x"], arrays[f"{part}.ffn_x"]])
            wkv[:] = arrays[f"{part}.wkv"]
        return State(1, saved.tobytes())  # the template is behind one token

    def _open(self) -> None:
        """A context: what llama.cpp needs beside the model to run it."""
        if self._context:
            lib.llama_free(self._context)
        options = lib.llama_context_default_params()
        options.n_ctx = BATCH * SEQUENCES
        options.n_batch = options.n_outputs_max = BATCH
        options.n_ubatch = self._chunk or BATCH
        options.n_seq_max = SEQUENCES
        options.n_threads = options.n_threads_batch = self._threads
        self._context = lib.llama_init_from_model(self._model, options)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context: {_last()}")

    def _decode(self, group: Sequence[tuple[Sequence[int], State]]) -> list[Array]:
        """Logits of a few rows of tokens, in one call; their states go on."""
        lengths = [len(tokens) for tokens, _ in group]
        batch = lib.llama_batch_init(sum(lengths), 0, 1)
        try:
            lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
            for row, (tokens, state) in enumerate(group):
                self._put_back(row, state)
                for t, token in enumerate(tokens):
                    at = batch.n_tokens
                    batch.token[at], batch.pos[at] = token, state.position + t
                    batch.n_seq_id[at], batch.seq_id[at][0] = 1, row
                    batch.logits[at] = 1
                    batch.n_tokens += 1
            status = lib.llama_decode(self._context, batch)
            if status:
                raise RuntimeError(f"llama_decode gave {status}: {_last()}")
            given = lib.llama_get_logits(self._context)
            logits = np.ctypeslib.as_array(given, (sum(lengths), self._config.vocab)).copy()
        finally:
            lib.llama_batch_free(batch)
        for row, (tokens, state) in enumerate(group):
            state.saved = self._take_out(row)
            state.position += len(tokens)
        return np.split(logits, np.cumsum(lengths)[:-1])

    def _put_back(self, row: int, state: State) -> None:
        if state.saved is None:
            return
        size = len(state.saved)
        buffer = (ctypes.c_uint8 * size).from_buffer_copy(state.saved)
        if lib.llama_state_seq_set_data(self._context, buffer, size, row) != size:
            raise RuntimeError(f"llama.cpp does not take back a state that it saved: {_last()}")

    def _take_out(self, row: int) -> bytes:
        size = lib.llama_state_seq_get_size(self._context, row)
        buffer = (ctypes.c_uint8 * size)()
        if lib.llama_state_seq_get_data(self._context, buffer, size, row) != size:
            raise RuntimeError(f"llama.cpp does not save a state: {_last()}")
        return bytes(buffer)

    def _rows(self, saved: Any) -> list[tuple[Array, Array]]:
        """Of a saved sequence, views of each block's two shifts (2·D) and wkv (H, N, N, as [value, key]).

        First comes a header, then the shifts of all blocks, then all wkv; before each its type and its size.
        """
        data = np.frombuffer(saved, np.uint8) if isinstance(saved, bytes) else saved
        config = self._config
        sizes = [2 * config.width] * config.layers + [config.width * config.head_size] * config.layers
        at = len(data) - sum(HEAD.itemsize + 4 * size for size in sizes)
        found = []
        for size in sizes:
            head = data[max(0, at) : max(0, at) + HEAD.itemsize].view(HEAD)
            if at < 0 or (head["type"][0], head["bytes"][0]) != (F32, 4 * size):
                raise RuntimeError("this version of llama.cpp saves a state in a way that gander does not know")
            at += HEAD.itemsize
            found.append(data[at : at + 4 * size].view(np.float32))
            at += 4 * size
        shape = config.heads, config.head_size, config.head_size
        return [(found[i], found[config.layers + i].reshape(shape)) for i in range(config.layers)]


def _last() -> str:
    return " · ".join(filter(None, _said)) or "it does not say why"
