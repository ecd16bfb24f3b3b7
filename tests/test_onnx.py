"""ONNX: what the graph takes and gives, what is refused; and the graph as an engine, right and broken."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made import HYBRID, NARROW, WIDE, model

from gander.checkpoint import write_onnx
from gander.errors import InputError
from gander.golden import open_model

pytestmark = pytest.mark.usefixtures("one_thread")

onnx = pytest.importorskip("onnx", reason="PyPI onnx is not installed")
pytest.importorskip("onnxruntime", reason="PyPI onnxruntime is not installed")


def written(tmp_path: Path, checkpoint: object) -> object:
    """The graph of a model, checked by the package, shapes and types of every value included."""
    write_onnx(checkpoint, tmp_path / "m.onnx")
    graph = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(graph, full_check=True)
    return graph


def described(values: object) -> dict[str, tuple[int, ...]]:
    return {each.name: tuple(axis.dim_value for axis in each.type.tensor_type.shape.dim) for each in values}


@pytest.mark.parametrize("config", [WIDE, NARROW], ids=["N64", "N32"])
def test_what_the_graph_takes_and_gives(tmp_path: Path, config: object) -> None:
    made = written(tmp_path, model(config))
    state = {tensor.name: tensor.shape(config.dims) for tensor in config.state}
    assert described(made.graph.input) == {"token": (), **state}
    assert described(made.graph.output) == {
        "logits": (config.vocab,),
        **{f"next.{name}": shape for name, shape in state.items()},
    }


def test_every_weight_is_an_initializer_and_every_tap_a_value(tmp_path: Path) -> None:
    start = model(unused=True)
    graph = written(tmp_path, start).graph
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    for name, want in start.weights(np.float32).items():
        assert np.array_equal(stored[name], want), name
    assert not any(name.startswith("blocks.0.att.v") and name[-1] in "012" for name in stored)
    computed = {name for node in graph.node for name in node.output}
    assert {tap.name for tap in WIDE.taps} <= computed


def test_the_same_model_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        write_onnx(model(), tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert {each.key: each.value for each in onnx.load(tmp_path / "a.onnx").metadata_props} == {
        "gander.model": model().fingerprint()
    }


@pytest.mark.parametrize(
    ("config", "name", "message"),
    [
        (HYBRID, "m.onnx", "its 2 attention blocks would be lost"),
        (WIDE, "m.bin", "of no known kind"),
        (WIDE, "no/m.onnx", "no such folder"),
        (WIDE, "there.onnx", "exists"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, config: object, name: str, message: str) -> None:
    (tmp_path / "there.onnx").write_bytes(b"kept")
    with pytest.raises(InputError, match=message):
        write_onnx(model(config), tmp_path / name)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("there.onnx", b"kept")]


def test_a_model_beyond_one_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gander.checkpoint.onnx.LIMIT", 2**24 + 1)
    with pytest.raises(InputError, match=r"the model has 0\.0 GiB in float32\n  expected: 2 GiB at most"):
        write_onnx(model(), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, gander: Callable) -> None:
    target = tmp_path / "m.onnx"
    typed = gander("convert", "golden:narrow", target, "--to", "onnx")
    assert (typed.status, typed.err, typed.out) == (0, "", f"golden:narrow → {target} (onnx)\n")
    assert len(onnx.load(target).graph.input) == 1 + 3 * open_model("golden:narrow").config.layers
    typed = gander("convert", "golden:narrow", target, "--to", "onnx")
    assert (typed.status, "(--force)" in typed.err) == (2, True)


def checked(gander: Callable, model: str, *ids: str) -> tuple[int, dict[str, dict]]:
    """Exit status, and what each check says."""
    words = [word for id in ids for word in ("--only", id)]
    typed = gander("check", "-m", model, "-e", "onnx", "--json", "--brief", *words)
    return typed.status, {each["id"]: each for each in json.loads(typed.out)["models"][0]["checks"]}


def test_it_passes_what_it_claims(gander: Callable) -> None:
    status, checks = checked(gander, "golden:narrow", "load", "layer", "golden", "path.split", "path.snapshot")
    assert {id: each["status"] for id, each in checks.items() if each["status"] != "PASS"} == {}
    assert (status, len(checks)) == (0, 11)


@pytest.mark.parametrize("name", ["adversarial", "vocab"])
def test_the_other_golden_models(gander: Callable, name: str) -> None:
    """65536 rows, the last id among the tokens; a nearly constant head, a zero kk."""
    status, checks = checked(gander, f"golden:{name}", "load", "golden", "path.start")
    assert status == 0, checks


def eps(graph: object) -> None:
    put(graph, "number.0.00064", 1e-5)


def decay(graph: object) -> None:
    put(graph, "number.-0.6065306597126334", -0.6)


def stale(graph: object) -> None:
    (node,) = (node for node in graph.node if node.output[0] == "next.blocks.1.state.ffn_x")
    node.input[0] = "blocks.1.state.ffn_x"


def put(graph: object, name: str, value: float) -> None:
    """Another number in place of a constant."""
    (stored,) = (each for each in graph.initializer if each.name == name)
    stored.raw_data = np.float32(value).tobytes()


@pytest.mark.parametrize(
    ("fault", "check", "where"),
    [
        (eps, "layer.isolated", "blocks.0.att.norm"),
        (decay, "layer.isolated", "blocks.0.att.w"),
        (stale, "path.split", "blocks.1.state.ffn_x"),
    ],
)
def test_a_broken_graph_fails(
    gander: Callable, monkeypatch: pytest.MonkeyPatch, fault: Callable, check: str, where: str
) -> None:
    def broken(checkpoint: object, path: Path) -> None:
        write_onnx(checkpoint, path)
        made = onnx.load(path)
        fault(made.graph)
        path.write_bytes(made.SerializeToString())

    monkeypatch.setattr("gander.conformance.adapters.onnx.write_onnx", broken)
    status, checks = checked(gander, "golden:narrow", check)
    assert status == 1
    assert checks[check]["findings"][0]["where"] == where


def test_it_keeps_the_epsilons_of_the_model(tmp_path: Path) -> None:
    graph = written(tmp_path, replace(model(), config=replace(WIDE, layer_norm_eps=2e-5, group_norm_eps=3e-4))).graph
    assert {each.name for each in graph.initializer if each.name.startswith("number.")} == {
        f"number.{value!r}" for value in (2e-5, 3e-4, 1e-12, 1.0, -0.6065306597126334)
    }
