"""Style, types, and the direction of the arrows; and what the README promises about commands."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent

KEEPERS = {
    "style": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "gander"],
    "arrows": ["lint-imports"],
}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_house_is_in_order(keeper: str, tmp_path: Path) -> None:
    """ruff, mypy and import-linter find nothing."""
    program, *arguments = KEEPERS[keeper]
    folder = ROOT
    if program == "mypy":  # takes the folder's name for the package's: whatever the clone is called, it is gander here
        (tmp_path / "gander").symlink_to(ROOT)
        folder = tmp_path
    run = subprocess.run([BIN / program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_ci_runs_the_readmes_test_command() -> None:
    """The command a reader copies is the one that CI proves."""
    (command,) = (line for line in (ROOT / "README.md").read_text().splitlines() if "-m pytest -n" in line)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_no_module_is_long() -> None:
    """A newcomer reads a module in one sitting."""
    lengths = {path: len(path.read_text().splitlines()) for path in ROOT.glob("*/**/*.py") if ".venv" not in path.parts}
    assert not {path: length for path, length in lengths.items() if length > 500}


def test_every_public_function_of_the_reference_says_what_it_computes() -> None:
    """The reference is read beside the paper: a formula, its shapes, in every docstring."""
    import gander.reference as reference

    functions = [getattr(reference, name) for name in reference.__all__ if name not in ("State", "Tap")]
    bare = [function.__name__ for function in functions if "(" not in (function.__doc__ or "")]
    assert not bare
