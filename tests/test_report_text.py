"""The report as text, letter by letter: at 60 columns, at 100, and in a pipe.

`pytest --snapshot-update` writes it anew, for eyes to read the difference.
"""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from reported import SAVED, every_verdict, saved
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from gander.conformance.results import Report
from gander.reports import print_report
from gander.reports.changes import changes, print_changes

REPORTS = {"green": saved("green"), "fault": saved("fault"), "every verdict": every_verdict()}


class AsText(SingleFileSnapshotExtension):
    """A text file for each."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def text(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(AsText)


def printed(report: Report, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as captured:
        print_report(report, console)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("name", REPORTS)
def test_as_a_person_reads_it(name: str, width: int, text: SnapshotAssertion) -> None:
    assert printed(REPORTS[name], width) == text


def test_two_results_side_by_side(text: SnapshotAssertion) -> None:
    console = Console(file=io.StringIO(), width=60, highlight=False)
    with console.capture() as captured:
        print_changes(changes(saved("green"), saved("fault")), console)
    assert "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n" == text


def test_in_a_pipe(text: SnapshotAssertion, tmp_path: Path) -> None:
    """No colour, no control codes, whatever the terminal was."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    run = subprocess.run(
        [sys.executable, "-m", "gander", "report", SAVED["fault"]],
        env={**environment, "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert run.stderr == ""
    assert "\x1b" not in run.stdout
    assert run.stdout == text
