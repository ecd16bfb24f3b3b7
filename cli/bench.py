"""`gander bench`: how fast is it, and is it slower than it was?"""

from typing import TYPE_CHECKING

import click

from ._options import console, progress

if TYPE_CHECKING:
    from pathlib import Path

    from ..benchmarks.rows import Row


@click.command
@click.option("--only", multiple=True, metavar="ROW", help="Only these rows (--list).")
@click.option("--quick", is_flag=True, help="Few blocks of each row, and no row that takes minutes.")
@click.option("--against", metavar="REF",
              help="Is it slower than a git revision, a wheel, or an earlier run's .json?")  # fmt: skip
@click.option("--page", type=click.Path(dir_okay=False), metavar="FILE",
              help="Put the table between the marks of this page. "
                   "[default: docs/performance.md of a checkout, if all rows are measured]")  # fmt: skip
@click.option("--trend", metavar="PREFIX", help="Plot all runs in .benchmarks/, to PREFIX-ROW.svg, and end.")
@click.option("--list", "list_rows", is_flag=True, help="List the rows and end.")
def command(
    only: tuple[str, ...], quick: bool, against: str | None, page: str | None, trend: str | None, list_rows: bool
) -> int:
    """Measure gander's engines beside their peers, taking turns, and print the table.

    No engine is timed before it is proved right. Runs are kept in .benchmarks/. Nothing else should be running.

    Exit status: 0; 1 if an engine was wrong, or with --against if a slowdown is proven; 2 if a row could not be
    measured, or the request was wrong.
    """
    from ..errors import InputError, needs

    with needs("gander bench", "pytest-benchmark", module="pytest_benchmark", extra="bench"):
        import pytest_benchmark  # noqa: F401
    if trend:
        return _plot(trend)
    from ..benchmarks.machine import busy
    from ..benchmarks.rows import select

    rows = select(only)
    if list_rows:
        for row in rows:
            click.echo(f"{row.id:16}{row.title}")
        return 0
    if page and against:
        raise InputError("--page with --against", expected="one of them: the gate makes no table")
    warning = busy()
    if warning:
        click.echo(f"warning: {warning}", err=True)
    return (
        _gate(rows, against, chosen=bool(only), quick=quick)
        if against
        else _table(rows, page, whole=not only, quick=quick)
    )


def _table(rows: "list[Row]", page: str | None, *, whole: bool, quick: bool) -> int:
    """Run benchmarks/test_rows.py, print what it measured, and write the page."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from ..benchmarks.run import run
    from ..benchmarks.sides import ROOT
    from ..benchmarks.table import check_page, print_table, read_run, write_page

    own = ROOT / "docs" / "performance.md"
    target = Path(page) if page else own if whole and not quick and own.exists() else None
    if target is not None:
        check_page(target)  # at once, not after fifteen minutes
    with TemporaryDirectory() as folder:
        record = Path(folder, "run.json")
        status = run(rows, record, quick=quick)
        if not record.exists():
            return status
        measured = read_run(record)
    print_table(measured, console())
    if target is not None:
        write_page(measured, target)
        click.echo(f"{target}: written")
    return status


def _gate(rows: "list[Row]", ref: str, *, chosen: bool, quick: bool) -> int:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from ..errors import InputError, needs

    with needs("gander bench --against", "scipy", extra="bench"):
        import scipy  # noqa: F401
    from ..benchmarks.field import Side
    from ..benchmarks.gate import QUICK, ROUNDS, against_file, against_side, print_verdicts
    from ..benchmarks.inputs import Inputs
    from ..benchmarks.proof import Proof
    from ..benchmarks.sides import named, revision

    left = [row.id for row in rows if not row.gated]
    if chosen and left:
        raise InputError(f"the gate does not measure {', '.join(left)}", expected="rows of seconds, not of minutes")
    rows = [row for row in rows if row.gated]
    with TemporaryDirectory() as folder, progress("the gate") as say:
        inputs = Inputs(_made(folder, "inputs"))
        old, new = named(ref, _made(folder, "old")), Side("new")
        proof = Proof(inputs)
        if isinstance(old, Side):
            rounds = QUICK if quick else ROUNDS
            verdicts = list(against_side(rows, old, new, inputs, proof, rounds=rounds, say=say))
        else:
            verdicts = list(against_file(rows, old, new, inputs, proof, say=say))
    return print_verdicts(verdicts, Path(ref).name, revision() or "installed", console())


def _made(folder: str, name: str) -> "Path":
    from pathlib import Path

    path = Path(folder, name)
    path.mkdir()
    return path


def _plot(prefix: str) -> int:
    """pytest-benchmark's own plots of its history."""
    from ..benchmarks.run import plot
    from ..errors import needs

    with needs("gander bench --trend", "pygal", extra="bench"):
        import pygal  # noqa: F401
    for path in plot(prefix):
        click.echo(f"{path}: written")
    return 0
