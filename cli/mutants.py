"""`gander mutants`: the faults that the checks are tried on."""

import click

from . import _campaign
from ._options import console


@click.group
def command() -> None:
    """List the known faults, and show that the checks find them.

    A mutant is a right port with one fault put in.
    """


@command.command("list")
def list_mutants() -> int:
    """List the faults, what is right, and where each was seen."""
    from ..conformance.mutants import MUTANTS, TOKENIZERS
    from ..reports.mutants import print_mutants

    print_mutants((*MUTANTS, *TOKENIZERS), console())
    return 0


@command.command
@click.option("--only", multiple=True, metavar="MUTANT", help="Only these: a glob (wkv7.*).")
@click.option("--page", type=click.Path(dir_okay=False), metavar="FILE", help="Write the matrix as a Markdown page.")
@click.option("--json", "as_json", is_flag=True, help="Print the matrix as JSON.")
@_campaign.options
def score(
    only: tuple[str, ...],
    page: str | None,
    as_json: bool,
    scheduler: str | None,
    workers: int | None,
    resume: str | None,
) -> int:
    """Run every check against every mutant.

    Exit status: 0 if every fault is found, no right variant is taken for one, and every check finds something; else 1.
    """
    from fnmatch import fnmatchcase
    from pathlib import Path

    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ..conformance.mutants import MUTANTS, TOKENIZERS
    from ..conformance.scoring import PROCESSES
    from ..conformance.scoring import score as run
    from ..errors import InputError
    from ..files import require_folder
    from ..reports.mutants import matrix_as_json, print_matrix, write_matrix
    from ..vocabulary import find_vocabulary

    def wanted(id: str) -> bool:
        return not only or any(fnmatchcase(id, glob) for glob in only)

    chosen = [mutant for mutant in MUTANTS if wanted(mutant.id)]
    tokenizers = [mutant for mutant in TOKENIZERS if wanted(mutant.id)]
    if tokenizers:
        find_vocabulary()  # which they need, and which may not be there
    if not chosen and not tokenizers:
        raise InputError(f"no mutant {only[0]!r}", expected="an id, or a glob like wkv7.*", mend="gander mutants list")
    if page:
        require_folder(Path(page))
    how = _campaign.how(scheduler, workers, resume, processes=PROCESSES)
    columns = MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        matrix = run(
            chosen,
            tokenizers,
            how=how,
            progress=lambda done, total, id: bar.update(task, completed=done, total=total, description=id),
        )
    partial = bool(only)
    if page:
        write_matrix(matrix, page)
    if as_json:
        click.echo(matrix_as_json(matrix))
    else:
        print_matrix(matrix, console(), partial=partial)
    return 0 if matrix.ok or (partial and not (matrix.survivors or matrix.accused or matrix.broken)) else 1
