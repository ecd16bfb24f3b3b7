"""Writing a checkpoint in another naming scheme, all of it or nothing."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from ..errors import InputError, nearest
from .census import DTYPES
from .folder import CONFIG, WEIGHTS
from .model import LAYER_0_UNUSED, Checkpoint, Config
from .schemes import SCHEMES, Scheme

__all__ = ["check_place", "write"]


def write(
    checkpoint: Checkpoint,
    path: str | os.PathLike[str],
    scheme: str,
    *,
    overwrite: bool = False,
    allow_change: bool = False,
) -> tuple[str, ...]:
    """Write `checkpoint` to `path` under the names of `scheme`; what a reader should know of it is returned.

    `official` and `rwkvx` make a .pth or .safetensors file, `hf` a folder. Values and dtypes are kept bit for bit.
    Layer 0's unused v0, v1 and v2 have no place in a Hugging Face folder and are left out there. Where the scheme
    cannot say the epsilons, the model would change: an `InputError`, or with `allow_change` a note. Attention blocks
    have a place in `rwkvx` only, under the names of the released models: an `InputError` for the others.
    """
    path = Path(path)
    if scheme not in SCHEMES:
        raise InputError(f"no naming scheme {scheme!r}", mend=nearest(scheme, SCHEMES))
    if checkpoint.config.attention_layers and not SCHEMES[scheme].holds_attention:
        raise InputError(
            f"{scheme} cannot hold this model: its {checkpoint.config.attention_layers} attention blocks would be lost",
            expected="rwkvx, the only scheme with names for them",
            mend="convert it to that (--to rwkvx)",
        )
    config, notes = _expressible(checkpoint.config, scheme)
    if notes and not allow_change:
        raise InputError(
            f"{scheme} cannot hold this model: {notes[0]}",
            expected="epsilons of 1e-5 and 64e-5 (official, rwkvx), or in the ratio 1 : head size (hf)",
            mend="allow the change (--allow-change) where you want another model",
        )
    tensors = checkpoint.tensors
    dropped = LAYER_0_UNUSED & tensors.keys() if scheme == "hf" else frozenset()
    if dropped:
        notes.append(f"{', '.join(sorted(dropped))} left out: the model does not use them, hf has no place for them")
    _check_target(path, scheme, overwrite)
    packed = _packed({name: tensor for name, tensor in tensors.items() if name not in dropped}, SCHEMES[scheme])

    def make(target: Path) -> None:
        if scheme == "hf":
            target.mkdir()
            save_file(packed, target / WEIGHTS, metadata={"format": "pt"})  # transformers insists on it
            (target / CONFIG).write_text(json.dumps(_settings(config, packed), indent=2) + "\n", encoding="utf-8")
        elif target.suffix == ".pth":
            torch.save(packed, target)
        else:
            save_file(packed, target)

    _replace(path, make)
    return tuple(notes)


def _expressible(config: Config, scheme: str) -> tuple[Config, list[str]]:
    """The model as `scheme` can tell it, and in which epsilon that differs."""
    layer_norm = config.layer_norm_eps if scheme == "hf" else 1e-5
    group_norm = config.head_size * layer_norm if scheme == "hf" else 64e-5
    changed = [
        f"{norm} eps {before:g} becomes {after:g}"
        for norm, before, after in (
            ("LayerNorm", config.layer_norm_eps, layer_norm),
            ("GroupNorm", config.group_norm_eps, group_norm),
        )
        if not math.isclose(before, after)
    ]
    notes = [" and ".join(changed)] if changed else []
    return replace(config, layer_norm_eps=layer_norm, group_norm_eps=group_norm), notes


def _check_target(path: Path, scheme: str, overwrite: bool) -> None:
    if scheme == "hf" and path.suffix in (".pth", ".safetensors"):
        raise InputError(f"{path} names a file", expected="a folder for the scheme 'hf'")
    if scheme != "hf" and path.suffix not in (".pth", ".safetensors"):
        raise InputError(f"{path} is of no known kind", expected="a file ending in .pth or .safetensors")
    check_place(path, overwrite)
    others = sorted({file.name for file in path.iterdir()} - {CONFIG, WEIGHTS}) if path.is_dir() else []
    if others:
        raise InputError(f"{path} holds other files: {', '.join(others[:4])}", mend="name another target")


def check_place(path: Path, overwrite: bool) -> None:
    """An InputError where nothing can be put at `path`, or where something is that may not be replaced."""
    if not path.parent.is_dir():
        raise InputError(f"no such folder: {path.parent}")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists", mend="name another target, or allow it to be replaced (--force)")


def _packed(tensors: dict[str, torch.Tensor], scheme: Scheme) -> dict[str, torch.Tensor]:
    """Under the scheme's names and layouts, each in memory of its own: safetensors refuses what is shared, and
    torch.save would write all of a storage for a tensor that is a part of it."""
    seen: set[int] = set()
    packed = {}
    for name, tensor in tensors.items():
        tensor = scheme.pack(name, tensor).contiguous()
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes or storage.data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(storage.data_ptr())
        packed[scheme.stored(name)] = tensor
    return packed


def _settings(config: Config, tensors: dict[str, torch.Tensor]) -> dict[str, object]:
    """config.json as fla's and rwkv7-hf's RWKV7Config read it."""
    dtypes = {DTYPES[tensor.dtype] for tensor in tensors.values()}
    return {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "hidden_size": config.width,
        "hidden_ratio": config.ffn / config.width,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "head_dim": config.head_size,
        "num_heads": config.heads,
        "value_dim": [config.width] * config.layers,
        "decay_low_rank_dim": config.rank_w,
        "a_low_rank_dim": config.rank_a,
        "v_low_rank_dim": config.rank_v,
        "gate_low_rank_dim": config.rank_g,
        "hidden_act": "sqrelu",
        "norm_first": True,
        "norm_bias": True,
        "norm_eps": config.layer_norm_eps,
        "fuse_norm": False,  # true would change kk's epsilon
        "vocab_size": config.vocab,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "torch_dtype": dtypes.pop() if len(dtypes) == 1 else "float32",
    }


def _replace(path: Path, make: Callable[[Path], None]) -> None:
    """Put what `make` makes at `path`: beside it first, so that a failure leaves what was there."""
    try:
        with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
            new = Path(beside, path.name)
            make(new)
            _readable(new)
            old = Path(beside, "old")
            try:
                if path.is_dir():  # a folder cannot be replaced in one step
                    path.rename(old)
                new.replace(path)
            except BaseException:  # an interrupt between the two steps, above all
                if old.exists() and not path.exists():
                    old.rename(path)
                raise
    except (OSError, RuntimeError, SafetensorError) as error:  # a full disk is any of them
        raise InputError(f"{path} cannot be written: {error}") from error


def _readable(path: Path) -> None:
    """Give files the permissions that any new file has: safetensors keeps its files from everyone else."""
    umask = os.umask(0)
    os.umask(umask)
    for file in path.iterdir() if path.is_dir() else [path]:
        file.chmod(0o666 & ~umask)
