"""Dumps of foreign tools: tensors under names of their own, in safetensors or .npz, and the trace that a map makes."""

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from ..errors import InputError
from .attention import parse_attention
from .file import REQUIRED, SCHEMA, STORED, Broken, Trace, array_of, check_keys, check_run, contents
from .maps import Map, Rule, laid_out
from .taps import Tensor, named

__all__ = ["Converted", "Dump", "canonical", "convert", "is_dump", "known_of", "read_dump", "said_of", "sizes"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Dump:
    """What a tool showed, under its own names."""

    path: Path
    tensors: dict[str, Array]  # of floats; 16 bits are widened
    others: dict[str, str]  # what holds no floats, and what it holds
    run: Mapping[str, str]  # as far as the file says it
    bits: str = "float32"  # what the engine computed in, as far as storage tells


@dataclass(frozen=True)
class Converted:
    """A dump as a trace, and what became of its names."""

    trace: Trace
    names: Mapping[str, str]  # of each tap, the tensor that it was
    unmatched: Mapping[str, str]  # tensors that no rule is for, and why
    idle: tuple[Rule, ...] = field(default=())  # rules that no tensor is for


def is_dump(path: str | os.PathLike[str]) -> bool:
    """Whether a file needs a map: an .npz, or safetensors that says nothing of its run, or with names of its own."""
    path = Path(path)
    if zipfile.is_zipfile(path):
        return True
    try:
        with safe_open(path, "numpy") as file:
            schema, names = (file.metadata() or {}).get("gander.schema"), list(file.keys())
    except (OSError, SafetensorError):
        return False  # reading it as a trace says what is wrong
    return schema is None or (schema == str(SCHEMA) and not all(map(canonical, names)))


def read_dump(path: str | os.PathLike[str]) -> Dump:
    """The tensors in a safetensors file or an .npz."""
    path = Path(path)
    if zipfile.is_zipfile(path):
        return _read_npz(path)
    try:
        metadata, stored, data = contents(path)
    except Broken as broken:
        raise InputError(f"{path} cannot be read: {broken}") from broken
    floats = {name: array_of(entry, data) for name, entry in stored.items() if entry.dtype in STORED}
    others = {name: f"holds {entry.dtype}" for name, entry in stored.items() if entry.dtype not in STORED}
    run = {key.removeprefix("gander."): value for key, value in metadata.items() if key.startswith("gander.")}
    run.pop("schema", None)
    return Dump(path, floats, others, run, _bits({entry.dtype for entry in stored.values()}))


def _read_npz(path: Path) -> Dump:
    floats: dict[str, Array] = {}
    others: dict[str, str] = {}
    kinds = set()
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                array = archive[name]
                if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
                    others[name] = f"holds {array.dtype if isinstance(array, np.ndarray) else 'no array'}"
                    continue
                kinds.add({2: "F16", 4: "F32"}.get(array.dtype.itemsize, "F64"))
                floats[name] = array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        if "pickle" in str(error):
            raise InputError(
                f"{path} holds pickled objects, which are not read", expected="arrays of floats"
            ) from error
        raise InputError(f"{path} is no .npz that can be read: {error}") from error
    return Dump(path, floats, others, {}, _bits(kinds))


def _bits(kinds: set[str]) -> str:
    """What is stored in 16 bits was computed in no more. Else float32: many a tool keeps its floats in 64."""
    return "bfloat16" if "BF16" in kinds else "float16" if "F16" in kinds else "float32"


def canonical(name: str) -> bool:
    """Whether a tap or state bears this name."""
    try:
        named(name)
    except InputError:
        return False
    return True


def sizes(tensors: Mapping[str, Array]) -> dict[str, int]:
    """The sizes that a trace's tensors tell, by the letters of the tap list."""
    found: dict[str, int] = {}
    for name, array in tensors.items():
        for letter, size in zip(named(name).axes, array.shape, strict=True):
            found.setdefault(letter, size)
    return found


def said_of(dump: Dump, map_: Map, defaults: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """What is known of a dump's run. InputError if something that a trace must say is not."""
    said = {**defaults, **dump.run, **map_.run, **options}
    for key in REQUIRED:
        if not said.get(key):
            what = f"nothing tells the {key} of {dump.path}"
            raise InputError(what, mend=f"say it in the map, in a table [run], or with --{key}")
    return said


def known_of(trace: Trace) -> dict[str, str]:
    """What a trace says of its run that is so of any other run that may be compared with it."""
    return {
        "model": trace.model,
        "tokens": json.dumps(list(trace.tokens)),
        "path": trace.path,
        "start": trace.start,
        "attention": trace.attention,
        "quantized": trace.quantized,
    }


def convert(
    dump: Dump,
    map_: Map,
    dims: Mapping[str, int],
    *,
    defaults: Mapping[str, str],
    options: Mapping[str, str] | None = None,
) -> Converted:
    """The trace that a map makes of a dump. `defaults` are for what neither of them says of the run; `options` have
    the last word."""
    said = said_of(dump, map_, defaults, options or {})
    metadata = {"gander.schema": str(SCHEMA), **{f"gander.{key}": value for key, value in said.items()}}
    try:
        check_keys(metadata)
        tokens = check_run(metadata)
    except Broken as broken:
        raise InputError(f"what is said of {dump.path}: {broken}") from broken
    dims = {**dims, "T": len(tokens)}
    names: dict[str, str] = {}
    tensors: dict[str, Array] = {}
    unmatched = dict(dump.others)
    for name, array in dump.tensors.items():
        rule = map_.rule(name)
        if rule is None and not canonical(name):
            unmatched[name] = "no rule is for it"
            continue
        made = _as_it_is(dump, name, array, dims) if rule is None else rule.canonical(name, array, dims)
        for tap, value in made.items():
            if tap in names:
                raise InputError(f"{dump.path}: {names[tap]!r} and {name!r} are both mapped to {tap}")
            names[tap], tensors[tap] = name, value
    if not tensors:
        first = ", ".join(sorted(dump.tensors)[:4]) or "none that hold floats"
        raise InputError(f"the map has a rule for no tensor of {dump.path}", expected=f"names like its own: {first}")
    idle = tuple(rule for rule in map_.rules if not any(rule.taps_of(name) for name in dump.tensors))
    trace = Trace(
        model=said["model"],
        tokens=tokens,
        engine=said["engine"],
        dtype=said["dtype"],
        path=said["path"],
        start=said.get("start", "zero"),
        tensors=tensors,
        attention=str(parse_attention(said.get("attention", "dense"))),
        quantized=said.get("quantized", "none"),
    )
    return Converted(trace, names, unmatched, idle)


def _as_it_is(dump: Dump, name: str, array: Array, dims: Mapping[str, int]) -> dict[str, Array]:
    """A tensor that bears its canonical name."""
    tap: Tensor = named(name)
    known = {**{axis: size for axis, size in zip(tap.axes, array.shape, strict=False) if axis == "M"}, **dims}
    return {name: laid_out(f"{dump.path}: {name!r}", array, tap, "", False, known)[0]}
