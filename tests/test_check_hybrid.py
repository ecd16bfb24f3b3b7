"""`gander check` on an RWKV-X: every policy that the fast engine runs, and what an engine may lack or get wrong."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from gander.conformance.adapters.factory import engine_factory
from gander.conformance.mode import Mode
from gander.conformance.registry import CHECKS
from gander.conformance.runner import run
from gander.errors import InputError
from gander.golden import open_model, read_manifest
from gander.traces import parse_attention

CHECKED = ("load", "layer.isolated", "golden", "path.split", "path.start", "path.snapshot")
REFUSING = "capped:length=400,full=refuse"
STORED = {trace.attention for model in read_manifest().models if model.name == "hybrid" for trace in model.traces}


def verdicts(typed) -> dict[str, str]:
    return {check["id"]: check["status"] for check in json.loads(typed.out)["models"][0]["checks"]}


def test_the_whole_check_passes(gander: Callable) -> None:
    typed = gander("check", "-m", "golden:hybrid", "--json")
    assert typed.status == 0, typed.out
    assert {id.split(".")[0] for id in verdicts(typed)} == {"load", "op", "layer", "golden", "path"}


@pytest.mark.parametrize("attention", sorted(STORED - {"dense", "memory:tokens=12"}))
def test_every_policy_passes(gander: Callable, attention: str) -> None:
    checks = [word for check in CHECKED for word in ("--only", check)]
    typed = gander("check", "-m", "golden:hybrid", "--attention", attention, *checks, "--json")
    assert typed.status == 0, typed.out
    found = verdicts(typed)
    assert {"layer.isolated", "golden.logits", "path.split", "path.start"} <= found.keys()


def test_a_full_cache_refuses(gander: Callable) -> None:
    typed = gander("check", "-m", "golden:hybrid", "--attention", REFUSING, "--only", "path.refuse", "--json")
    assert typed.status == 0 and verdicts(typed) == {"path.refuse": "PASS"}


@pytest.mark.parametrize("attention", ["dense", "moba:chunk=8,top_k=2"])
def test_in_int8_too(gander: Callable, attention: str) -> None:
    checks = [word for check in ("int8", "layer", "path.start") for word in ("--only", check)]
    typed = gander("check", "-m", "golden:hybrid", "--quantize", "--attention", attention, *checks, "--json")
    assert typed.status == 0, typed.out
    found = verdicts(typed)
    assert {"int8.codes", "int8.sums", "int8.projections", "int8.cost", "layer.isolated", "path.start"} <= found.keys()
    assert not any(id.startswith("golden.") for id in found)  # stored traces are of the model as it is


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits_too(gander: Callable, dtype: str) -> None:
    typed = gander(
        "check", "-m", "golden:hybrid", "--dtype", dtype, "--only", "layer", "--only", "golden", "--only", "path.start"
    )
    assert typed.status == 0, typed.out


def test_the_reference_runs_what_the_fast_engine_does_not(gander: Callable) -> None:
    checks = ("--only", "golden", "--only", "path.split", "--json")
    typed = gander("check", "-m", "golden:hybrid", "-e", "reference", "--attention", "memory:tokens=12", *checks)
    assert typed.status == 0, typed.out
    assert "no split equals one call" in typed.out


def test_an_engine_of_rwkv_7_only_is_incomplete(gander: Callable) -> None:
    typed = gander("check", "-m", "golden:hybrid", "-e", "rwkv", "--only", "path.length")
    assert typed.status == 2
    assert "the engine does not offer 'attention'" in " ".join(typed.out.split())


def report_on(checkpoint, *only: str, engine: str = "optimized", attention: str = "dense"):
    """A run of these checks on a checkpoint in memory."""
    mode = Mode(parse_attention(attention))
    make = engine_factory(engine, mode=mode)
    return run(make, [("made", checkpoint, None)], [CHECKS[id] for id in only], command="gander check", mode=mode)


@pytest.mark.parametrize("name", ["blocks.0.att.g3", "moba.1.att.bias"])
def test_a_tensor_that_the_model_does_not_use_is_found(name: str) -> None:
    checkpoint = open_model("golden:hybrid")
    spare = replace(checkpoint, tensors={**checkpoint.tensors, name: torch.ones(128)})
    report = report_on(spare, "load.census")
    (check,) = report.models[0].checks
    assert report.status == "FAIL" and [finding.where for finding in check.findings] == [name]


def test_a_model_whose_last_blocks_are_never_run_passes() -> None:
    """Five blocks and two of attention: block 4 is in the file, and nothing else."""
    checkpoint = open_model("golden:hybrid")
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("blocks.5.")}
    uneven = replace(checkpoint, config=replace(checkpoint.config, layers=5), tensors=tensors)
    assert uneven.config.skipped == ["blocks.4"]
    report = report_on(uneven, "load.census", "load.engine", "layer.isolated", "path.length")
    assert report.status == "PASS", report


def test_a_state_of_another_model_is_refused(gander: Callable) -> None:
    engine = engine_factory("optimized")()
    engine.load(open_model("golden:hybrid"))
    other = engine_factory("optimized")()
    other.load(open_model("golden:narrow"))
    before = engine.export_state(engine.initial_state())
    with pytest.raises(InputError, match="the state has no tensor 'moba"):
        other.import_state(before)
    with pytest.raises(InputError, match="blocks"):
        engine.import_state(other.export_state(other.initial_state()))
    uneven = {**before, "moba.0.state.k": np.zeros((3, 128), np.float32)}  # and no rows anywhere else
    with pytest.raises(InputError, match=r"moba\.0\.state\.v|moba\.1\.state\.k"):
        engine.import_state(uneven)


def test_traces_know_their_policy(gander: Callable, tmp_path) -> None:
    def trace(name: str, *options: str):
        path = tmp_path / f"{name}.safetensors"
        tokens = ",".join(map(str, range(20)))
        typed = gander("trace", "-m", "golden:hybrid", "-t", tokens, "-o", path, *options)
        assert typed.status == 0, typed.err
        return path

    moba = ("--attention", "moba:chunk=4,top_k=2")
    reference, fast = trace("reference", *moba), trace("fast", *moba, "-e", "optimized", "--path", "split:7+13")
    assert gander("diff", reference, fast).status == 0
    dense = trace("dense", "-e", "optimized")
    typed = gander("diff", reference, dense)
    assert typed.status == 2 and "moba:chunk=4,top_k=2 and dense" in typed.err
    quantised = trace("int8", *moba, "-e", "optimized", "--quantize")
    assert gander("diff", reference, quantised).status == 1  # it shows what INT8 changes
