"""From a path to a checkpoint: whatever the file's kind and naming scheme, official names and layouts come out."""

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import InputError
from .census import Finding, census
from .files import Stored, read_file
from .folder import CONFIG, check_settings, norm_eps, read_settings, read_weights
from .layout import infer
from .model import Checkpoint, Config
from .schemes import detect

__all__ = ["Reading", "load", "read"]

SHOWN = 12  # findings in one message: enough to see the pattern


@dataclass(frozen=True)
class Reading:
    """A checkpoint as far as it could be read, and what its census found."""

    checkpoint: Checkpoint
    findings: tuple[Finding, ...]

    @property
    def kind(self) -> str:
        """What the model is called."""
        return "RWKV-X" if self.checkpoint.config.attention_layers else "RWKV-7"

    @property
    def errors(self) -> list[Finding]:
        """The findings with which the checkpoint is not to be trusted."""
        return [finding for finding in self.findings if finding.is_error]


def load(path: str | PathLike[str]) -> Checkpoint:
    """The checkpoint at `path`: an official or RWKV-X .pth or .safetensors file, or a Hugging Face folder.

    Every tensor is there, once, of the right shape, finite and of a floating type, or all that is not so is listed in
    one `InputError`. Pickled code is refused unread.
    """
    reading = read(path)
    errors = reading.errors
    if errors:
        lines = [str(error) for error in errors[:SHOWN]]
        if len(errors) > SHOWN:
            lines.append(f"and {len(errors) - SHOWN} more")
        raise InputError(
            f"{path} is not a sound {reading.kind}:\n    " + "\n    ".join(lines),
            expected="every tensor once, in its shape, of finite float32, bfloat16 or float16 values",
            mend="export it again; `gander inspect` lists everything",
        )
    return reading.checkpoint


def read(path: str | PathLike[str]) -> Reading:
    """The checkpoint at `path`, sound or not, with its census. An `InputError` where no model can be made out."""
    path = Path(path)
    try:
        if not path.exists():
            raise InputError(f"no such file: {path}")
        settings = read_settings(path) if path.is_dir() else None
        stored = read_file(path) if settings is None else read_weights(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return _reading(path, stored, settings)
    except InputError as error:  # the tensors do not know where they come from
        raise InputError(f"{path}: {error.problem}", expected=error.expected, mend=error.mend) from error


def _reading(path: Path, stored: Stored, settings: dict[str, Any] | None) -> Reading:
    scheme = detect([name for name, _ in stored])
    if (scheme.name == "hf") != (settings is not None):
        raise InputError(
            f"the names are of the scheme {scheme.name!r}, but "
            + (f"there is no {CONFIG} to give norm_eps" if settings is None else f"{CONFIG} lies beside them"),
            expected="a folder for Hugging Face's names, a single file for official ones",
            mend="give the folder" if settings is None else "give the file",
        )
    entries = [entry for name, tensor in stored for entry in scheme.unpack(name, tensor)]
    tensors = {entry.name: entry.tensor for entry in entries if entry.name is not None}
    config = infer(tensors)
    notes = []
    if settings is None:
        notes.append(official_eps(config))
    else:
        check_settings(settings, config)
        eps = norm_eps(settings)
        config = replace(config, layer_norm_eps=eps, group_norm_eps=config.head_size * eps)
        notes.append(_hf_eps(config))
        if settings.get("fuse_norm"):
            notes.append("fuse_norm is true: fla then normalises kk with another epsilon; gander does not follow it")
    checkpoint = Checkpoint(config, dict(sorted(tensors.items())), scheme.name, str(path), tuple(notes))
    return Reading(checkpoint, tuple(census(entries, config, scheme)))


def official_eps(config: Config) -> str:
    note = "GroupNorm eps 64e-5 and LayerNorm eps 1e-5: what official files mean"
    if config.head_size == 64:
        return note
    return f"{note} (a Hugging Face folder would mean head_dim · 1e-5 = {config.head_size * 1e-5:g} for GroupNorm)"


def _hf_eps(config: Config) -> str:
    note = (
        f"GroupNorm eps {config.group_norm_eps:g} and LayerNorm eps {config.layer_norm_eps:g}: "
        f"head_dim · norm_eps and norm_eps, as {CONFIG} means them"
    )
    return note if config.group_norm_eps == 64e-5 else f"{note} (official files mean 64e-5 and 1e-5)"
