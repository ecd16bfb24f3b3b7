"""Reads what `export` writes, whoever wrote it: a .tiktoken file, or MNN's tokenizer.txt."""

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from ..errors import InputError
from .export import MNN_MAGIC, MNN_TIKTOKEN

__all__ = ["Exported", "read_exported"]

EXPECTED = "lines of `base64 rank` (.tiktoken), or MNN's tokenizer.txt, which begins with 430 1"


@dataclass(frozen=True)
class Exported:
    """A tokenizer file as it stands; nothing about it need be right but its grammar."""

    form: str  # tiktoken or mnn
    tokens: Mapping[int, bytes]
    specials: tuple[int, ...]  # ids whose spelling is cut out of a text before the rest is encoded
    prefix: tuple[int, ...]  # ids that go before each text


def read_exported(path: str | PathLike[str]) -> Exported:
    """The tokenizer file at `path`. InputError names the line that cannot be read."""
    path = Path(path)
    try:
        text = path.read_bytes().decode("ascii")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", expected=EXPECTED) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no tokenizer file: byte {error.start} is not ASCII", expected=EXPECTED) from error
    lines = text.splitlines()
    if not lines:
        raise InputError(f"{path} is empty", expected=EXPECTED)
    try:
        if re.match(rf"{MNN_MAGIC}( |$)", lines[0]):
            return _mnn(lines)
        tokens: dict[int, bytes] = {}
        for number, line in enumerate(lines, 1):
            token, _, rank = line.partition(" ")
            id = _whole(rank, number)
            if id in tokens:
                raise _Wrong(number, f"the rank {id} is there twice")
            tokens[id] = _token(token, number)
        return Exported("tiktoken", tokens, (), ())
    except _Wrong as wrong:
        raise InputError(f"{path} is no tokenizer file: {wrong}", expected=EXPECTED) from wrong


class _Wrong(Exception):
    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")


def _mnn(lines: list[str]) -> Exported:
    """MNN's tokenizer.txt; `export` says how it is built."""
    if lines[0].split() != [str(MNN_MAGIC), str(MNN_TIKTOKEN)]:
        raise _Wrong(1, f"{lines[0]!r} is an MNN tokenizer of another kind than tiktoken's")
    if len(lines) < 4:
        raise _Wrong(len(lines), "the file ends in its header")
    counts = [_whole(word, 2) for word in lines[1].split()]
    listed = [_whole(word, 3) for word in lines[2].split()]
    if len(counts) != 3 or sum(counts) != len(listed):
        raise _Wrong(
            3, f"it lists {len(listed)} ids, but line 2 says {lines[1].strip()!r} specials, stops and prefixes"
        )
    size = _whole(lines[3].strip(), 4)
    if size != len(lines) - 4:
        raise _Wrong(4, f"it says {size} tokens, but {len(lines) - 4} lines follow")
    tokens = {index: _token(line, index + 5) for index, line in enumerate(lines[4:])}
    return Exported("mnn", tokens, tuple(listed[: counts[0]]), tuple(listed[counts[0] + counts[1] :]))


def _whole(word: str, number: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", word):
        raise _Wrong(number, f"{word!r} is not a whole number")
    return int(word)


def _token(written: str, number: int) -> bytes:
    try:
        return b64decode(written, validate=True)
    except binascii.Error as error:
        raise _Wrong(number, f"{written[:60]!r} is not base64: {error}") from error
