"""The manifest of a folder of golden traces: which models, which files, and their hashes."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import whole
from ..traces import Trace, read

__all__ = ["GOLDEN", "MANIFEST", "GoldenSet", "GoldenTrace", "Manifest", "read_manifest", "sha256", "write_manifest"]

VERSION = 1
MANIFEST = "manifest.json"
GOLDEN = Path(__file__).parent  # the folder of gander's own golden traces


@dataclass(frozen=True)
class GoldenTrace:
    """One trace file.

    Logits are causal: the first n rows are those of the first n tokens, for every n.
    """

    file: str  # relative to the manifest, with /
    sha256: str
    bytes: int
    tokens: tuple[int, ...]
    start: str  # zero, or random:SEED
    dtype: str  # what it was computed in; it is stored as float32
    holds: tuple[str, ...]  # of taps (all but logits), logits, state
    prompt: int | None  # tokens from here on are the reference's own greedy continuation; None: all were given
    path: str = "prefill"  # how the tokens went in; or split:5+3
    attention: str = "dense"  # the policy of an RWKV-X's attention blocks


@dataclass(frozen=True)
class GoldenSet:
    """One model, and what the reference says of it."""

    folder: Path
    name: str
    source: str  # how `open_model` opens it
    fingerprint: str
    traces: tuple[GoldenTrace, ...]

    def path(self, trace: GoldenTrace) -> Path:
        """Where the trace is."""
        return self.folder / trace.file

    def run_as(self, attention: str) -> "GoldenSet | None":
        """Its traces of a run with that attention policy, if there are any."""
        traces = tuple(trace for trace in self.traces if trace.attention == attention)
        return replace(self, traces=traces) if traces else None

    def read(self, trace: GoldenTrace) -> Trace:
        """The trace, if its file is the one that the manifest means; InputError else."""
        path = self.path(trace)
        read_trace = read(path)
        if sha256(path) != trace.sha256:
            raise InputError(f"{path} is not the file that {MANIFEST} means: its sha256 is another")
        said = (read_trace.model, read_trace.tokens, read_trace.start, read_trace.path, read_trace.attention)
        if said != (self.fingerprint, trace.tokens, trace.start, trace.path, trace.attention):
            raise InputError(f"{path} and {MANIFEST} disagree on model, tokens, start, path or attention")
        return read_trace


@dataclass(frozen=True)
class Manifest:
    """A folder of golden traces."""

    folder: Path
    models: tuple[GoldenSet, ...]

    def find(self, fingerprint: str) -> GoldenSet | None:
        """What the folder has of the model of that fingerprint, if anything."""
        return next((model for model in self.models if model.fingerprint == fingerprint), None)


def read_manifest(folder: Path = GOLDEN) -> Manifest:
    """The manifest in `folder`; gander's own by default."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}",
            expected="a folder of golden traces",
            mend=f"gander golden make --model MODEL --tokens 1,2,3 --out {folder}",
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    version = content.get("version") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise InputError(f"{path} is no manifest of golden traces: it has no version")
    if version > VERSION:
        raise InputError(f"{path} was written by a newer gander (version {version}, this one reads {VERSION})")
    try:
        return Manifest(folder, tuple(_model(folder, model) for model in content["models"]))
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is no manifest of golden traces: {error!r}") from error


def write_manifest(folder: Path, models: Sequence[GoldenSet]) -> None:
    """Write the manifest of `models` into `folder`."""
    entries = [asdict(model) for model in models]
    for entry in entries:
        del entry["folder"]
    text = _readable({"version": VERSION, "models": entries}) + "\n"
    with whole(folder / MANIFEST) as partial:
        partial.write_text(text, encoding="utf-8")


def sha256(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _model(folder: Path, entry: dict[str, Any]) -> GoldenSet:
    traces = tuple(
        GoldenTrace(**{**trace, "tokens": tuple(trace["tokens"]), "holds": tuple(trace["holds"])})
        for trace in entry["traces"]
    )
    return GoldenSet(folder, **{**entry, "traces": traces})


def _readable(value: Any, indent: str = "") -> str:
    """JSON with lists of plain values on one line each."""
    inner = indent + "  "
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(key)}: {_readable(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"{inner}{_readable(item, inner)}" for item in value) + f"\n{indent}]"
    return json.dumps(value)
