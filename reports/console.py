"""The report for a person at a terminal: readable at 60 columns, in a pipe, and without colour."""

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..conformance.results import CheckResult, Finding, ModelReport, Report, Status
from .words import lacking, place, repeat, said, summary, title

__all__ = ["print_report"]

STYLE = {
    Status.PASS: "green",
    Status.FAIL: "bold red",
    Status.INCOMPLETE: "yellow",
    Status.NOT_APPLICABLE: "yellow",
    Status.XFAIL: "green",
    Status.XPASS: "bold red",
}
INDENT = 6
SHOWN = 3  # findings of a check; the JSON report has them all


def print_report(report: Report, console: Console) -> None:
    """The table of each model, what is wrong, and the verdict."""
    for model in report.models:
        console.print()
        wide = console.width >= 100
        console.print(_table(report, model, wide=wide))
        for check in model.checks:
            if check.id == "int8.cost" and not wide:  # a figure that is wanted whether it passes or not
                _indented(check.note, console)
        _print_findings(report, model, console)
    console.print()
    console.print(Text(report.status, style=STYLE[report.status]).append(f"  {summary(report)}", style=""))


def _table(report: Report, model: ModelReport, *, wide: bool) -> Table:
    table = Table(
        title=f"{title(report)} · {model.model}", title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("compared", justify="right", no_wrap=True)
    table.add_column("of bound", justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    if wide:
        table.add_column("what was compared")
    for check in model.checks:
        table.add_row(
            check.id,
            Text(check.status, style=STYLE[check.status]),
            f"{check.compared}/{check.expected}",
            f"{check.worst:.2g}",
            f"{check.seconds:.1f}",
            *([check.note] if wide else []),
        )
    return table


def _print_findings(report: Report, model: ModelReport, console: Console) -> None:
    """The first check that failed, in full: checks run from the parts to the whole, so the others may only follow."""
    wrong = [check for check in model.checks if check.status is Status.FAIL and check.findings]
    incomplete = [check for check in model.checks if check.status is Status.INCOMPLETE and check.findings]
    for check in wrong[:1] + incomplete:
        for finding in check.findings[:SHOWN]:
            console.print()
            _print_finding(report, model, check, finding, console)
        if len(check.findings) > SHOWN:
            _indented(f"… and {len(check.findings) - SHOWN} more in {check.id} (--json lists them)", console)
    if wrong[1:]:
        console.print("\nAlso failing, if only because of that:")
    for check in wrong[1:]:
        more = f" and {len(check.findings) - 1} more" if len(check.findings) > 1 else ""
        _indented(f"{check.id}: {place(check.findings[0])}{more}", console)
        if check.replay:
            _print_replay(report, model, check, console)
    for check in model.checks:
        if check.status is Status.XPASS:
            console.print()
            console.print(Text(Status.XPASS, style=STYLE[Status.XPASS]) + Text(f"  {check.id}", style="bold"))
            _indented(f"passes, but is listed as a known failure: {check.xfail}", console)
            _indented("take it out of the --xfail file", console)
    for lacks in dict.fromkeys(check.lacks for check in model.checks if check.lacks):
        ids = [check.id for check in model.checks if check.lacks == lacks]
        console.print(f"\nNot applicable: the engine does not offer {lacking(lacks)}", highlight=False)
        _indented(", ".join(ids), console)
    known = [check for check in model.checks if check.status is Status.XFAIL]
    if known:
        console.print("\nKnown failures:")
    for check in known:
        _indented(f"{check.id}: {check.xfail}", console)


def _indented(text: str, console: Console) -> None:
    console.print(Padding(Text(text), (0, 0, 0, INDENT)))


def _print_finding(report: Report, model: ModelReport, check: CheckResult, finding: Finding, console: Console) -> None:
    verdict = Status.INCOMPLETE if finding.missing else Status.FAIL
    console.print(Text(verdict, style=STYLE[verdict]) + Text(f"  {place(finding)}", style="bold"))
    _indented(said(finding), console)
    if finding is check.findings[0]:
        if check.likely:
            _indented(f"likely: {check.likely}", console)
        _print_replay(report, model, check, console)


def _print_replay(report: Report, model: ModelReport, check: CheckResult, console: Console) -> None:
    if command := repeat(report, model, check):
        console.print(Text(" " * INDENT + f"replay: {command}"), soft_wrap=True)  # one line, to be copied
