"""Tokens as a user writes them: `1,2,3`, or `@file` with a JSON list."""

import json
from pathlib import Path

from ..errors import InputError

__all__ = ["check_tokens", "parse_tokens"]

WRITTEN = "whole numbers separated by commas, like 1,2,3, or @FILE with a JSON list of them"


def parse_tokens(text: str, vocab: int) -> tuple[int, ...]:
    """The tokens that `text` spells, each in [0, vocab). InputError names the position of a wrong one."""
    if text.startswith("@"):
        return check_tokens(_from_file(Path(text[1:])), vocab)
    return check_tokens([_number(part) for part in text.split(",")] if text.strip() else [], vocab)


def check_tokens(tokens: object, vocab: int) -> tuple[int, ...]:
    """`tokens` if they are a list of at least one whole number in [0, vocab)."""
    if not isinstance(tokens, list | tuple):
        raise InputError(f"tokens must be a list, not {type(tokens).__name__}", expected=WRITTEN)
    if not tokens:
        raise InputError("no tokens given", expected=f"at least one; {WRITTEN}")
    for position, token in enumerate(tokens):
        if isinstance(token, bool) or not isinstance(token, int):
            raise InputError(f"token {position} is {token!r}, not a whole number", expected=WRITTEN)
        if not 0 <= token < vocab:
            raise InputError(f"token {position} is {token}", expected=f"0 to {vocab - 1} for this model")
    return tuple(tokens)


def _number(part: str) -> int | str:
    """The number that `part` spells, or `part` itself for the message to show."""
    try:
        return int(part)
    except ValueError:
        return part.strip()


def _from_file(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the tokens in {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(
            f"{path} is not JSON: {error}", expected="a JSON list of whole numbers, like [1, 2, 3]"
        ) from error
