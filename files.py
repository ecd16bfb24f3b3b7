"""Files that appear only when they are complete, and what is said of those that are not what they should be."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import InputError

__all__ = ["output", "read_object", "require_folder", "whole"]


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


def require_folder(path: Path) -> None:
    """InputError if there is no folder for a file that is to be written: at once, not after all the work."""
    if not path.parent.is_dir():
        raise InputError(f"no folder {path.parent}", mend="make it first, or write elsewhere")


def read_object(path: Path, schema: str, *, what: str, made_by: str) -> dict[str, Any]:
    """The JSON object of a file that gander wrote; its entry "schema" says which kind and version ("gander.replay/1").

    InputError says what is wrong with a file that cannot be read, is no such object, or is of another version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", expected=made_by) from error
    except (ValueError, RecursionError) as error:  # JSON's own, and UTF-8's
        raise InputError(f"{path} is not JSON: {error}", expected=f"the whole of {made_by}") from error
    found = data.get("schema") if isinstance(data, dict) else None
    if found != schema:
        kind = schema.rpartition("/")[0]
        known = isinstance(found, str) and found.startswith(f"{kind}/")
        raise InputError(
            f"{path} has the schema {found!r}" if known else f"{path} is no {what}",
            expected=f"{schema!r}, which this gander writes" if known else made_by,
            mend="use the gander that wrote it" if known else "",
        )
    assert isinstance(data, dict)
    return data
