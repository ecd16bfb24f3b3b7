"""Replay files: a failure on as little as it takes, as JSON that `gander check --replay` runs again."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from ..checkpoint import Checkpoint, Config
from ..errors import InputError, nearest
from ..files import read_object, whole
from ..golden import NAMES
from ..traces import check_tokens, parse_attention, path_name
from .cases import COMPARE, MADE, Case, Model, source_of
from .mode import Mode
from .tolerances import UNIT_ROUNDOFF

__all__ = ["SCHEMA", "Replay", "model_of", "read_replay", "write_replay"]

SCHEMA = "gander.replay/1"
ABOUT = "A failure that gander check found, on as little as it takes; gander check --replay FILE runs it again."
BLOCKS = ("layers", "attention_layers")  # the sizes in which a model that was opened may be smaller
LARGEST = 1024  # of any size of a made model: nothing is gained by a large one
MADE_BY = "a file that gander check wrote into .gander/replays/"

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Replay:
    """All that a failure needs to be seen again, and what it was."""

    engine: str  # as --engine has it
    dtype: str | None  # as --dtype has it
    mode: Mode
    seed: int
    case: Case
    fingerprint: str  # of the case's model, before it is cut
    check: str  # the id of the check that found it
    where: str  # what was found there, on this case
    message: str
    version: str  # of the gander that wrote it


def write_replay(replay: Replay, folder: Path) -> Path:
    """The file in `folder`, named by a hash: the same failure is the same file. May raise OSError."""
    data = _as_data(replay)
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    text = re.sub(r"\[[^\[\]]*\]", lambda numbers: re.sub(r"\s+", " ", numbers[0]), text)  # a list of numbers in a line
    data["found"].pop("message")  # whose last digit may be another on another machine
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(json.dumps(data).encode()).hexdigest()[:8]}.json"
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def read_replay(path: Path) -> Replay:
    """The failure that a file describes. InputError says what is wrong with a file that describes none."""
    data = read_object(path, SCHEMA, what="replay file", made_by=MADE_BY)
    try:
        return _from_data(data)
    except _Wrong as wrong:
        raise InputError(f"{path}: {wrong}", expected=f"the whole of {MADE_BY}, as it was written") from wrong
    except InputError as error:
        raise InputError(f"{path}: {error.problem}", expected=error.expected, mend=error.mend) from error


def model_of(replay: Replay, path: Path) -> Checkpoint:
    """The replay's model before it is cut. InputError if it is not the one on which the failure was found."""
    model = replay.case.model
    source = source_of(model)
    if source.fingerprint() != replay.fingerprint:
        recipe = model.source.startswith(("golden:", "random:", MADE))
        raise InputError(
            f"{path} is of another {model.source}: the model has changed since",
            expected=f"a model of fingerprint {replay.fingerprint[:12]}…, not {source.fingerprint()[:12]}…",
            mend=f"the gander that wrote the file, {replay.version}"
            if recipe
            else f"put the old checkpoint back, or gander check --model {model.source}",
        )
    check_tokens(replay.case.tokens, source.config.vocab)
    for name, size in model.sizes:
        if name in BLOCKS and size > getattr(source.config, name):
            raise InputError(f"{path} keeps {size} {name} of a model that has {getattr(source.config, name)}")
    return source


def _as_data(replay: Replay) -> dict[str, Any]:
    case, mode = replay.case, replay.mode
    return {
        "schema": SCHEMA,
        "about": f"{ABOUT} What is compared: {COMPARE[case.compare]}.",
        "gander": replay.version,
        "engine": replay.engine,
        "dtype": replay.dtype,
        "attention": str(mode.attention),
        "quantize": mode.quantize,
        "model": {
            "source": case.model.source,
            "sizes": dict(case.model.sizes),
            "finer": case.model.finer,
            "fingerprint": replay.fingerprint,
        },
        "start": case.start,
        "tokens": list(case.tokens),
        "calls": list(case.parts),
        "chunk": case.chunk,
        "compare": case.compare,
        "seed": replay.seed,
        "found": {
            "check": replay.check,
            "where": replay.where,
            "message": replay.message,
        },
    }


class _Wrong(Exception):
    """An entry of the file is not what it must be."""


def _entry(data: Mapping[str, Any], name: str, kind: type[Kind]) -> Kind:
    """An entry that must be there, of that type. (A bool is no number.)"""
    if name not in data:
        raise _Wrong(f"it has no {name!r}")
    value = data[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise _Wrong(f"{name!r} is {value!r}, not of type {kind.__name__}")
    return value


def _number(value: object, name: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _Wrong(f"{name} is {value!r}, but should be a whole number of at least {least}")
    return value


def _from_data(data: Mapping[str, Any]) -> Replay:
    model, found = _entry(data, "model", dict), _entry(data, "found", dict)
    dtype = None if data.get("dtype") is None else _one_of(_entry(data, "dtype", str), "dtype", UNIT_ROUNDOFF)
    tokens = tuple(_number(token, "a token", 0) for token in _entry(data, "tokens", list))
    parts = tuple(_number(part, "a call", 1) for part in _entry(data, "calls", list))
    if not tokens or sum(parts) != len(tokens):
        raise _Wrong(f"its calls {path_name(parts) if parts else '[]'} do not cut its {len(tokens)} tokens")
    start = _entry(data, "start", str)
    if not re.fullmatch(r"zero|(random|finer):\d{1,18}", start):
        raise _Wrong(f"start {start!r} is none of zero, random:SEED, finer:SEED")
    return Replay(
        engine=_entry(data, "engine", str),
        dtype=dtype,
        mode=Mode(parse_attention(_entry(data, "attention", str)), _entry(data, "quantize", bool)),
        seed=_number(_entry(data, "seed", int), "the seed", 0),
        case=Case(
            _model(model),
            tokens,
            parts,
            start,
            _one_of(_entry(data, "compare", str), "compare", COMPARE),
            None if data.get("chunk") is None else _number(data["chunk"], "the chunk", 1),
        ),
        fingerprint=_entry(model, "fingerprint", str),
        check=_entry(found, "check", str),
        where=_entry(found, "where", str),
        message=_entry(found, "message", str),
        version=_entry(data, "gander", str),
    )


def _one_of(value: str, name: str, known: Mapping[str, object]) -> str:
    if value not in known:
        raise _Wrong(f"{name} {value!r} is unknown: {nearest(value, known)}")
    return value


def _model(data: Mapping[str, Any]) -> Model:
    source, sizes = _entry(data, "source", str), _entry(data, "sizes", dict)
    made = source.startswith(MADE)
    if made and source.removeprefix(MADE) not in NAMES:
        raise _Wrong(f"no golden model is called {source.removeprefix(MADE)!r}")
    kinds = {field.name: field.type for field in fields(Config) if made or field.name in BLOCKS}
    for name, value in sizes.items():
        if name not in kinds:
            raise _Wrong(f"a size of {source!r} is called {name!r}")
        if kinds[name] is int:
            _number(value, f"the model's {name}", 0 if name in ("attention_layers", "rank_v") else 1)
        if not isinstance(value, int | float) or not 0 <= value <= LARGEST:
            raise _Wrong(f"the model's {name} is {value!r}")
    if made and sizes.get("width") != sizes.get("heads", 0) * sizes.get("head_size", 0):
        raise _Wrong("the model's width is not its heads times their size")
    return Model(source, tuple(sorted(sizes.items())), _entry(data, "finer", bool))
