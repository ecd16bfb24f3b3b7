"""How tokens go into an engine: in one call, one by one, or in calls of given sizes."""

import re
from collections.abc import Iterator, Sequence

from ..errors import InputError

__all__ = ["cut", "parse_path", "path_name"]


def parse_path(text: str, tokens: int) -> tuple[int, ...]:
    """The sizes of the calls that `prefill`, `step` or `split:5+3` mean for a number of tokens."""
    if text == "prefill":
        return (tokens,)
    if text == "step":
        return (1,) * tokens
    if not re.fullmatch(r"split:[1-9]\d*(\+[1-9]\d*)*", text):
        raise InputError(f"path {text!r} is unknown", expected="prefill, step, or like split:5+3")
    parts = tuple(int(part) for part in text.removeprefix("split:").split("+"))
    if sum(parts) != tokens:
        raise InputError(f"path {text!r} cuts {sum(parts)} tokens", expected=f"the {tokens} tokens given")
    return parts


def cut(tokens: Sequence[int], parts: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """The calls of `parts` tokens: where each begins, and its tokens."""
    begin = 0
    for part in parts:
        yield begin, tokens[begin : begin + part]
        begin += part


def path_name(parts: Sequence[int]) -> str:
    """How a path is written: prefill, step, or split:17+113."""
    if len(parts) == 1:
        return "prefill"
    if set(parts) == {1}:
        return "step"
    return "split:" + "+".join(map(str, parts))
