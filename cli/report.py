"""`gander report`: pages and files from saved results."""

import io
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

import click

from ._options import console

if TYPE_CHECKING:
    from rich.console import Console

# What can be made of a result but text, and what makes it.
FORMATS = {
    "html": "html.as_html",
    "markdown": "markdown.as_markdown",
    "junit": "junit.as_junit",
    "badge": "badge.as_badge",
    "model-explorer": "model_explorer.as_node_data",
    "json": "data.report_as_json",
}
WIDTH = 100  # of text in a file


@click.command
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="RESULT.json [LATER.json]")
@click.option("--to", "form", type=click.Choice(("text", *FORMATS)), default="text", show_default=True,
              help="What to make of it. Of two results: text or json.")  # fmt: skip
@click.option("--out", "-o", type=click.Path(), metavar="FILE", help="Where to. [default: stdout]")
def command(files: tuple[str, ...], form: str, out: str | None) -> int:
    """Make a page or a file of a result that gander check --out saved; or say what two of them differ in.

    Exit status: 0 made, 1 of two results the later one is worse, 2 a file is no result.
    """
    from pathlib import Path

    from ..errors import InputError
    from ..files import output
    from ..reports import print_report, read_result
    from ..reports.changes import changes, changes_as_json, print_changes

    if len(files) > 2:
        raise InputError(f"{len(files)} results", expected="one, or two to compare")
    if len(files) == 2 and form not in ("text", "json"):
        raise InputError(f"--to {form} is of one result", expected="of two, --to text or --to json")
    first, *later = [read_result(Path(file)) for file in files]
    worse = False
    if later:
        found = changes(first, later[0])
        worse = found.worse
        text = changes_as_json(found) if form == "json" else _printed(lambda to: print_changes(found, to), out)
    elif form == "text":
        text = _printed(lambda to: print_report(first, to), out)
    else:
        module, name = FORMATS[form].split(".")
        text = getattr(import_module(f"..reports.{module}", __package__), name)(first)
    if out is None:
        click.echo(text.rstrip("\n"))
    else:
        with output(Path(out)) as partial:
            partial.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    return int(worse)


def _printed(show: Callable[["Console"], None], out: str | None) -> str:
    """As at this terminal; in a file, without its colours and its width."""
    from rich.console import Console

    screen = console() if out is None else Console(file=io.StringIO(), width=WIDTH, highlight=False)
    with screen.capture() as captured:
        show(screen)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
