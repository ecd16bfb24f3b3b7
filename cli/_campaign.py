"""Where independent cases are run, and how they are taken up again: what `check` and `mutants score` share."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import InputError
from ..files import require_folder

if TYPE_CHECKING:
    from ..conformance.campaign import How

__all__ = ["how", "options"]


def options(command: Callable[..., int]) -> Callable[..., int]:
    """The options --scheduler, --workers and --resume."""
    for option in (
        click.option("--resume", type=click.Path(dir_okay=False), metavar="FILE",
                     help="Write each result to FILE as it comes; of a FILE that is there, run only what it lacks."),
        click.option("--workers", type=click.IntRange(1), metavar="N",
                     help="Run on a Dask cluster of N processes on this machine."),
        click.option("--scheduler", metavar="ADDRESS", help="Run on the Dask cluster of that scheduler (tcp://…)."),
    ):  # fmt: skip
        command = option(command)
    return command


def how(scheduler: str | None, workers: int | None, resume: str | None, *, processes: int = 1) -> "How":
    """What the options say."""
    from ..conformance.campaign import How

    if scheduler is not None and workers is not None:
        raise InputError("--scheduler has workers of its own", mend="leave out --workers, or --scheduler")
    if resume is not None:
        require_folder(Path(resume))
    return How(scheduler or "", workers or 0, processes, None if resume is None else Path(resume))
