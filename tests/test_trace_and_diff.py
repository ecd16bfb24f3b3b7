"""`gander trace` and `gander diff`: what an engine showed, and where two of them part."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gander.traces import Trace, read, write

TOKENS = "0,511,7,7,300,2"


@pytest.fixture
def traced(gander: Callable, tmp_path: Path) -> Callable[..., Path]:
    """`gander trace` of golden:narrow; the file."""

    def run(name: str, *options: str) -> Path:
        path = tmp_path / f"{name}.safetensors"
        typed = gander("trace", "-m", "golden:narrow", "-t", TOKENS, "-o", path, *options)
        assert typed.status == 0, typed.err
        return path

    return run


def edited(path: Path, edit: Callable[[Trace], Trace]) -> Path:
    """A copy of a trace with one thing changed."""
    target = path.with_stem(path.stem + "-edited")
    write(target, edit(read(path)))
    return target


def with_tensor(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Trace], Trace]:
    return lambda trace: replace(trace, tensors={**trace.tensors, name: change(trace.tensors[name].copy())})


def test_engines_agree(gander: Callable, traced: Callable) -> None:
    typed = gander("diff", traced("reference"), traced("fast", "-e", "optimized", "--path", "split:2+1+3"))
    assert typed.status == 0
    assert typed.out.rstrip().endswith("PASS")


def test_16_bits_are_measured_by_their_own_tolerance(gander: Callable, traced: Callable) -> None:
    reference, half = traced("reference"), traced("half", "-e", "optimized", "--dtype", "bfloat16")
    assert gander("diff", reference, half).status == 0
    assert gander("diff", reference, half, "--tolerance", "1e-4").status == 1


def test_the_first_divergence_is_marked_in_execution_order(gander: Callable, traced: Callable) -> None:
    """Not the largest, not the first by name: the first that was computed."""

    def spoil(value: np.ndarray) -> np.ndarray:
        value[3, 1] += 0.01
        return value

    path = traced("reference")
    later = edited(path, with_tensor("blocks.1.att.out", lambda value: value + 1))
    both = edited(later, with_tensor("blocks.1.att.wkv", spoil))
    typed = gander("diff", path, both)
    assert typed.status == 1
    assert "FAIL  blocks.1.att.wkv · token 3: max |Δ| 1.0e-02" in typed.out
    (marked,) = (line for line in typed.out.splitlines() if "first divergence" in line)
    assert marked.split()[0] == "blocks.1.att.wkv"
    names = [line.split()[0] for line in typed.out.splitlines() if line.startswith("blocks.1.att")]
    assert names.index("blocks.1.att.xr") < names.index("blocks.1.att.wkv") < names.index("blocks.1.att.out")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_are_divergences(gander: Callable, traced: Callable, value: float) -> None:
    def spoil(array: np.ndarray) -> np.ndarray:
        array[2, 5] = value
        return array

    path = traced("reference")
    spoilt = edited(path, with_tensor("ln_out", spoil))
    typed = gander("diff", path, spoilt)
    assert typed.status == 1
    assert "FAIL  ln_out · token 2" in typed.out
    assert json.loads(gander("diff", path, spoilt, "--json").out)["first"] == "ln_out"


def test_a_transposed_state_is_found(gander: Callable, traced: Callable) -> None:
    path = traced("reference", "--start", "random:3")
    turned = edited(path, with_tensor("blocks.0.state.wkv", lambda value: value.swapaxes(-1, -2).copy()))
    typed = gander("diff", path, turned)
    assert typed.status == 1
    assert "FAIL  blocks.0.state.wkv" in typed.out


def test_a_partial_trace_is_compared_as_far_as_it_goes(gander: Callable, traced: Callable) -> None:
    """Counted, and exit 2."""
    path = traced("reference")
    kept = ("blocks.0.att.w", "blocks.2.mid", "logits")
    part = edited(path, lambda trace: replace(trace, tensors={name: trace.tensors[name] for name in kept}))
    typed = gander("diff", path, part)
    assert typed.status == 2
    total = len(read(path).tensors)
    assert f"compared 3/{total} tensors, 6 tokens" in typed.out
    assert "INCOMPLETE" in typed.out
    assert json.loads(gander("diff", path, part, "--json").out)["partial"] is True


def test_a_divergence_in_a_partial_trace_is_a_failure(gander: Callable, traced: Callable) -> None:
    path = traced("reference")
    part = edited(path, lambda trace: replace(trace, tensors={"ln_out": trace.tensors["ln_out"] * 2}))
    assert gander("diff", path, part).status == 1


def test_a_shorter_text_is_compared_as_far_as_it_goes(gander: Callable, traced: Callable, tmp_path: Path) -> None:
    path, short = traced("reference"), tmp_path / "short.safetensors"
    assert gander("trace", "-m", "golden:narrow", "-t", "0,511,7", "-o", short).status == 0
    typed = gander("diff", path, short)
    assert typed.status == 2
    assert "texts of 6 and 3 tokens: their states are not compared" in typed.out


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda trace: replace(trace, model="0" * 64), "the traces are of different models"),
        (lambda trace: replace(trace, tokens=(0, 511, 8, 7, 300, 2)), "token 2 is 7 and 8"),
        (lambda trace: replace(trace, start="random:9"), "start from different states: 'zero' and 'random:9'"),
    ],
)
def test_traces_that_cannot_be_compared(
    gander: Callable, traced: Callable, edit: Callable[[Trace], Trace], message: str
) -> None:
    path = traced("reference")
    typed = gander("diff", path, edited(path, edit))
    assert (typed.status, typed.out) == (2, "")
    assert message in typed.err


def test_a_newer_schema_is_refused(gander: Callable, traced: Callable) -> None:
    path = traced("reference")
    newer = path.with_name("newer.safetensors")
    newer.write_bytes(path.read_bytes().replace(b'"gander.schema": "1"', b'"gander.schema": "2"'))
    typed = gander("diff", path, newer)
    assert typed.status == 2
    assert "written by a newer gander (schema 2, this one reads 1)" in typed.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-t", ""], "no tokens given"),
        (["-t", "1,-1"], "token 1 is -1"),
        (["-t", "1,512"], "token 1 is 512\n  expected: 0 to 511"),
        (["-t", "1,x"], "token 1 is 'x', not a whole number"),
        (["-t", "1,1.5"], "token 1 is '1.5', not a whole number"),
        (["-t", "@no-such-file"], "cannot read the tokens in no-such-file"),
        (["-t", "1,2", "--path", "split:1+2"], "path 'split:1+2' cuts 3 tokens\n  expected: the 2 tokens given"),
        (["-t", "1,2", "--path", "sideways"], "path 'sideways' is unknown"),
        (["-t", "1,2", "--start", "random"], "start 'random' is unknown"),
        (["-t", "1,2", "-e", "slow"], "no engine 'slow'"),
        (["-t", "1,2", "-m", "golden:wide"], "'wide'"),
    ],
)
def test_a_wrong_request_writes_nothing(gander: Callable, tmp_path: Path, options: list[str], message: str) -> None:
    target = tmp_path / "trace.safetensors"
    typed = gander("trace", "-m", "golden:narrow", "-o", target, *options)
    assert (typed.status, typed.out) == (2, "")
    assert message in typed.err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_trace_is_kept(gander: Callable, traced: Callable) -> None:
    path = traced("reference")
    before = path.read_bytes()
    arguments = ("trace", "-m", "golden:narrow", "-t", "1", "-o", path)
    assert gander(*arguments).status == 2
    assert path.read_bytes() == before
    assert gander(*arguments, "--force").status == 0
    assert read(path).tokens == (1,)


def test_the_table_fits_a_narrow_terminal(gander: Callable, traced: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fast = traced("reference"), traced("fast", "-e", "optimized")
    monkeypatch.setenv("COLUMNS", "60")
    typed = gander("diff", path, fast)
    assert max(map(len, typed.out.splitlines())) <= 60
    assert "blocks.2.state.wkv" in typed.out
