"""Engines that are programs: an honest one shows what it shows in Python, and what a broken one does is named."""

import gc
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from started import started

from gander.conformance.adapters.command import Engine
from gander.conformance.guard import EngineFault
from gander.golden import open_model

HERE = Path(__file__).parent


def running(tag: str) -> list[str]:
    """The processes that were started with a tag."""
    lines = subprocess.run(
        ["ps", "-ewwo", "pid,stat,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line for line in lines if tag in line and "served.py" in line]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """The spec of tests/served.py with some arguments; at the end, no process of it is left and no file."""
    tag, folder = f"tag-{os.getpid()}-{tmp_path.name}", tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield lambda *words: "cmd:" + shlex.join([sys.executable, str(HERE / "served.py"), "--tag", tag, *words])
    gc.collect()
    assert not running(tag)
    assert not [path for path in folder.iterdir() if "hypothesis" not in path.name]


@pytest.fixture
def check(gander: Callable, served: Callable) -> Callable:
    """`gander check --json` of a served engine on golden:narrow: verdicts and findings by check, the exit status."""

    def run(*words: str, only: str, options: str = "") -> tuple[dict, dict, int]:
        only_words = [word for id in only.split() for word in ("--only", id)]
        typed = gander(
            "check", "-m", "golden:narrow", "-e", served(*words), "--json", "--brief", *only_words, *options.split()
        )
        assert "Traceback" not in typed.err
        checks = json.loads(typed.out)["models"][0]["checks"]
        return {c["id"]: c["status"] for c in checks}, {c["id"]: c["findings"] for c in checks}, typed.status

    return run


# --- an honest engine --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "only", "status"),
    [
        ("optimized", "load op.embedding layer.isolated golden path.start path.batch path.snapshot path.threads", 0),
        ("reference", "load golden.taps path.chunk path.snapshot", 2),  # it has no chunk
    ],
)
def test_an_honest_program_passes_as_in_python(
    gander: Callable, check: Callable, engine: str, only: str, status: int
) -> None:
    """The same verdicts, the same exit status."""
    words = [word for id in only.split() for word in ("--only", id)]
    in_python = gander("check", "-m", "golden:narrow", "-e", engine, "--json", "--brief", *words)
    verdicts, findings, status_there = check("--engine", engine, only=only)
    assert verdicts == {c["id"]: c["status"] for c in json.loads(in_python.out)["models"][0]["checks"]}
    assert status_there == in_python.status == status, findings


def test_values_cross_exactly(served: Callable) -> None:
    """Every bit of float32 and of float64, NaN and what is subnormal among them."""
    engine, random = Engine(served("--engine", "blank")), np.random.default_rng(0)
    engine.load(open_model("golden:narrow"))
    given = {
        "narrow": random.integers(0, 2**32, 10000, np.uint32).view(np.float32),
        "special": np.array([[0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3.4e38]], np.float32),
        "wide": random.standard_normal((2, 3, 5)),
        "empty": np.zeros((0, 4), np.float32),
    }
    back = engine.export_state(engine.import_state(given))
    assert back.keys() == given.keys()
    for name, value in given.items():
        assert (back[name].dtype, back[name].shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(back[name], value)
        np.testing.assert_array_equal(np.signbit(back[name]), np.signbit(value))
    engine.close()


def test_a_dtype_is_asked_for(check: Callable) -> None:
    verdicts, _, status = check(only="load golden.logits", options="--dtype bfloat16")
    assert (set(verdicts.values()), status) == ({"PASS"}, 0)


def test_attention_and_int8_are_asked_for(gander: Callable, served: Callable) -> None:
    policy = ("--attention", "moba:chunk=8,top_k=2")
    typed = gander("check", "-m", "golden:hybrid", "-e", served(), "--only", "golden.logits", "--only", "load", *policy)
    assert typed.status == 0, typed.out
    typed = gander(
        "check", "-m", "golden:narrow", "-e", served(), "--only", "int8.sums", "--only", "path.batch", "--quantize"
    )
    assert typed.status == 0, typed.out


def test_trace_and_generate(gander: Callable, served: Callable, tmp_path: Path) -> None:
    """The trace is that of the engine in Python; `gander diff` says so."""
    for name, engine in (("a", "optimized"), ("b", served())):
        typed = gander("trace", "-m", "golden:narrow", "-t", "1,2,3", "-e", engine, "-o", tmp_path / name)
        assert typed.status == 0, typed.err
    assert gander("diff", tmp_path / "a", tmp_path / "b", "--tolerance", "0").status == 0
    typed = gander("generate", "-m", "golden:vocab", "-n", "1", "-e", served("--engine", "blank"))
    assert typed.status == 0, typed.err


def test_until_asks_for_no_more(check: Callable) -> None:
    """A port that has only its embedding."""
    words = ("--known", "emb")
    verdicts, _, status = check(*words, only="layer.cumulative", options="--until emb")
    assert (verdicts, status) == ({"layer.cumulative": "PASS"}, 0)
    _, findings, status = check(*words, only="layer.cumulative", options="--until blocks.0.att.in")
    assert (findings["layer.cumulative"][0]["where"], status) == ("blocks.0.att.in", 2)


# --- broken ones -------------------------------------------------------------------------------------------------

SPLIT = "path.split path.repeat"
NAMED = [  # fault, what is checked, where it is found, what is said
    ("dies", SPLIT, "forward", "was not answered: the program ended with SIGSEGV"),
    ("exits", SPLIT, "forward", "was not answered: the program ended with exit status 7"),
    ("half-line", SPLIT, "forward", "ended with exit status 0, after half a line: '{\"sta'"),
    ("half-line-silent", SPLIT, "forward", "was not answered within 2 s (--timeout), after half a line: '{\"sta'"),
    ("sleeps", SPLIT, "forward", "was not answered within 2 s (--timeout)"),
    ("orphan", SPLIT, "forward", "was not answered: the program ended with exit status 9"),
    ("garbage", SPLIT, "forward", "was answered with 'loading the model ...', which is no JSON object"),
    ("not-an-object", SPLIT, "forward", "was answered with '[1, 2]', which is no JSON object"),
    ("flood", SPLIT, "forward", "was answered with a line of more than 1048576 bytes: 'xxx"),
    ("two-lines", SPLIT, "forward", "was "),  # by when they come: two lines, one too early, or no file yet
    ("half-file", SPLIT, "forward", "wrote a file that is no whole safetensors file"),
    ("no-file", SPLIT, "forward", "was answered, but the file 'out' was not written"),
    ("no-logits", SPLIT, "forward", "wrote no tensor 'logits'"),
    ("shape", SPLIT, "forward", "returned logits of shape (1, 512), but should return (3, 512)"),
    ("unknown-state", SPLIT, "forward", "was refused: KeyError: -1"),
    ("no-handle", "path.clone path.repeat", "clone", "was answered without a whole number 'state': {'state': 'seven'}"),
]


@pytest.mark.parametrize(("fault", "only", "where", "message"), NAMED, ids=[row[0] for row in NAMED])
def test_fault_is_named_and_the_run_goes_on(check: Callable, fault: str, only: str, where: str, message: str) -> None:
    verdicts, findings, status = check(
        "--engine", "blank", "--without", "state", fault, only=only, options="--timeout 2"
    )
    assert status == 1
    first, then = only.split()
    found = [finding for finding in findings[first] if message in finding["message"]]
    assert found and where in found[-1]["where"], findings[first][-1]
    assert verdicts == {first: "FAIL", then: "PASS"}


AT_ONCE = [
    ("exits-at-hello", "hello was not answered: the program ended with exit status 3"),
    ("silent-at-hello", "hello was not answered within 2 s (--timeout)"),
    ("other-protocol", "hello names protocol 2, but this gander has 1"),
    ("no-dtypes", "hello was answered without a list of names 'dtypes'"),
    ("unknown-capability", "claims an unknown capability 'tapes': did you mean 'taps'"),
    ("refuses-load", "was refused: no room"),
]


@pytest.mark.parametrize(("fault", "message"), AT_ONCE, ids=[row[0] for row in AT_ONCE])
def test_a_program_that_cannot_be_used_fails_once(check: Callable, fault: str, message: str) -> None:
    """load.engine says why; nothing else is run."""
    verdicts, findings, status = check("--engine", "blank", fault, only="path.repeat", options="--timeout 2")
    assert status == 1
    assert message in findings["load.engine"][0]["message"]
    assert verdicts["load.engine"] == "FAIL" and verdicts["path.repeat"] == "INCOMPLETE"


def test_what_repeats_a_failure_has_the_same_limits(gander: Callable, served: Callable) -> None:
    spec = served("--engine", "blank", "refuses-load")
    limits = ["--import-timeout", "9", "--timeout", "2.5"]
    typed = gander("check", "-m", "golden:narrow", "-e", spec, "--json", "--brief", "--only", "load.engine", *limits)
    result = json.loads(typed.out)["models"][0]["checks"][0]
    assert shlex.split(result["replay"]) == [
        *("gander", "check", "--engine", spec, *limits, "--model", "golden:narrow", "--only", "load.engine")
    ]


def test_death_in_an_op_is_no_other_ops(check: Callable) -> None:
    verdicts, findings, status = check("dies-in-apply", only="op.group_norm op.bonus layer.isolated")
    assert status == 1
    assert verdicts == {"op.group_norm": "FAIL", "op.bonus": "PASS", "layer.isolated": "PASS"}
    (finding,) = findings["op.group_norm"]
    assert finding["where"] == "apply('group_norm')"
    assert finding["message"] == "was not answered: the program ended with exit status 4"


def test_an_op_that_is_wrong_once(check: Callable) -> None:
    """What Hypothesis cannot find again is a finding all the same."""
    verdicts, findings, status = check("wrong-once", only="op.bonus op.gate_correction")
    assert status == 1
    assert verdicts == {"op.bonus": "FAIL", "op.gate_correction": "PASS"}
    assert "not always: asked again, the engine answered otherwise" in findings["op.bonus"][0]["hint"]


def test_a_line_that_nobody_asked_for(check: Callable) -> None:
    """With the answer, or found when the next question is asked."""
    _, findings, status = check("--engine", "blank", "chatters", only="path.repeat")
    assert status == 1
    assert any("'that went well" in each["message"] for found in findings.values() for each in found), findings


def test_nan(check: Callable) -> None:
    _, findings, status = check("nan", only="path.split")
    assert status == 1
    assert (findings["path.split"][0]["where"], findings["path.split"][0]["token"]) == ("logits", 1)
    assert findings["path.split"][0]["message"] == "is nan at channel 7"


def test_tap_of_wrong_shape(check: Callable) -> None:
    _, findings, status = check("tap-shape", only="layer.isolated")
    assert status == 1
    assert findings["layer.isolated"][0]["message"] == "has shape (130, 160), but should be (130, 5, 32)"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("closes-badly", "was answered, but the program ended with exit status 5"),
        ("stays", "was answered, but the program did not end within 2 s"),
    ],
)
def test_a_program_that_does_not_end_well_fails(check: Callable, fault: str, message: str) -> None:
    _, findings, status = check("--engine", "blank", fault, only="load.census", options="--timeout 2")
    assert status == 1
    assert findings["load.close"][0]["message"] == message


def test_states_of_a_dead_program_are_lost(served: Callable) -> None:
    engine = Engine(served("--engine", "blank", "dies"))
    engine.load(open_model("golden:narrow"))
    state = engine.initial_state()
    with pytest.raises(EngineFault, match="SIGSEGV"):
        engine.forward([1, 2, 3], state)
    with pytest.raises(EngineFault, match="needs a state that was lost when the program ended"):
        engine.forward([1], state)
    assert engine.forward([1], engine.initial_state()).shape == (1, 512)
    engine.close()


def test_dropped_states_are_released(served: Callable) -> None:
    """The served engine forgets what is released: an unknown handle would be refused."""
    engine = Engine(served("--engine", "blank"))
    engine.load(open_model("golden:narrow"))
    numbers = [engine.initial_state().number for _ in range(3)]
    assert numbers == [1, 2, 3]
    with pytest.raises(EngineFault, match="was refused: KeyError: 2"):
        engine._ask("clone", state=2)
    engine.close()


# --- requests that are wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("cmd:", "engine 'cmd:' names no program\n  expected: cmd:PROGRAM ARGUMENTS"),
        ("cmd:./no-such-engine --flag", "no program './no-such-engine'\n  expected: one on the PATH, or its path"),
        ("cmd:'./unclosed", "No closing quotation"),
        ("cmd:{plain}", "cannot be run: Permission denied\n  to mend:  chmod +x"),
        ("cmd:{script}", "cannot be run: Exec format error\n  expected: a program, or a script that begins with #!"),
    ],
)
@pytest.mark.parametrize("command", ["check", "trace"])
def test_no_such_program(gander: Callable, tmp_path: Path, command: str, engine: str, message: str) -> None:
    plain, script = tmp_path / "plain", tmp_path / "script"
    plain.write_text("")
    script.write_text("print(1)\n")
    script.chmod(0o755)
    options = ["-t", "1", "-o", tmp_path / "trace"] if command == "trace" else []
    typed = gander(command, "-m", "golden:narrow", "-e", engine.format(plain=plain, script=script), *options)
    assert typed.status == 2
    assert message in typed.err
    assert "Traceback" not in typed.err


def test_a_dtype_that_it_does_not_have(gander: Callable, served: Callable) -> None:
    typed = gander("check", "-m", "golden:narrow", "-e", served("--engine", "blank"), "--dtype", "float16")
    assert typed.status == 2
    assert "has no dtype 'float16'\n  expected: did you mean 'bfloat16'" in typed.err


def test_a_tap_that_there_is_not(gander: Callable) -> None:
    typed = gander("check", "-m", "golden:narrow", "--until", "blocks.0.att.kmod")
    assert typed.status == 2
    assert "no tap 'blocks.0.att.kmod' in this model\n  expected: did you mean 'blocks.0.att.k_mod'" in typed.err
    typed = gander("check", "-m", "golden:narrow", "--until", "emb", "--only", "path")
    assert "--until is for the layer checks alone" in typed.err


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_left_when_gander_is_stopped(
    served: Callable, tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    """In the middle of an answer that never comes."""
    spec = served("--engine", "blank", "sleeps")
    tag = shlex.split(spec)[3]
    folder = tmp_path / "its own"
    folder.mkdir()
    command = [sys.executable, "-m", "gander", "check", "-m", "golden:narrow", "-e", spec, "--only", "path.split"]
    gander = started(command, env={**os.environ, "TMPDIR": str(folder)}, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not list(folder.glob("gander-*/model.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    assert running(tag)
    gander.send_signal(sent)
    assert gander.wait(30) == status
    assert b"Traceback" not in gander.stderr.read()
    assert not running(tag)
    assert not list(folder.glob("gander-*/"))
