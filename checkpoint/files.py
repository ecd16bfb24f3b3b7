"""One file's tensors, under the names they bear there. Nothing in a file is ever executed."""

import pickle
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ..errors import InputError

__all__ = ["Stored", "read_file"]

Stored = list[tuple[str, torch.Tensor]]  # a list: a name may come twice, from two shards

TORCH, LEGACY_TORCH, SAFETENSORS = "a PyTorch file", "a PyTorch file of the old kind", "a safetensors file"
_MAGIC = (
    (b"PK\x03\x04", TORCH),
    (b"\x80", LEGACY_TORCH),
    (b"GGUF", "a GGUF file"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
)
_SUFFIXES = {".pth": TORCH, ".pt": TORCH, ".bin": TORCH, ".safetensors": SAFETENSORS}


def read_file(path: Path) -> Stored:
    """The tensors of a .pth or .safetensors file, mapped into memory where its format allows."""
    wanted = _SUFFIXES.get(path.suffix)
    if wanted is None:
        raise InputError(f"{path} is of no known kind", expected=f"a file ending in {', '.join(_SUFFIXES)}")
    kind = _kind(path)
    if kind == SAFETENSORS == wanted:
        return _safetensors(path)
    if kind in (TORCH, LEGACY_TORCH) and wanted == TORCH:
        return _torch(path, mmap=kind == TORCH)
    mend = "name it by its content" if kind in (TORCH, LEGACY_TORCH, SAFETENSORS) else "fetch or export it again"
    raise InputError(f"{path} is {kind}", expected=f"{wanted}, as its name says", mend=mend)


def _kind(path: Path) -> str:
    """What a file is by its first bytes, whatever its name."""
    with path.open("rb") as file:
        head = file.read(32)
    if not head:
        return "empty"
    if head[8:9] == b"{":  # after the header's length
        return SAFETENSORS
    return next((kind for magic, kind in _MAGIC if head.startswith(magic)), "neither PyTorch's nor safetensors")


def _safetensors(path: Path) -> Stored:
    try:
        return list(load_file(path).items())
    except SafetensorError as error:
        raise InputError(f"{path} is damaged: {error}", mend="fetch or export it again") from error


def _torch(path: Path, *, mmap: bool) -> Stored:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        if code is None:
            raise InputError(f"{path} is damaged: {error}", mend="fetch or export it again") from error
        raise InputError(
            f"{path} holds pickled code, which was not run: {code[1]}",
            expected="a file of tensors only",
            mend="where you trust it, load it and save model.state_dict(), best as safetensors",
        ) from error
    except Exception as error:  # bytes that are no pickle fail in any way at all
        raise InputError(
            f"{path} is damaged: {error or type(error).__name__}", mend="fetch or export it again"
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}", expected="a dictionary of tensors")
    strangers = [str(name) for name, value in content.items() if not _is_plain(value)]
    if strangers:
        raise InputError(
            f"{path} holds more than tensors: {', '.join(strangers[:4])}",
            expected="a dictionary of tensors by name",
            mend="save the model's state_dict() alone",
        )
    return [(str(name), tensor.detach()) for name, tensor in content.items()]


def _is_plain(value: object) -> bool:
    """A tensor of numbers in memory: not sparse, not without data."""
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta
