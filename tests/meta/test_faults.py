"""The gate can fail: faults of real ports, put into a copy of the engine, are found and named by the command."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gander.traces import op_of

from .faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
PACKAGE = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests")


def broken_copy(fault: Fault, folder: Path) -> Path:
    """A copy of the package with one fault in it."""
    package = folder / "gander"
    package.mkdir()
    for file in ROOT.glob("*.py"):
        shutil.copy(file, package)
    for name in PACKAGE:
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, right, wrong in fault.edits:
        text = (package / file).read_text()
        assert text.count(right) == 1, f"{file} does not hold {right!r} once: the fault {fault.name!r} is out of date"
        (package / file).write_text(text.replace(right, wrong))
    return folder


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`gander check` of the package that lies in `folder`."""
    command = [sys.executable, "-m", "gander", "check", "--brief", *options]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "100"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_an_unbroken_copy_passes(tmp_path: Path) -> None:
    """Otherwise the faults below could fail for the copying alone."""
    models = ("--model", "golden:adversarial", "--model", "golden:hybrid")
    run = check(broken_copy(Fault("none", (), "", ""), tmp_path), *models, "--only", "layer", "--only", "path.split")
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_named(fault: Fault, tmp_path: Path) -> None:
    """Exit 1, and the first finding of the check is the guilty tap or state."""
    folder = broken_copy(fault, tmp_path)
    run = check(folder, "--json", *fault.options, "--only", "layer", "--only", "path.split", "--only", "golden")
    assert run.returncode == 1, run.stdout + run.stderr
    report = json.loads(run.stdout)
    (result,) = (check for check in report["models"][0]["checks"] if check["id"] == fault.check)
    assert result["status"] == "FAIL"
    first = result["findings"][0]
    assert op_of(first["where"]) == fault.where
    assert first["path"].startswith(fault.path)
    assert report["compared"] == report["expected"]
    if fault.check == "layer.isolated":  # isolated, nobody but the guilty is blamed
        blamed = {op_of(finding["where"]) for finding in result["findings"]}
        assert blamed == {fault.where} | fault.also
