"""`gander check` when the request itself is wrong: one message that says how to mend it, and exit 2."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-e", "optimised"], "no engine 'optimised'\n  expected: did you mean 'optimized'"),
        (["-e", "py:nowhere"], "engine 'py:nowhere' is not complete\n  expected: py:MODULE:CLASS"),
        (["-e", "py:no_such_module:Engine", "-m", "golden:narrow"], "no module 'no_such_module'"),
        (["-e", "py:gander.traces:Engine", "-m", "golden:narrow"], "module 'gander.traces' has no 'Engine'"),
        (["--only", "path.splits"], "no check 'path.splits'\n  expected: did you mean 'path.split'"),
        (["--only", "layers"], "no check 'layers'\n  expected: did you mean 'layer'"),
        (["--only", "path", "--skip", "path"], "--only and --skip leave no check"),
        (["-m", "golden:adversaria"], "'adversaria'\n  expected: did you mean 'adversarial'?"),
        (["-m", "no/such/file.pth"], "no/such/file.pth"),
        (["-m", "golden:narrow", "--golden", "no/such/folder"], "cannot read no/such/folder/manifest.json"),
        (["-m", "random:0.1B", "--only", "golden"], "none of these checks can be asked of these models"),
        (["--dtype", "float8"], "'float8' is not one of"),
        (["--attention", "ful"], "no attention policy is called 'ful'"),
        (["--attention", "capped:length=0"], "attention capped: length is 0\n  expected: at least 1"),
        (["--attention", "moba:chunk=0"], "attention moba: chunk is 0\n  expected: at least 1"),
        (["--attention", "moba:top_k=0"], "attention moba: top_k is 0\n  expected: at least 1"),
        (["-m", "golden:hybrid", "--attention", "memory"], "does not run the attention policy 'memory'"),
        (["-m", "golden:hybrid", "--attention", "capped:length=40,full=refuse"], "a length of at least 319"),
        (["-e", "rwkv", "--attention", "moba"], "engine 'rwkv' has no choice of attention"),
        (["-e", "rwkv", "--quantize"], "engine 'rwkv' has no choice of quantize"),
        (["-m", "golden:narrow", "--only", "int8"], "none of these checks can be asked of these models"),
        (["-m", "golden:narrow", "--only", "path.refuse"], "none of these checks can be asked of these models"),
        (["--seed", "-1"], "-1"),
    ],
)
def test_wrong_request(gander: Callable, arguments: list[str], message: str) -> None:
    typed = gander("check", *arguments)
    assert typed.status == 2
    assert message in typed.err
    assert typed.out == ""
    assert "Traceback" not in typed.err


def test_unknown_command(gander: Callable) -> None:
    typed = gander("chekc")
    assert typed.status == 2
    assert "did you mean 'check'?" in typed.err


def test_golden_folder_of_another_model(gander: Callable, tmp_path: Path) -> None:
    made = gander("golden", "make", "--model", "golden:narrow", "--tokens", "1,2,3", "--out", tmp_path / "stored")
    assert made.status == 0, made.err
    typed = gander("check", "-m", "golden:adversarial", "--golden", tmp_path / "stored")
    assert typed.status == 2
    assert "has no traces of golden:adversarial" in typed.err


def test_list_names_every_check_once(gander: Callable) -> None:
    typed = gander("check", "--list")
    ids = [line.split()[0] for line in typed.out.splitlines()]
    assert typed.status == 0
    assert len(ids) == len(set(ids)) > 30
    assert {id.split(".")[0] for id in ids} == {"load", "op", "int8", "layer", "golden", "path"}


def test_a_stored_trace_that_was_changed_is_incomplete(gander: Callable, tmp_path: Path) -> None:
    """One flipped byte in a trace that the user made: it is no longer the evidence that the manifest means."""
    folder = tmp_path / "stored"
    gander("golden", "make", "--model", "golden:narrow", "--tokens", "5,6,7", "--out", folder)
    options = ["check", "-m", "golden:narrow", "--golden", folder, "--only", "golden"]
    assert gander(*options).status == 0
    (trace,) = folder.glob("**/*.safetensors")
    content = bytearray(trace.read_bytes())
    content[-1] ^= 0x40
    trace.write_bytes(content)
    typed = gander(*options)
    assert typed.status == 2
    assert "INCOMPLETE" in typed.out
    trace.unlink()
    assert gander(*options).status == 2
