"""What several commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["DTYPES", "progress"]

DTYPES = ("float32", "bfloat16", "float16")


@contextmanager
def progress(message: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; nothing where stderr is no terminal."""
    from rich.console import Console

    with Console(stderr=True).status(message) as status:
        yield lambda text: status.update(text)
