"""A three-line test file in someone else's folder: one test a check, with the command's ids."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

THREE_LINES = """\
from gander import run_conformance

test_port = run_conformance("reference", models=["golden:narrow"], only=["op.gate", "op.decay", "load"])
"""
ENGINE = """\
from gander.conformance.adapters.reference import Engine as Right

class Engine(Right):
    capabilities = Right.capabilities - {"apply"}
    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps) * 1.01
"""
WRONG = """\
from gander import run_conformance
from port import Engine

test_port = run_conformance(Engine, models=["golden:narrow"], only=["golden.logits", "op.gate"])
test_known = run_conformance(Engine, models=["golden:narrow"], only=["golden.logits"], xfail={"golden": "our issue 12"})
test_passes = run_conformance("reference", models=["golden:narrow"], only=["load"], xfail={"load.engine": "mended"})
"""


def outside(folder: Path, *options: str) -> str:
    """What pytest prints in that folder."""
    typed = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(typed, cwd=folder, capture_output=True, text=True, timeout=300).stdout


def verdicts(printed: str) -> dict[str, str]:
    """By test id, of `pytest -v`."""
    pattern = r"(?:^|\] )(?:(PASSED|FAILED|SKIPPED|XFAIL) )?(test_\S+)(?: (PASSED|FAILED|SKIPPED|XFAIL))?"
    found = re.findall(pattern, printed, re.MULTILINE)
    return {id: before or after for before, id, after in found if before or after}


@pytest.mark.parametrize("options", [("-v",), ("-v", "-n", "2")], ids=["alone", "two processes"])
def test_one_test_a_check(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_port.py").write_text(THREE_LINES)
    ids = ("load.census", "load.engine", "op.decay", "op.gate")
    expected = {f"test_port.py::test_port::golden:narrow::{id}": "PASSED" for id in ids}
    assert verdicts(outside(tmp_path, *options)) == expected


def test_a_failure_reads_as_the_commands_does(tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(ENGINE)
    (tmp_path / "test_port.py").write_text(WRONG)
    printed = outside(tmp_path, "-v")
    assert verdicts(printed) == {
        "test_port.py::test_port::golden:narrow::op.gate": "SKIPPED",
        "test_port.py::test_port::golden:narrow::golden.logits": "FAILED",
        "test_port.py::test_known::golden:narrow::golden.logits": "XFAIL",
        "test_port.py::test_passes::golden:narrow::load.census": "PASSED",
        "test_port.py::test_passes::golden:narrow::load.engine": "FAILED",
    }
    assert "FAIL  logits · token 0 · path traces/narrow.taps.safetensors" in printed
    assert "Traceback" not in printed
    assert "the engine does not offer apply" in outside(tmp_path, "-rs")


def test_a_typo_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_port.py").write_text(THREE_LINES.replace("op.gate", "op.gait"))
    assert "no check 'op.gait'" in outside(tmp_path)
