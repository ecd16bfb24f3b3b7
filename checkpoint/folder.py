"""A Hugging Face folder: config.json, and weights in one file or in shards."""

import json
from pathlib import Path
from typing import Any

from ..errors import InputError
from .files import Stored, read_file
from .model import Config

__all__ = ["CONFIG", "INDEX", "WEIGHTS", "check_settings", "norm_eps", "read_settings", "read_weights"]

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

# config.json's fields, and the sizes they repeat. Its head count is left out: fla's converter leaves a stale one,
# nobody reads it where head_dim is given.
FIELDS = {
    "hidden_size": "width",
    "attention_hidden_size": "width",
    "num_hidden_layers": "layers",
    "head_dim": "head_size",
    "intermediate_size": "ffn",
    "vocab_size": "vocab",
    "decay_low_rank_dim": "rank_w",
    "a_low_rank_dim": "rank_a",
    "v_low_rank_dim": "rank_v",
    "gate_low_rank_dim": "rank_g",
}


def read_settings(folder: Path) -> dict[str, Any]:
    """What config.json says."""
    if not (folder / CONFIG).is_file():
        weights = sorted(path.name for path in folder.iterdir() if path.suffix in (".pth", ".safetensors"))
        raise InputError(
            f"{folder} is no Hugging Face folder: it has no {CONFIG}",
            expected=f"a folder with {CONFIG} and {WEIGHTS}, or a file",
            mend=f"give a file in it: {', '.join(weights[:4])}" if weights else "",
        )
    return _read_json(folder / CONFIG)


def read_weights(folder: Path) -> Stored:
    """The tensors of all of a folder's weight files."""
    if (folder / WEIGHTS).exists():  # first, as in transformers
        return read_file(folder / WEIGHTS)
    if not (folder / INDEX).is_file():
        raise InputError(f"{folder} has no weights", expected=f"{WEIGHTS}, or {INDEX} and its shards")
    where = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise InputError(f"{folder / INDEX} has no weight_map", expected="a shard's name for each tensor")
    shards = sorted(set(where.values()))
    absent = [shard for shard in shards if not (folder / shard).is_file()]
    if absent:
        raise InputError(
            f"{folder} lacks {len(absent)} of its {len(shards)} shards: {', '.join(absent)}",
            expected=f"every file that {INDEX} names",
            mend="fetch the missing ones",
        )
    return [stored for shard in shards for stored in read_file(folder / shard)]


def norm_eps(settings: dict[str, Any]) -> float:
    """The epsilon of LayerNorm; fla's default where config.json gives none."""
    eps = settings.get("norm_eps", 1e-5)
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise InputError(f"{CONFIG}: norm_eps is {eps!r}", expected="a small positive number, as 1e-5")
    return eps


def check_settings(settings: dict[str, Any], config: Config) -> None:
    """Raise where config.json and the tensors tell two different models."""
    contradictions = [
        f"{field} is {settings[field]!r}, the tensors say {getattr(config, size)}"
        for field, size in FIELDS.items()
        if settings.get(field) is not None
        and settings[field] != getattr(config, size)
        and getattr(config, size) != 0  # no tensor tells it
    ]
    if contradictions:
        raise InputError(
            f"{CONFIG} contradicts the tensors: {'; '.join(contradictions)}",
            expected="one model",
            mend=f"fetch {CONFIG} and the weights from the same place",
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}", expected="a JSON object") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}", expected="a JSON object")
    return content
