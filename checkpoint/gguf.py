"""Writing an RWKV-7 as a GGUF file, which llama.cpp runs: all of it or nothing."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import InputError, nearest, needs
from ..files import whole
from .convert import check_place
from .layout import shapes
from .model import Checkpoint, Config
from .schemes import HF

__all__ = ["GGUF_DTYPES", "write_gguf"]

Array = npt.NDArray[Any]

GGUF_DTYPES = ("f32", "f16", "q8_0")

CONTEXT_LENGTH = 1048576  # an RWKV has no limit, the format wants one
GROUP_NORM_EPS = 64e-5  # llama.cpp's own: no key tells it another
BLOCK = 32  # q8_0 gives this many numbers of a row one scale
END_OF_TEXT = (
    "<|rwkv_tokenizer_end_of_text|>"  # the id 0; not `<s>`, which is a tag of HTML: llama.cpp cuts it from text
)

_TOP = {
    "emb.weight": "token_embd.weight",
    "blocks.0.ln0.weight": "token_embd_norm.weight",
    "blocks.0.ln0.bias": "token_embd_norm.bias",
    "ln_out.weight": "output_norm.weight",
    "ln_out.bias": "output_norm.bias",
    "head.weight": "output.weight",
}
_SHIFTS = tuple(f"att.x_{c}" for c in "rwkvag")  # the rows of one tensor, in this order
_FUSED = "time_mix_lerp_fused"
_PARTS = {
    **{f"ln1.{kind}": f"attn_norm.{kind}" for kind in ("weight", "bias")},
    **{f"ln2.{kind}": f"attn_norm_2.{kind}" for kind in ("weight", "bias")},
    **{f"att.ln_x.{kind}": f"time_mix_ln.{kind}" for kind in ("weight", "bias")},
    **{f"att.{letter}{i}": f"time_mix_{letter}{i}.weight" for letter in "wavg" for i in range(3)},
    **{f"att.{name}": f"time_mix_{name}.weight" for name in ("k_k", "k_a", "r_k")},
    **{f"att.{name}.weight": f"time_mix_{name}.weight" for name in ("receptance", "key", "value", "output")},
    "ffn.x_k": "channel_mix_lerp_k.weight",
    **{f"ffn.{name}.weight": f"channel_mix_{name}.weight" for name in ("key", "value")},
}
# What may be kept in fewer bits: the large matrices. LoRA pairs are small and what they feed is not.
_LARGE = {
    *("emb.weight", "head.weight", "ffn.key.weight", "ffn.value.weight"),
    *(f"att.{name}.weight" for name in ("receptance", "key", "value", "output")),
}


def write_gguf(
    checkpoint: Checkpoint,
    path: str | os.PathLike[str],
    *,
    dtype: str = "f32",
    tokens: Mapping[int, bytes] | None = None,
    overwrite: bool = False,
    allow_change: bool = False,
) -> tuple[str, ...]:
    """Write `checkpoint` to `path` as llama.cpp's architecture rwkv7; what a reader should know of it is returned.

    `dtype`, one of GGUF_DTYPES, is that of the large matrices; all else is float32. `tokens`, ids 1 to n, are what the
    ids stand for; an id without one gets a placeholder. An InputError: an RWKV-X, a number that the dtype cannot hold,
    and, without `allow_change`, a GroupNorm eps that llama.cpp does not have.
    """
    package = _package()
    path, config, tokens = Path(path), checkpoint.config, tokens or {}
    if dtype not in GGUF_DTYPES:
        raise InputError(f"no GGUF dtype {dtype!r}", expected=nearest(dtype, GGUF_DTYPES))
    if config.attention_layers:
        raise InputError(
            f"gguf cannot hold this model: its {config.attention_layers} attention blocks would be lost",
            expected="an RWKV-7: llama.cpp has no RWKV-X",
        )
    notes = _changes(config)
    if notes and not allow_change:
        raise InputError(
            f"gguf cannot hold this model: {notes[0]}",
            expected="a GroupNorm eps of 64e-5, which llama.cpp always takes",
            mend="allow the change (--allow-change) where you want another model",
        )
    if path.suffix != ".gguf":
        raise InputError(f"{path} is of no known kind", expected="a file ending in .gguf")
    check_place(path, overwrite)
    spelled = _spelled(tokens, config.vocab)
    names = list(_tensors(checkpoint, dtype, notes))
    try:
        with whole(path) as partial:
            writer = package.GGUFWriter(partial, "rwkv7")
            _add_settings(package, writer, config, dtype)
            _add_vocabulary(package, writer, spelled, len(tokens))
            _write(package, writer, checkpoint, names)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    return tuple(notes)


def _package() -> ModuleType:
    with needs("a GGUF file", "gguf"):
        import gguf
    module: ModuleType = gguf
    return module


def _changes(config: Config) -> list[str]:
    """In what the model would not be the same."""
    if math.isclose(config.group_norm_eps, GROUP_NORM_EPS):
        return []
    return [f"GroupNorm eps {config.group_norm_eps:g} becomes {GROUP_NORM_EPS:g}"]


def _spelled(tokens: Mapping[int, bytes], rows: int) -> list[str]:
    """What each id stands for, no two alike: llama.cpp stops at two that are."""
    if len(tokens) >= rows:
        raise InputError(
            f"the vocabulary has {len(tokens)} tokens, the model {rows} rows, one of them for the end of text",
            expected="the vocabulary that the model was trained with",
        )
    known = {id: _escaped(token) for id, token in tokens.items()}
    taken = set(known.values())
    spelled = []
    for id in range(rows):
        text = known.get(id) or (END_OF_TEXT if id == 0 else f"[PAD{id}]")
        while id not in known and text in taken:
            text = f"[{text}]"
        spelled.append(text)
    return spelled


def _escaped(token: bytes) -> str:
    """Bytes as llama.cpp reads them back for this architecture: \\t, \\n, \\r, \\\\ and \\xhh."""
    special = {ord("\t"): r"\t", ord("\n"): r"\n", ord("\r"): r"\r", ord("\\"): r"\\"}
    return "".join(special.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in token)


def _tensors(checkpoint: Checkpoint, dtype: str, notes: list[str]) -> Iterator[tuple[str, str, str]]:
    """Of each tensor of the file: its name there, the official one of what it holds, and its dtype."""
    config = checkpoint.config
    short = []
    for name, shape in shapes(config).items():
        part, block = _part(name)
        kind = dtype if part in _LARGE else "f32"
        if kind == "q8_0" and shape[-1] % BLOCK:
            kind = "f16"
            short.append(name)
        if part in _SHIFTS:
            if part == _SHIFTS[0]:
                yield f"blk.{block}.{_FUSED}.weight", name, kind
            continue
        yield _TOP.get(name) or f"blk.{block}.{_PARTS[part]}", name, kind
        if block == "0" and part in ("att.a0", "att.a1", "att.a2"):
            # Block 0 has no value residual. llama.cpp wants its tensors all the same, of the sizes of these, unused.
            yield f"blk.0.{_PARTS[part.replace('.a', '.v')]}", name, kind
    if short:
        notes.append(f"{len(short)} matrices are f16, their rows being no multiple of {BLOCK}: {short[0]} and the like")


def _part(name: str) -> tuple[str, str]:
    """`blocks.2.att.w1` → `att.w1` and `2`; what is in no block as it is."""
    if not name.startswith("blocks."):
        return name, ""
    _, block, part = name.split(".", 2)
    return part, block


def _packed(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """An official tensor laid out as llama.cpp wants it."""
    part, block = _part(name)
    if part in _SHIFTS:
        rows = [checkpoint.tensors[f"blocks.{block}.{shift}"].reshape(1, 1, -1) for shift in _SHIFTS]
        return torch.stack(rows)  # (6, 1, 1, D)
    tensor = HF.pack(name, checkpoint.tensors[name])  # LoRA pairs [out, in], vectors flat: so far the same
    return tensor.reshape(-1) if part == "att.r_k" else tensor


def _stored(package: ModuleType, name: str, tensor: torch.Tensor, kind: str) -> Array:
    """Its values in a dtype of the file: numbers, or the bytes of q8_0."""
    value: Array = np.ascontiguousarray(tensor.to(torch.float32).numpy())
    if kind == "f32":
        return value
    if np.abs(value).max(initial=0) > float(np.finfo(np.float16).max) * (127 if kind == "q8_0" else 1):
        raise InputError(f"{name} holds {np.abs(value).max():g}, more than {kind} can", mend="--dtype f32")
    stored: Array = value.astype(np.float16) if kind == "f16" else package.quants.quantize(value, _type(package, kind))
    return stored


def _type(package: ModuleType, kind: str) -> Any:
    return package.GGMLQuantizationType[kind.upper()]


def _add_settings(package: ModuleType, writer: Any, config: Config, dtype: str) -> None:
    """Every key that llama.cpp reads of this architecture."""
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(0)  # wanted, unused: the size of heads tells their number
    writer.add_wkv_head_size(config.head_size)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_decay_lora_rank(config.rank_w)
    writer.add_iclr_lora_rank(config.rank_a)
    writer.add_value_residual_mix_lora_rank(config.rank_v)
    writer.add_gate_lora_rank(config.rank_g)
    kinds = package.LlamaFileType
    writer.add_file_type({"f32": kinds.ALL_F32, "f16": kinds.MOSTLY_F16, "q8_0": kinds.MOSTLY_Q8_0}[dtype])


def _add_vocabulary(package: ModuleType, writer: Any, spelled: list[str], known: int) -> None:
    """Of the id 0, of the `known` tokens behind it, and of the rest."""
    kinds = package.TokenType
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list(spelled)
    writer.add_token_types([kinds.CONTROL] + [kinds.NORMAL] * known + [kinds.UNUSED] * (len(spelled) - known - 1))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def _write(package: ModuleType, writer: Any, checkpoint: Checkpoint, names: list[tuple[str, str, str]]) -> None:
    """Sizes first, then the numbers, tensor by tensor: a large model is never in memory twice."""
    items: dict[str, np.dtype[Any]] = {
        "f32": np.dtype(np.float32),
        "f16": np.dtype(np.float16),
        "q8_0": np.dtype(np.uint8),  # bytes
    }
    try:
        for stored, name, kind in names:
            shape = _packed(checkpoint, name).shape
            if kind == "q8_0":
                shape = package.quant_shape_to_byte_shape(shape, _type(package, kind))
            size = math.prod(shape) * items[kind].itemsize
            writer.add_tensor_info(stored, shape, items[kind], size, _type(package, kind))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, name, kind in names:
            writer.write_tensor_data(_stored(package, name, _packed(checkpoint, name), kind))
    finally:
        writer.close()
