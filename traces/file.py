"""The trace file: what one run of one engine showed. `FORMAT.md` has the rules, which are checked here."""

import json
import os
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from ..errors import InputError, nearest
from ..files import output
from .attention import parse_attention
from .taps import Tensor, named

__all__ = ["SCHEMA", "Trace", "read", "write"]

SCHEMA = 1
REQUIRED = ("model", "tokens", "engine", "dtype", "path")
KEYS = tuple(f"gander.{key}" for key in ("schema", *REQUIRED, "start", "attention", "quantized"))
QUANTIZED = ("none", "int8")
COMPUTED = ("float64", "float32", "bfloat16", "float16")
STORED: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class Trace:
    """One run of one engine: the tensors it showed, by canonical name, and the state after the last token.

    Tensors read from float16 and bfloat16 files are float32.
    """

    model: str  # the checkpoint's fingerprint
    tokens: tuple[int, ...]
    engine: str
    dtype: str  # what the engine computed in
    path: str  # prefill, step, or split:5+3
    start: str  # zero, or random:SEED
    tensors: dict[str, npt.NDArray[np.floating[Any]]]
    attention: str = "dense"  # the policy of an RWKV-X's attention blocks, with all its parameters
    quantized: str = "none"  # or int8


class Broken(Exception):
    """A rule of FORMAT.md, and how a file breaks it."""

    def __init__(self, rule: str, problem: str) -> None:
        super().__init__(f"{problem} (FORMAT.md, {rule})")


@dataclass(frozen=True)
class _Stored:
    """A tensor as the file describes it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read(path: str | os.PathLike[str]) -> Trace:
    """The trace in `path`. InputError names the rule of FORMAT.md that it breaks."""
    path = Path(path)
    try:
        metadata, stored, data = contents(path)
        tokens = _checked(metadata, stored)
    except Broken as broken:
        raise InputError(f"{path} is no trace that can be read: {broken}") from broken
    return Trace(
        model=metadata["gander.model"],
        tokens=tokens,
        engine=metadata["gander.engine"],
        dtype=metadata["gander.dtype"],
        path=metadata["gander.path"],
        start=metadata.get("gander.start", "zero"),
        attention=str(parse_attention(metadata.get("gander.attention", "dense"))),
        quantized=metadata.get("gander.quantized", "none"),
        tensors={name: array_of(entry, data) for name, entry in stored.items()},
    )


def write(path: str | os.PathLike[str], trace: Trace) -> None:
    """Write `trace` to `path`, which appears only when it is complete. InputError if it breaks a rule of FORMAT.md.

    The same trace gives the same bytes. (safetensors' own writer shuffles the metadata.)
    """
    path = Path(path)
    arrays = {name: np.ascontiguousarray(array) for name, array in trace.tensors.items()}
    codes = {dtype: code for code, dtype in STORED.items() if code != "BF16"}
    stored: dict[str, _Stored] = {}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        stored[name] = _Stored(codes.get(array.dtype, str(array.dtype)), array.shape, begin, end)
    metadata = {
        "gander.schema": str(SCHEMA),
        "gander.model": trace.model,
        "gander.tokens": json.dumps(list(trace.tokens)),
        "gander.engine": trace.engine,
        "gander.dtype": trace.dtype,
        "gander.path": trace.path,
        "gander.start": trace.start,
    }
    metadata |= {"gander.attention": trace.attention} if trace.attention != "dense" else {}
    metadata |= {"gander.quantized": trace.quantized} if trace.quantized != "none" else {}
    try:
        _checked(metadata, stored)
    except Broken as broken:
        raise InputError(f"this trace cannot be written to {path}: {broken}") from broken

    header: dict[str, object] = {"__metadata__": metadata}
    for name, entry in stored.items():
        header[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [entry.begin, entry.end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers start on a multiple of eight bytes
    with output(path) as partial, partial.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.tobytes())


def contents(path: Path) -> tuple[dict[str, str], dict[str, _Stored], memoryview]:
    """The file's metadata, its tensors as described, and their bytes."""
    try:
        with safe_open(path, "numpy") as file:  # refuses what is no safetensors file, or not all of one
            metadata = file.metadata() or {}
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise Broken("M1", f"it is not a complete safetensors file: {error}") from error
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(bytes(content[8 : 8 + length]))
    header.pop("__metadata__", None)
    stored = {
        name: _Stored(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"]) for name, entry in header.items()
    }
    return metadata, stored, content[8 + length :]


def array_of(stored: _Stored, data: memoryview) -> npt.NDArray[np.floating[Any]]:
    flat: npt.NDArray[Any] = np.frombuffer(data[stored.begin : stored.end], STORED[stored.dtype])
    if stored.dtype == "BF16":  # the upper half of a float32
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    elif stored.dtype == "F16":
        flat = flat.astype(np.float32)
    return flat.reshape(stored.shape)


def _checked(metadata: Mapping[str, str], stored: Mapping[str, _Stored]) -> tuple[int, ...]:
    """The trace's tokens, if it keeps every rule."""
    _check_schema(metadata)
    check_keys(metadata)
    tokens = check_run(metadata)
    _check_tensors(stored, tokens)
    return tokens


def _check_schema(metadata: Mapping[str, str]) -> None:
    schema = metadata.get("gander.schema")
    if schema is None:
        raise Broken("M2", "its metadata has no gander.schema")
    if not re.fullmatch(r"[1-9]\d{0,8}", schema):
        raise Broken("M2", f"gander.schema is {schema!r}, not a number")
    if int(schema) > SCHEMA:
        raise Broken(
            "M2", f"written by a newer gander (schema {schema}, this one reads {SCHEMA}); a newer gander can read it"
        )


def check_keys(metadata: Mapping[str, str]) -> None:
    for key in REQUIRED:
        if not metadata.get(f"gander.{key}"):
            raise Broken("M3", f"its metadata has no gander.{key}")
    for key in metadata:
        if key.startswith("gander.") and key not in KEYS:
            raise Broken("M3", f"no key of the metadata is called {key!r}: {nearest(key, KEYS)}")


def check_run(metadata: Mapping[str, str]) -> tuple[int, ...]:
    """Model, tokens, dtype, path, start, attention and quantisation."""
    model, dtype = metadata["gander.model"], metadata["gander.dtype"]
    if not re.fullmatch(r"[0-9a-f]{64}", model):
        raise Broken("M4", f"gander.model is {model!r}, not 64 lower-case hex digits")
    tokens = _tokens(metadata["gander.tokens"])
    if dtype not in COMPUTED:
        raise Broken("M6", f"gander.dtype is {dtype!r}: {nearest(dtype, COMPUTED)}")
    path = metadata["gander.path"]
    split = re.fullmatch(r"split:([1-9]\d*(?:\+[1-9]\d*)+)", path)
    if path not in ("prefill", "step") and not split:
        raise Broken("M7", f"gander.path is {path!r}, not prefill, step, or like split:5+3")
    if split and sum(map(int, split[1].split("+"))) != len(tokens):
        raise Broken("M7", f"gander.path {path!r} does not add up to the {len(tokens)} tokens")
    start = metadata.get("gander.start", "zero")
    if start != "zero" and not re.fullmatch(r"random:\d{1,19}", start):
        raise Broken("M8", f"gander.start is {start!r}, not zero, or like random:7")
    try:
        parse_attention(metadata.get("gander.attention", "dense"))
    except InputError as error:
        raise Broken("M14", f"gander.attention: {error.problem}") from error
    quantized = metadata.get("gander.quantized", "none")
    if quantized not in QUANTIZED:
        raise Broken("M15", f"gander.quantized is {quantized!r}: {nearest(quantized, QUANTIZED)}")
    return tokens


def _tokens(text: str) -> tuple[int, ...]:
    try:
        tokens = json.loads(text)
    except ValueError as error:
        raise Broken("M5", f"gander.tokens is not JSON: {error}") from error
    if not isinstance(tokens, list) or not tokens:
        raise Broken("M5", "gander.tokens is not a list of at least one token")
    for position, token in enumerate(tokens):
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise Broken("M5", f"token {position} of gander.tokens is {token!r}, not a whole number from 0 up")
    return tuple(tokens)


def _check_tensors(stored: Mapping[str, _Stored], tokens: tuple[int, ...]) -> None:
    if not stored:
        raise Broken("M9", "it holds no tensor")
    found: dict[str, tuple[int, str]] = {}  # a letter's size, and the tensor that showed it
    for tensor in _known(stored):
        dtype, shape = stored[tensor.name].dtype, stored[tensor.name].shape
        if dtype not in STORED:
            raise Broken("M10", f"{tensor.name} is stored as {dtype}: {nearest(dtype, STORED)}")
        if len(shape) != len(tensor.axes):
            raise Broken("M11", f"{tensor.name} has shape {shape}, expected ({', '.join(tensor.axes)})")
        for letter, size in zip(tensor.axes, shape, strict=True):
            if letter == "T" and size != len(tokens):
                raise Broken("M11", f"{tensor.name} has {size} rows for {len(tokens)} tokens")
            known, where = found.setdefault(letter, (size, tensor.name))
            if size != known:
                raise Broken("M12", f"{letter} is {known} in {where}, but {size} in {tensor.name}")
    if {"D", "H", "N"} <= found.keys():
        (width, where), (heads, _), (size, other) = found["D"], found["H"], found["N"]
        if width != heads * size:
            raise Broken("M12", f"D is {width} in {where}, but H·N is {heads} · {size} in {other}")
    for position, token in enumerate(tokens):
        if "V" in found and token >= found["V"][0]:
            raise Broken("M13", f"token {position} is {token}, but logits are of {found['V'][0]} tokens")


def _known(names: Iterable[str]) -> Iterable[Tensor]:
    for name in names:
        try:
            yield named(name)
        except InputError as unknown:
            raise Broken("M9", str(unknown)) from unknown
