"""What a person sees: narrow windows, pipes, no colour, Ctrl-C; and the words of a failure."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from installed import needs
from started import started

from gander.conformance.results import Status
from gander.reports import read_result

GANDER = [sys.executable, "-m", "gander"]
ESCAPE = "\x1b"


@pytest.fixture
def broken_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The fast engine with the commonest fault of real ports: GroupNorm's epsilon."""
    (tmp_path / "broken.py").write_text("""
from dataclasses import replace
from gander.optimized import Engine as Optimized

class Engine(Optimized):
    def load(self, checkpoint):
        super().load(replace(checkpoint, config=replace(checkpoint.config, group_norm_eps=1e-5)))
""")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)  # where the replay files go
    return "py:broken:Engine"


def test_a_failure_reads_like_this(gander: Callable, broken_engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where, how much, what it means, and how to see it again."""
    monkeypatch.setenv("COLUMNS", "100")
    typed = gander("check", "-m", "golden:adversarial", "-e", broken_engine, "--only", "layer.isolated")
    assert typed.status == 1
    lines = [line.rstrip() for line in typed.out.splitlines()]
    at = lines.index("FAIL  blocks.0.att.norm · token 0 · path prefill")
    assert re.fullmatch(
        r"      max \|Δ\| \d\.\de[+-]\d\d, bound \d\.\de[+-]\d\d \(\S+×\), isolated: its inputs agree", lines[at + 1]
    )
    assert lines[at + 2] == "      likely: GroupNorm eps 1e-5 instead of 64e-5 (explains 99.9 % of the difference)"
    assert re.fullmatch(r"      replay: gander check --replay \.gander/replays/[0-9a-f]{8}\.json", lines[at + 3])
    assert re.fullmatch(r"FAIL  compared 444/444 tensors in \d+\.\d s", lines[-1])
    # The fault is in one formula of each block: isolated, nothing else is blamed.
    blamed = {line.split()[1].split(".", 2)[-1] for line in lines if line.startswith("FAIL  blocks")}
    assert blamed == {"att.norm"}


def test_what_is_shown_in_full_is_the_formula(gander: Callable, broken_engine: str) -> None:
    """Of all checks that one fault fails, the report shows the one that names it; the whole model's come in a line."""
    typed = gander("check", "-m", "golden:narrow", "-e", broken_engine, "--skip", "path", "--brief")
    full, also = typed.out.split("Also failing")
    assert re.findall(r"^FAIL  (\S+)", full, re.MULTILINE)[0] == "blocks.0.att.norm"
    assert "--only layer.isolated" in full
    assert re.findall(r"^ +([a-z]+\.[a-z]+): ", also, re.MULTILINE)[:2] == ["layer.cumulative", "layer.weights"]


@pytest.mark.parametrize("columns", ["60", "100"])
def test_no_line_but_the_command_is_wider_than_the_window(
    gander: Callable, broken_engine: str, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    typed = gander("check", "-m", "golden:narrow", "-e", broken_engine, "--only", "layer", "--only", "golden")
    wide = [line for line in typed.out.splitlines() if len(line.rstrip()) > int(columns) and "replay:" not in line]
    assert typed.status == 1
    assert not wide
    assert ESCAPE not in typed.out


@pytest.mark.parametrize("words", [("check", "-m", "golden:narrow", "--only", "path"), ("check", "--list")])
def test_a_closed_pipe_is_no_verdict(words: tuple[str, ...]) -> None:
    """`gander check | head -1` must not end like an engine that failed."""
    command = subprocess.Popen([*GANDER, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert command.stdout is not None
    command.stdout.close()
    assert command.wait(timeout=120) not in (0, 1, 2)
    assert command.stderr is not None
    assert b"Traceback" not in command.stderr.read()


def test_ctrl_c_ends_with_one_word(tmp_path: Path) -> None:
    """And leaves nothing behind."""
    command = started(
        [*GANDER, "golden", "make", "-m", "random:0.1B", "-t", "1,2,3", "-o", "made"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(6)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 130, err
    assert (out, err.strip()) == ("", "stopped")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("resumed", [False, True])
def test_ctrl_c_leaves_what_a_check_found_by_then(resumed: bool, tmp_path: Path) -> None:
    """A result that is marked incomplete and holds every check; and with --resume, a file to go on from."""
    (tmp_path / "slow.py").write_text(SLOW)
    options = ["--only", "load", "--only", "layer.isolated", "--only", "golden", "--out", "result.json"]
    options += ["--resume", "done.jsonl"] if resumed else []
    words = [*GANDER, "check", "-m", "golden:narrow", "-m", "golden:vocab", "-e", "py:slow:Slow", *options]
    command = started(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "slow.txt")  # it is asked for a whole text, which will take an hour
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 130, err
    assert "stopped before the end" in out
    assert "Traceback" not in err
    assert f"stopped: {'the same command' if resumed else 'begun with --resume FILE, it'} would go on from here" in err
    report = read_result(tmp_path / "result.json")
    assert (report.stopped, report.status) == (True, Status.INCOMPLETE)
    statuses = [{check.id: check.status for check in model.checks} for model in report.models]
    done = {"load.census", "load.engine"}
    assert [{id for id, status in of.items() if status is Status.PASS} for of in statuses] == [done, set()]
    golden = {"golden.taps", "golden.logits", "golden.state", "golden.tokens"}
    assert all(of.keys() == done | golden | {"layer.isolated"} for of in statuses)
    if resumed:
        lines = (tmp_path / "done.jsonl").read_text().splitlines()
        assert [json.loads(line)["case"] for line in lines[1:]] == [
            "load.census golden:narrow",
            "load.engine golden:narrow",
        ]


@needs("distributed")
def test_ctrl_c_ends_workers_without_a_word_of_theirs(tmp_path: Path) -> None:
    """A terminal sends it to every process."""
    (tmp_path / "slow.py").write_text(SLOW)
    words = ["check", "-m", "golden:narrow", "-e", "py:slow:Slow", "--workers", "2", "--out", "result.json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = started([*GANDER, *words], cwd=tmp_path, start_new_session=True, text=True, **pipes)
    wait_for(tmp_path / "slow.txt")
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 130, err
    assert err.strip() == "stopped: begun with --resume FILE, it would go on from here"
    assert read_result(tmp_path / "result.json").stopped


def wait_for(file: Path) -> None:
    """Until an engine has written it."""
    for _ in range(600):
        if file.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{file} did not come")


SLOW = """
import pathlib, time
from gander.optimized import Engine

class Slow(Engine):
    def forward(self, tokens, state, *, taps=None):
        if len(tokens) > 1:
            pathlib.Path("slow.txt").touch()
            time.sleep(3600)
        return super().forward(tokens, state, taps=taps)
"""


def test_a_check_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    run = subprocess.run(
        [*GANDER, "check", "-m", "golden:narrow", "--only", "op.gate"],
        cwd=tmp_path,
        env={**os.environ, "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert ESCAPE not in run.stdout + run.stderr
    assert not list(tmp_path.iterdir())


def test_help_needs_no_torch() -> None:
    """It answers at once."""
    code = (
        "import sys; sys.argv = ['gander', 'check', '--help']\n"
        "from gander.cli import main\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "Exit status: 0 conformant, 1 not, 2 incomplete" in run.stdout
