"""Checkpoints: conversion keeps every bit, and what it cannot keep is refused or told."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made import NARROW, WIDE, Run, Tensors, assert_same_bits, model, save

from gander.checkpoint import Config, convert, load, write, write_gguf, write_onnx
from gander.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")

TARGETS = (
    ("official", "m.pth"),
    ("official", "m.safetensors"),
    ("rwkvx", "x.pth"),
    ("rwkvx", "x.safetensors"),
    ("hf", "hf"),
)


@pytest.mark.parametrize("via", TARGETS, ids="-".join)
@pytest.mark.parametrize("to", TARGETS, ids="-".join)
@pytest.mark.parametrize("config", [WIDE, replace(NARROW, group_norm_eps=32e-5)], ids=["N64", "N32"])
def test_there_and_back_bit_for_bit(tmp_path: Path, config: Config, via: tuple[str, str], to: tuple[str, str]) -> None:
    start = model(config)
    (tmp_path / "to").mkdir()
    write(start, tmp_path / via[1], via[0], allow_change=True)
    write(load(tmp_path / via[1]), tmp_path / "to" / to[1], to[0], allow_change=True)
    end = load(tmp_path / "to" / to[1])
    assert end.scheme == to[0]
    assert_same_bits(end.tensors, start.tensors)


@settings(max_examples=30, deadline=None)  # it writes files
@given(data=st.data())
def test_every_bit_pattern_of_every_dtype(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    scheme, name = data.draw(st.sampled_from(TARGETS))
    start = model(replace(WIDE, layers=2), dtype)
    for tensor in data.draw(st.lists(st.sampled_from(sorted(start.tensors)), min_size=1, max_size=3, unique=True)):
        start.tensors[tensor] = start.tensors[tensor].clone()
        bits = start.tensors[tensor].view(torch.int32 if dtype == torch.float32 else torch.int16)
        largest = {torch.float32: 0x7F7FFFFF, torch.bfloat16: 0x7F7F, torch.float16: 0x7BFF}[dtype]  # finite
        sign = data.draw(st.sampled_from([0, torch.iinfo(bits.dtype).min]))
        bits.view(-1)[0] = data.draw(st.integers(0, largest)) + sign
    path = tmp_path_factory.mktemp("bits") / name
    write(start, path, scheme)
    assert_same_bits(load(path).tensors, start.tensors)


def test_a_model_has_one_fingerprint_in_every_scheme(tmp_path: Path) -> None:
    fingerprints = set()
    for scheme, name in TARGETS:
        write(model(unused=True), tmp_path / name, scheme)
        fingerprints.add(load(tmp_path / name).fingerprint())
    assert fingerprints == {model().fingerprint()}


def test_unused_tensors_stay_where_there_is_a_place_for_them(tmp_path: Path) -> None:
    start = model(unused=True)
    assert write(start, tmp_path / "m.pth", "official") == ()
    assert_same_bits(load(tmp_path / "m.pth").tensors, start.tensors)
    (note,) = write(start, tmp_path / "hf", "hf")
    assert "blocks.0.att.v0, blocks.0.att.v1, blocks.0.att.v2 left out" in note
    assert_same_bits(load(tmp_path / "hf").tensors, model().tensors)


def test_tensors_that_share_memory_are_written(tmp_path: Path) -> None:
    start = model()
    start.tensors["head.weight"] = start.tensors["emb.weight"]
    rows = torch.randn(2, WIDE.width, dtype=torch.bfloat16)
    start.tensors["ln_out.weight"], start.tensors["ln_out.bias"] = rows
    for scheme, name in TARGETS:
        write(start, tmp_path / name, scheme)
        assert_same_bits(load(tmp_path / name).tensors, start.tensors)


def test_a_part_of_a_larger_storage_is_written_alone(tmp_path: Path) -> None:
    start = model()
    start.tensors["ln_out.weight"] = torch.randn(10**6)[:192]
    for name in ("m.pth", "m.safetensors"):
        write(start, tmp_path / name, "official")
        assert (tmp_path / name).stat().st_size < 10**6 * 4


def test_a_changed_epsilon_is_refused_or_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hf cannot hold this model: GroupNorm eps 0\.00064 becomes 0\.00032"):
        write(model(NARROW), tmp_path / "hf", "hf")
    assert not (tmp_path / "hf").exists()
    assert write(model(NARROW), tmp_path / "hf", "hf", allow_change=True) == ("GroupNorm eps 0.00064 becomes 0.00032",)
    changed = load(tmp_path / "hf")
    assert (changed.config.layer_norm_eps, changed.config.group_norm_eps) == (1e-5, 32e-5)
    with pytest.raises(InputError, match=r"official cannot hold this model: GroupNorm eps 0\.00032 becomes 0\.00064"):
        write(changed, tmp_path / "m.pth", "official")
    assert write(changed, tmp_path / "hf2", "hf") == ()


def test_both_epsilons_follow_norm_eps(tmp_path: Path) -> None:
    start = replace(model(), config=replace(WIDE, layer_norm_eps=1e-6, group_norm_eps=64e-6))
    write(start, tmp_path / "hf", "hf")
    assert load(tmp_path / "hf").config == start.config
    with pytest.raises(
        InputError, match=r"LayerNorm eps 1e-06 becomes 1e-05 and GroupNorm eps 6\.4e-05 becomes 0\.00064"
    ):
        write(start, tmp_path / "x.pth", "rwkvx")


def test_an_existing_target_is_kept(tmp_path: Path, gander: Run) -> None:
    source = save(tmp_path, model().tensors)
    target = tmp_path / "there.pth"
    target.write_text("mine")
    status, _, error = gander("convert", source, target, "--to", "rwkvx")
    assert (status, target.read_text()) == (2, "mine")
    assert f"{target} exists" in error and "--force" in error
    assert gander("convert", source, target, "--to", "rwkvx", "--force")[0] == 0
    assert load(target).scheme == "rwkvx"


def test_a_folder_is_replaced_only_if_nothing_else_is_lost(tmp_path: Path) -> None:
    write(model(), tmp_path / "hf", "hf")
    write(model(dtype=torch.float16), tmp_path / "hf", "hf", overwrite=True)
    assert load(tmp_path / "hf").tensors["emb.weight"].dtype == torch.float16
    (tmp_path / "hf/tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds other files: tokenizer\.json"):
        write(model(), tmp_path / "hf", "hf", overwrite=True)
    assert (tmp_path / "hf/tokenizer.json").exists()


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize(("scheme", "name"), [("official", "m.safetensors"), ("hf", "hf")])
def test_a_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, name: str, failure: BaseException
) -> None:
    def half(_: Tensors, path: Path, **__: object) -> None:
        path.write_bytes(b"half of it")
        raise failure

    write(model(), tmp_path / name, scheme)
    before = load(tmp_path / name).fingerprint()
    monkeypatch.setattr(convert, "save_file", half)
    for target in (name, f"new-{name}"):
        with pytest.raises((KeyboardInterrupt, InputError)):
            write(model(dtype=torch.float16), tmp_path / target, scheme, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert load(tmp_path / name).fingerprint() == before


@pytest.mark.parametrize(
    ("scheme", "name", "message"),
    [
        ("hf", "m.pth", "names a file"),
        ("official", "m.bin", "of no known kind"),
        ("rwkvx", "no/such/m.pth", "no such folder"),
        ("gguf", "m.gguf", "no naming scheme 'gguf'"),
    ],
)
def test_impossible_targets(tmp_path: Path, scheme: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write(model(), tmp_path / name, scheme)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("package", "write_as"), [("gguf", write_gguf), ("onnx", write_onnx)])
def test_without_the_package_one_line_says_what_to_install(
    package: str, write_as: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # its import is a ModuleNotFoundError
    with pytest.raises(InputError, match=rf"needs the PyPI package {package}\n  to mend:  pip install"):
        write_as(model(), tmp_path / f"m.{package}")
