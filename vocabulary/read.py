"""Reads a vocabulary file. Its literals are never evaluated as code."""

import ast
import hashlib
import re
from os import PathLike
from pathlib import Path

from ..errors import InputError
from .vocabulary import Vocabulary

__all__ = ["read_vocabulary"]

GRAMMAR = "ID LITERAL LENGTH: like 261 '\\n\\n' 2, or 129 b'\\x80' 1"

# One str or bytes literal and nothing else: no prefix but b, no octal escapes or names, no second literal behind it.
_STR = r"\\[abfnrtv\\'\"]|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}"
_BYTES = r"\\[abfnrtv\\'\"]|\\x[0-9a-fA-F]{2}"
_LITERAL = re.compile(
    rf"'(?:[^'\\\r\0]|{_STR})*'"
    rf'|"(?:[^"\\\r\0]|{_STR})*"'
    rf"|b'(?:[^'\\\r\0\x80-\U0010ffff]|{_BYTES})*'"
    rf'|b"(?:[^"\\\r\0\x80-\U0010ffff]|{_BYTES})*"'
)


def read_vocabulary(path: str | PathLike[str]) -> Vocabulary:
    """The vocabulary in a file like rwkv_vocab_v20230424.txt, with LF or CRLF line ends.

    A line is the id, a Python literal and the token's length in bytes, with a space between them; a literal may hold
    spaces itself. The ids are 1, 2, 3 and so on. InputError names the first line that is wrong.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", expected="a vocabulary file like rwkv_vocab_v20230424.txt"
        ) from error
    tokens: dict[int, bytes] = {}
    lines_of: dict[bytes, int] = {}
    lines = _lines(path, content)
    for number, line in enumerate(lines, 1):
        try:
            id, token = _entry(line)
            if id != number:
                raise _Wrong(_misplaced(id, number, lines), "the ids 1, 2, 3 and so on, one a line")
            if token in lines_of:
                raise _Wrong(f"{token!r} is already line {lines_of[token]}", "each token once")
        except _Wrong as wrong:
            raise InputError(
                f"{path}, line {number}: {wrong.problem}",
                expected=wrong.expected,
                mend="fetch or export the file again",
            ) from None
        tokens[id] = token
        lines_of[token] = number
    return Vocabulary(tokens, str(path), hashlib.sha256(content).hexdigest())


class _Wrong(Exception):
    """What is wrong with a line, and what was expected."""

    def __init__(self, problem: str, expected: str = GRAMMAR) -> None:
        self.problem, self.expected = problem, expected


def _lines(path: Path, content: bytes) -> list[str]:
    """The lines without their ends. (str.splitlines would also split at characters that a literal may hold.)"""
    if not content:
        raise InputError(f"{path} is empty", expected=GRAMMAR, mend="fetch or export the file again")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: byte {error.start} of the file, 0x{content[error.start]:02x}, is not UTF-8",
            expected="a text file in UTF-8; bytes that are no text are written as b'\\x80'",
            mend="fetch or export the file again",
        ) from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _entry(line: str) -> tuple[int, bytes]:
    """The id and the token of a line."""
    if not line:
        raise _Wrong("is empty")
    written, _, rest = line.partition(" ")
    literal, _, length = rest.rpartition(" ")
    if not re.fullmatch(r"0|[1-9][0-9]{0,8}", written):
        raise _Wrong(f"its id is {_short(written)}, not a whole number")
    if not literal:
        raise _Wrong(f"has no literal between id and length: {_short(line)}")
    token = _token(literal)
    if not token:
        raise _Wrong("its token is empty", "at least one byte")
    if not re.fullmatch(r"[0-9]{1,9}", length) or int(length) != len(token):
        raise _Wrong(f"its length is {_short(length)}, but {_short(literal)} has {len(token)} bytes", "the same number")
    return int(written), token


def _token(literal: str) -> bytes:
    if not _LITERAL.fullmatch(literal):
        raise _Wrong(f"{_short(literal)} is not one literal of str or bytes, and was not evaluated")
    if "\\" not in literal and literal[0] != "b":  # most lines: nothing to unescape
        return literal[1:-1].encode()
    try:
        value = ast.literal_eval(literal)
        return value if isinstance(value, bytes) else value.encode()
    except (SyntaxError, ValueError) as error:  # \U00110000 is no character; \ud800 has no UTF-8
        raise _Wrong(f"{_short(literal)} is not a text: {error}") from error


def _misplaced(id: int, number: int, lines: list[str]) -> str:
    """Why the first id that is not its line's number is wrong."""
    if id == 0:
        return "has the id 0, which is the end of text and stands for no bytes"
    if id < number:
        return f"has the id {id} a second time"
    if any(line.startswith(f"{number} ") for line in lines[number:]):
        return f"has the id {id}, but {number} comes later: the ids are out of order"
    return f"has the id {id}: the id {number} is missing"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}…")
