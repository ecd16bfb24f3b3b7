"""pytest on the rows, and pytest-benchmark's store of runs, each in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from glob import escape
from pathlib import Path

from ..errors import InputError
from .field import MISLEADING
from .rows import Row

__all__ = ["plot", "run"]

STORE = Path(".benchmarks")  # in the working directory, where pytest-benchmark has it too
TESTS = Path(__file__).with_name("test_rows.py")


def run(rows: Sequence[Row], record: Path, *, quick: bool) -> int:
    """Measure the rows; the record is pytest-benchmark's JSON. 0, or 1 if a row failed; progress goes to stderr."""
    command = [
        *(sys.executable, "-P", "-m", "pytest", "-c", os.devnull, "--rootdir", str(TESTS.parent), "-v", "-rs"),
        *("--import-mode=importlib", "-p", "no:cacheprovider", "--benchmark-quiet", f"--benchmark-json={record}"),
        *(
            ["--quick"]
            if quick
            else [f"--benchmark-storage=file://{STORE.resolve()}", "--benchmark-autosave", "--benchmark-save-data"]
        ),
        *(f"{TESTS}::test_row[{row.id}]" for row in rows),
    ]
    # PYTEST_…: of a run of tests that this one may be within; pytest-benchmark would measure nothing.
    kept = {
        name: value for name, value in os.environ.items() if name not in MISLEADING and not name.startswith("PYTEST_")
    }
    ended = subprocess.run(command, stdout=2, env=kept, check=False).returncode  # stderr: stdout is for the table
    return min(ended, 2)


def plot(prefix: str) -> list[Path]:
    """A plot a row of all runs that are kept."""
    if not any(STORE.glob("*/*.json")):
        raise InputError(f"no runs in {STORE}/", mend="gander bench keeps one there each time")
    folder = Path(prefix).parent
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest_benchmark", f"--storage=file://{STORE.resolve()}", "compare"]
    ended = subprocess.run(
        [*command, "--group-by=name", f"--histogram={prefix}"], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise InputError(f"pytest-benchmark does not plot: {ended.stderr.strip().splitlines()[-1]}")
    return sorted(folder.glob(f"{escape(Path(prefix).name)}-*.svg"))
