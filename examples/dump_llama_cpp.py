"""Every tensor of llama.cpp's graph, under its own names, as a file that `gander diff` and `gander diagnose` take.

    python dump_llama_cpp.py model.gguf 3,511,7 dump.safetensors

llama.cpp calls back for each tensor that it computes (`cb_eval`). Needs llama-cpp-python and safetensors.
"""

import ctypes
import sys
from pathlib import Path

import llama_cpp as lib
import numpy as np
from safetensors.numpy import save_file

DTYPES: dict[int, type] = {
    0: np.float32,
    1: np.float16,
}  # ggml's numbers of them; other kinds are left out


class Tensor(ctypes.Structure):
    """The beginning of ggml's `struct ggml_tensor`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("sizes", ctypes.c_int64 * 4),  # ne: the fastest axis first
        ("strides", ctypes.c_size_t * 4),  # nb, in bytes
    )


def ggml() -> ctypes.CDLL:
    """The library that llama-cpp-python has beside llama.cpp's own."""
    (path,) = Path(lib.__file__).with_name("lib").glob("*ggml-base.[sd]*[ob]")  # .so or .dylib
    loaded = ctypes.CDLL(str(path))
    loaded.ggml_get_name.restype = ctypes.c_char_p
    loaded.ggml_get_name.argtypes = loaded.ggml_nbytes.argtypes = [ctypes.c_void_p]
    loaded.ggml_nbytes.restype = ctypes.c_size_t
    loaded.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] * 2
    return loaded


def values(base: ctypes.CDLL, address: int) -> np.ndarray | None:
    """A copy of a tensor, the slowest axis first as numpy has it, without axes of 1 in front."""
    tensor = Tensor.from_address(address)
    if tensor.type not in DTYPES:
        return None
    held = np.empty(base.ggml_nbytes(address), np.uint8)
    base.ggml_backend_tensor_get(address, held.ctypes.data, 0, held.nbytes)
    shape, strides = tuple(tensor.sizes)[::-1], tuple(tensor.strides)[::-1]
    array = np.ndarray(shape, DTYPES[tensor.type], held, strides=strides).copy()
    while array.ndim > 1 and array.shape[0] == 1:
        array = array[0]
    return array


def dump(model_path: str, tokens: list[int]) -> dict[str, np.ndarray]:
    """The tensors of one call over all tokens, from an empty state."""
    base, seen = ggml(), {}

    @lib.ggml_backend_sched_eval_callback  # type: ignore[untyped-decorator, unused-ignore]
    def see(address: int, ask: bool, data: object) -> bool:
        if not ask:
            name = base.ggml_get_name(address).decode()
            array = values(base, address)
            if array is not None and name not in seen:  # views may share a name: the first is kept
                seen[name] = array
        return True  # asked: yes, this one too; shown: go on

    options = lib.llama_model_default_params()
    options.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(model_path.encode(), options)
    if not model:
        sys.exit(f"{model_path}: llama.cpp does not load it")
    settings = lib.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = settings.n_outputs_max = max(32, len(tokens))  # one graph
    settings.cb_eval = see
    context = lib.llama_init_from_model(model, settings)
    batch = lib.llama_batch_init(len(tokens), 0, 1)
    for t, token in enumerate(tokens):
        batch.token[t], batch.pos[t], batch.n_seq_id[t], batch.seq_id[t][0] = token, t, 1, 0
        batch.logits[t] = 1  # of every token: else the last block drops the other rows
    batch.n_tokens = len(tokens)
    status = lib.llama_decode(context, batch)
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)
    if status:
        sys.exit(f"llama_decode gave {status}")
    return seen


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    shown = dump(sys.argv[1], [int(token) for token in sys.argv[2].split(",")])
    save_file(shown, sys.argv[3])
    print(f"{len(shown)} tensors → {sys.argv[3]}")
