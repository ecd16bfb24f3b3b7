"""What several commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["DTYPES", "console", "progress"]

DTYPES = ("float32", "bfloat16", "float16")


def console() -> "Console":
    """Where results go. A pipe that its reader closed ends the command; rich would exit 1, which is a verdict here."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Output(highlight=False)


@contextmanager
def progress(message: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; nothing where stderr is no terminal."""
    from rich.console import Console

    with Console(stderr=True).status(message) as status:
        yield lambda text: status.update(text)
