"""Files that appear only when they are complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import InputError

__all__ = ["output", "whole"]


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what is to be `path`: beside it, and in its place once all is written. What fails, or is stopped,
    leaves what was there. May raise OSError."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink()  # is gone already, unless something stopped this, an interrupt included


@contextmanager
def output(path: Path) -> Iterator[Path]:
    """The same for a file that the user named: InputError if it cannot be written."""
    try:
        with whole(path) as partial:
            yield partial
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
