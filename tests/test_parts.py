"""A large model is checked a block at a time, in the memory of a block, and a broken one far back is found."""

import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gander.checkpoint import LAYER_0_UNUSED, Checkpoint, cut, entries_of, parts, write
from gander.checkpoint.census import census
from gander.checkpoint.names import block_of
from gander.checkpoint.schemes import SCHEMES
from gander.checkpoint.synthetic import synthesize
from gander.conformance import oracle
from gander.conformance.mode import PLAIN
from gander.conformance.oracle import Oracle
from gander.errors import InputError
from gander.golden import RECIPES, open_model
from gander.reference import initial_state

LAYERS, BROKEN = 6, 4
SMALL = replace(
    RECIPES["narrow"].config, layers=LAYERS, width=64, heads=2, ffn=152, vocab=200, rank_w=5, rank_a=6, rank_g=8
)


@pytest.fixture(scope="module")
def deep() -> Checkpoint:
    """Of many small blocks."""
    return synthesize(SMALL, replace(RECIPES["narrow"], odd=()).fill, 7, source="deep")


@pytest.mark.parametrize("name", ["golden:adversarial", "golden:hybrid"])
def test_every_part_is_a_whole_model_and_all_parts_hold_every_number(name: str) -> None:
    model, tables = open_model(name), {"emb.weight", "head.weight"}
    seen = set(tables)
    for part in parts(model.config):
        smaller = cut(model, part)
        assert census(entries_of(smaller), smaller.config, SCHEMES["official"]) == []
        assert len(smaller.config.blocks) <= 3
        for own in smaller.tensors.keys() - tables:
            block = block_of(own)
            there = own if block is None else smaller.whole[block] + own.removeprefix(block)
            assert smaller.tensors[own] is model.tensors[there]
            seen.add(there)
    assert seen == model.tensors.keys()
    for table in tables:
        slices = [cut(model, part).tensors[table] for part in parts(model.config) if part.startswith("vocab.")]
        assert torch.equal(torch.cat(slices), model.tensors[table])


def test_a_part_that_there_is_not() -> None:
    with pytest.raises(InputError, match=r"golden:narrow has no part 'blocks\.3'"):
        open_model("golden:narrow#blocks.3")


@pytest.mark.parametrize(("kept", "blocks"), [(0, 1), (10**9, LAYERS)])
def test_of_a_large_model_the_weights_of_no_more_than_a_block_are_in_memory(
    deep: Checkpoint, kept: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in float64, while formulas run on them. Of a small one all are kept, which the same count shows."""
    monkeypatch.setattr(oracle, "KEPT", kept)
    live = peak = 0
    weight = Checkpoint.weight

    def forget(size: int) -> None:
        nonlocal live
        live -= size

    def counted(self: Checkpoint, name: str, dtype: type = np.float64) -> np.ndarray:
        nonlocal live, peak
        made = weight(self, name, dtype).copy()
        weakref.finalize(made, forget, made.nbytes)
        live += made.nbytes
        peak = max(peak, live)
        return made

    monkeypatch.setattr(Checkpoint, "weight", counted)
    right = Oracle(deep, "float32", PLAIN)
    zero, tokens = initial_state(deep.config), (3, 1, 199)
    taps = right.value(tokens, zero, (3,)).taps
    right.isolated(tokens, zero, (3,), taps)
    of_block = 8 * sum(x.numel() for name, x in deep.tensors.items() if block_of(name) == "blocks.1")
    assert (peak <= of_block) if blocks == 1 else (peak > 2 * LAYERS * of_block)


def test_streamed_or_kept_every_number_is_the_same(deep: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    zero, tokens = initial_state(deep.config), (3, 1, 199)
    runs = []
    for kept in (0, 10**9):
        monkeypatch.setattr(oracle, "KEPT", kept)
        right = Oracle(deep, "bfloat16", PLAIN)
        runs.append([right.value(tokens, zero, (2, 1)), *right.yardsticks(tokens, zero, (2, 1))])
    for streamed, whole in zip(*runs, strict=True):
        for name, value in whole.taps.items():
            np.testing.assert_array_equal(streamed.taps[name], value)


def test_a_broken_block_far_back_is_named(deep: Checkpoint, gander: Callable, tmp_path: Path) -> None:
    """The engine clips weights at ±50, and only one block has such a weight."""
    key = f"blocks.{BROKEN}.att.key.weight"
    tensors = {**deep.tensors, key: deep.tensors[key].clone()}
    tensors[key][5, 7] = 60.0
    write(replace(deep, tensors=tensors), tmp_path / "deep.safetensors", "official")
    asked = "check", "--model", tmp_path / "deep.safetensors", "--by-block", "--brief", "--json"
    typed = gander(*asked, "--engine", "py:misbehaving:ClipsWeights")
    assert typed.status == 1
    report = json.loads(typed.out)
    failing = {model["model"].partition("#")[2]: model for model in report["models"] if model["status"] == "FAIL"}
    assert [*failing] == [f"blocks.{BROKEN}"]
    (check,) = failing[f"blocks.{BROKEN}"]["checks"]
    assert check["id"] == "layer.isolated"
    assert check["findings"][0]["where"] == f"blocks.{BROKEN}.att.k"
    assert len(report["models"]) == len(parts(SMALL))


def test_a_part_can_be_named_alone(gander: Callable) -> None:
    typed = gander("check", "-m", "golden:hybrid#moba.1", "--only", "layer.isolated", "--json")
    assert typed.status == 0, typed.out
    (model,) = json.loads(typed.out)["models"]
    shown = [errors["where"] for errors in model["checks"][0]["errors"]]
    blocks = dict.fromkeys(where.rpartition(".out")[0] for where in shown if where.endswith("1.out"))
    assert {"blocks.0.att.out", "blocks.5.att.out", "moba.1.att"} <= {*shown}
    assert [*blocks] == ["moba.1"]


def test_unused_tensors_of_block_0_stay_behind(deep: Checkpoint) -> None:
    extra = {name: torch.zeros(1) for name in LAYER_0_UNUSED}
    assert extra.keys() <= cut(replace(deep, tensors=deep.tensors | extra), "blocks.3").tensors.keys()
