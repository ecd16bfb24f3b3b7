"""Writes a vocabulary in the forms that engines with a tiktoken reader take.

Both are base64, one token a line, and both are meant for a reader that takes the longest match; OpenAI's tiktoken
library merges pairs by rank instead, and would give other ids.
"""

import os
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError, nearest
from ..files import output
from .vocabulary import END_OF_TEXT, Vocabulary

__all__ = ["END_OF_TEXT_SPELLED", "FORMS", "MNN_MAGIC", "MNN_TIKTOKEN", "export"]

MNN_MAGIC, MNN_TIKTOKEN = 430, 1
END_OF_TEXT_SPELLED = "<|rwkv_tokenizer_end_of_text|>"


def _tiktoken(vocabulary: Vocabulary) -> str:
    """`base64 SP id`: a .tiktoken file. The id 0 has no bytes, so it has no line."""
    return "".join(f"{b64encode(token).decode()} {id}\n" for id, token in vocabulary.tokens.items())


def _mnn(vocabulary: Vocabulary) -> str:
    r"""MNN's tokenizer.txt, of its tiktoken kind: line i after the header is base64 of token i.

    The header is MNN's magic number and the kind; how many specials, stop tokens and prefix tokens there are; their
    ids; how many tokens follow. MNN spells every id, so the id 0 is a special, and its line is the spelling. There is
    no token 65530: the blank line "\n\n" stays what it is, 261. Source: MNN's report on RWKV-7, 3.3 (base64 lines,
    special tokens spelled at their index, the start of text at index 0), and its tokenizer.cpp (the header).
    """
    lines = (END_OF_TEXT_SPELLED.encode(), *vocabulary.tokens.values())
    header = f"{MNN_MAGIC} {MNN_TIKTOKEN}\n1 1 0\n{END_OF_TEXT} {END_OF_TEXT}\n{len(lines)}\n"
    return header + "".join(f"{b64encode(line).decode()}\n" for line in lines)


FORMS: dict[str, Callable[[Vocabulary], str]] = {"tiktoken": _tiktoken, "mnn": _mnn}


def export(vocabulary: Vocabulary, path: str | os.PathLike[str], form: str, *, force: bool = False) -> tuple[str, ...]:
    """Write `vocabulary` to `path` in one of FORMS; the file appears only when it is complete. Returns notes.

    InputError if the file exists and `force` is not given, or cannot be written.
    """
    if form not in FORMS:
        raise InputError(f"no form {form!r}", expected=nearest(form, FORMS))
    path = Path(path)
    if os.path.isdir(path):  # pathlib's raises for names that are too long
        raise InputError(f"{path} is a folder", expected="the name of a file to write")
    if os.path.lexists(path) and not force:
        raise InputError(f"{path} exists already", mend="--force overwrites it")
    with output(path) as partial:
        partial.write_bytes(FORMS[form](vocabulary).encode())
    if form == "mnn":
        return (f"the text {END_OF_TEXT_SPELLED} becomes the id 0 there; gander encodes it as ordinary text",)
    return ("for a reader that takes the longest match; OpenAI's tiktoken merges by rank and gives other ids",)
