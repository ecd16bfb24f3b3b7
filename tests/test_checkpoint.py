"""Checkpoints: what is read, what is refused and in which words, and that conversion keeps every bit."""

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from gander import checkpoint as cp
from gander.checkpoint import LAYER_0_UNUSED, Checkpoint, Config, convert, load, shapes, write
from gander.errors import InputError

TINY = Path(__file__).parents[2] / "shared/data/tiny-rwkv7-834k/model.safetensors"

# No two sizes are equal, no matrix but the projections is square, H is not N.
WIDE = Config(3, 192, 3, 64, 208, 77, 17, 19, 23, 29)
NARROW = Config(2, 160, 5, 32, 176, 77, 17, 19, 23, 29)
Tensors = dict[str, torch.Tensor]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are done before a second thread has woken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def weights(config: Config, dtype: torch.dtype) -> Tensors:
    """Random weights, layer 0's unused ones among them."""
    generator = torch.Generator().manual_seed(config.width)
    sizes = shapes(config)
    if config.layers > 1:
        sizes |= {f"blocks.0.att.v{i}": sizes[f"blocks.1.att.v{i}"] for i in range(3)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in sizes.items()}


def model(config: Config = WIDE, dtype: torch.dtype = torch.bfloat16, *, unused: bool = False) -> Checkpoint:
    """A random model in a dictionary of its own; never write into its tensors."""
    tensors = {name: t for name, t in weights(config, dtype).items() if unused or name not in LAYER_0_UNUSED}
    return Checkpoint(config, tensors, "official", "memory")


def save(tmp_path: Path, tensors: Tensors, name: str = "model.safetensors") -> Path:
    path = tmp_path / name
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


def assert_same_bits(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert (tensor.dtype, tensor.shape) == (other[name].dtype, other[name].shape), name
        assert torch.equal(tensor.contiguous().view(torch.uint8), other[name].contiguous().view(torch.uint8)), name


# Layout


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        (Config(12, 768, 12, 64, 3072, 65536, 64, 64, 32, 128), 191.03),
        (Config(24, 1024, 16, 64, 4096, 65536, 64, 64, 32, 128), 450.77),
        (Config(24, 2048, 32, 64, 8192, 65536, 96, 96, 64, 256), 1527.40),
        (Config(61, 4096, 64, 64, 16384, 65536, 192, 192, 128, 384), 13269.25),
    ],
)
def test_published_models_have_their_published_size(config: Config, millions: float) -> None:
    count = sum(torch.Size(shape).numel() for shape in shapes(config).values())
    assert round(count / 1e6, 2) == millions


@pytest.mark.parametrize("config", [WIDE, NARROW])
def test_sizes_are_read_from_the_tensors(config: Config) -> None:
    assert cp.infer(model(config, unused=True).tensors) == config


def test_one_layer_has_no_value_residual() -> None:
    config = replace(WIDE, layers=1, rank_v=0)
    unused = {"blocks.0.att.v1": torch.ones(192, 23), "blocks.0.att.v2": torch.ones(23, 192)}
    assert cp.infer(model(config).tensors | unused) == config
    assert not any(".v1" in name for name in shapes(config))


@pytest.mark.parametrize("name", ["emb.weight", "blocks.1.att.w1", "blocks.0.ffn.key.weight", "blocks.1.att.r_k"])
def test_one_transposed_tensor_does_not_change_the_sizes(name: str) -> None:
    tensors = model().tensors
    assert cp.infer(tensors | {name: tensors[name].t()}) == WIDE


@pytest.mark.skipif(not TINY.exists(), reason="the trained model lies in shared/, which is not here")
def test_a_trained_model_is_sound() -> None:
    tiny = load(TINY)
    assert tiny.config == Config(12, 64, 1, 64, 256, 256, 32, 32, 32, 32)
    assert cp.all_zero(tiny) == []


# Naming schemes

HF_NAMES = {
    "emb.weight": "model.embeddings.weight",
    "head.weight": "lm_head.weight",
    "ln_out.bias": "model.norm.bias",
    "blocks.0.ln0.weight": "model.layers.0.pre_norm.weight",
    "blocks.1.ln1.weight": "model.layers.1.attn_norm.weight",
    "blocks.1.ln2.bias": "model.layers.1.ffn_norm.bias",
    "blocks.1.att.x_g": "model.layers.1.attn.x_g",
    "blocks.1.att.w0": "model.layers.1.attn.w_lora.lora.2.bias",
    "blocks.1.att.a1": "model.layers.1.attn.a_lora.lora.0.weight",
    "blocks.1.att.v2": "model.layers.1.attn.v_lora.lora.2.weight",
    "blocks.1.att.g2": "model.layers.1.attn.g_lora.lora.2.weight",
    "blocks.1.att.r_k": "model.layers.1.attn.r_k",
    "blocks.1.att.receptance.weight": "model.layers.1.attn.r_proj.weight",
    "blocks.1.att.output.weight": "model.layers.1.attn.o_proj.weight",
    "blocks.1.att.ln_x.bias": "model.layers.1.attn.g_norm.bias",
    "blocks.1.ffn.x_k": "model.layers.1.ffn.x_k",
    "blocks.1.ffn.key.weight": "model.layers.1.ffn.key.weight",
}


@pytest.mark.parametrize(("official", "hf"), HF_NAMES.items())
def test_hugging_face_names(official: str, hf: str) -> None:
    assert cp.SCHEMES["hf"].stored(official) == hf
    assert cp.SCHEMES["hf"].official(hf) == official


@pytest.mark.parametrize("scheme", cp.SCHEMES.values(), ids=lambda scheme: scheme.name)
def test_names_go_there_and_back(scheme: cp.Scheme) -> None:
    names = {name: scheme.stored(name) for name in shapes(WIDE)}
    assert len(set(names.values())) == len(names)
    assert {name: scheme.official(stored) for name, stored in names.items()} == {name: name for name in names}
    assert cp.detect(list(names.values())) is scheme


@pytest.mark.parametrize("name", ["blocks.1.ln0.weight", "blocks.01.att.r_k", "blocks.0.att.x_x", "blocks.0.att.g0"])
def test_no_tensor_of_the_model(name: str) -> None:
    assert cp.SCHEMES["official"].official(name) is None


def test_hugging_face_layouts(tmp_path: Path) -> None:
    write(model(), tmp_path / "hf", "hf")
    stored = load_file(tmp_path / "hf/model.safetensors")
    attention = "model.layers.1.attn."
    found = {name.removeprefix(attention): list(t.shape) for name, t in stored.items() if name.startswith(attention)}
    assert found["x_r"] == [1, 1, 192]
    assert found["k_k"] == found["w_lora.lora.2.bias"] == [192]
    assert found["w_lora.lora.0.weight"] == [17, 192]
    assert found["w_lora.lora.2.weight"] == [192, 17]
    assert torch.equal(stored[attention + "v_lora.lora.0.weight"], model().tensors["blocks.1.att.v1"].t())
    assert "g_lora.lora.2.bias" not in found


def test_vectors_are_read_with_and_without_singleton_axes(tmp_path: Path) -> None:
    write(model(), tmp_path / "hf", "hf")
    weights = tmp_path / "hf/model.safetensors"
    stored = load_file(weights)
    for name in ("attn.x_r", "attn.k_k", "attn.k_a", "ffn.x_k"):
        key = f"model.layers.1.{name}"
        stored[key] = stored[key].reshape((1, 1, -1) if stored[key].dim() == 1 else (-1,))
    save_file(stored, weights)
    assert_same_bits(load(tmp_path / "hf").tensors, model().tensors)


@pytest.mark.parametrize("singletons", [(), (1, 1)])
def test_old_files_fuse_the_token_shift(tmp_path: Path, singletons: tuple[int, ...]) -> None:
    write(model(), tmp_path / "hf", "hf")
    weights = tmp_path / "hf/model.safetensors"
    stored = load_file(weights)
    for i in range(WIDE.layers):
        rows = [stored.pop(f"model.layers.{i}.attn.x_{c}").reshape(*singletons, -1) for c in "rwkvag"]
        stored[f"model.layers.{i}.attn.x_x"] = torch.stack(rows)
    save_file(stored, weights)
    assert_same_bits(load(tmp_path / "hf").tensors, model().tensors)


# Conversion

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


# What is refused, and in which words


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as refused:
        load(path)
    return str(refused.value)


def test_no_such_file(tmp_path: Path, gander: Run) -> None:
    assert gander("inspect", tmp_path / "no.pth") == (2, "", f"error: no such file: {tmp_path / 'no.pth'}\n")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.pth", b"", "m.pth is empty"),
        ("m.safetensors", b"", "m.safetensors is empty"),
        ("m.safetensors", b"no tensors in here", "is neither PyTorch's nor safetensors"),
        ("m.pth", b"no tensors in here", "is neither PyTorch's nor safetensors"),
        ("m.pth", b"PK\x03\x04 no zip at all", "m.pth is damaged"),
        ("m.pth", b"\x80\x02 no pickle at all", "m.pth is damaged"),
        ("m.safetensors", b"GGUF\x03\0\0\0", "is a GGUF file"),
        ("m.pth", b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        ("m.txt", b"hello", "m.txt is of no known kind"),
        ("m.safetensors", struct.pack("<Q", 2**40) + b"{}", "m.safetensors is damaged"),
    ],
)
def test_not_a_checkpoint(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in refusal(tmp_path / name)


@pytest.mark.parametrize("name", ["m.safetensors", "m.pth"])
@pytest.mark.parametrize("part", [0.001, 0.5, 0.999])
def test_truncated(tmp_path: Path, name: str, part: float) -> None:
    path = save(tmp_path, model().tensors, name)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    assert f"{name} is damaged" in refusal(path)


def test_content_that_its_name_denies(tmp_path: Path) -> None:
    path = save(tmp_path, model().tensors).rename(tmp_path / "m.pth")
    assert "m.pth is a safetensors file\n  expected: a PyTorch file, as its name says" in refusal(path)
    path = save(tmp_path, model().tensors, "x.pth").rename(tmp_path / "m.safetensors")
    assert "m.safetensors is a PyTorch file\n" in refusal(path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, model().tensors)

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)  # mode 000 does not stop root
    assert "model.safetensors cannot be read: Permission denied" in refusal(path)


def test_pth_of_the_old_kind(tmp_path: Path) -> None:
    torch.save(model().tensors, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert_same_bits(load(tmp_path / "old.pth").tensors, model().tensors)


class Canary:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_code_is_never_run(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "code.pth"
    torch.save(model().tensors | {"x": Canary(tmp_path / "ran")}, path, _use_new_zipfile_serialization=zipped)
    message = refusal(path)
    assert "holds pickled code, which was not run: posix.mkdir" in message
    assert "model.state_dict(), best as safetensors" in message
    assert not (tmp_path / "ran").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists(), "the canary cannot sing"


def test_a_pickled_module_is_named(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pth")
    assert "torch.nn.modules.linear.Linear" in refusal(tmp_path / "module.pth")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], "holds a list"),
        ({"model": {"emb.weight": torch.ones(2)}, "step": 3}, "holds more than tensors: model, step"),
        ({"emb.weight": torch.ones(2).to_sparse()}, "holds more than tensors: emb.weight"),
        ({"emb.weight": torch.ones(2, device="meta")}, "holds more than tensors: emb.weight"),
        ({}, "no RWKV-7 is stored under these names: no tensors"),
    ],
)
def test_a_pth_that_is_no_state_dict(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "m.pth")
    assert message in refusal(tmp_path / "m.pth")


OTHER_MODELS = {
    "an RWKV-4 model": ("blocks.0.att.time_first", "blocks.0.att.time_mix_k", "blocks.0.att.key.weight", "emb.weight"),
    "an RWKV-5 model": ("blocks.0.att.time_mix_g", "blocks.0.att.time_faaaa", "blocks.0.att.ln_x.weight"),
    "an RWKV-6 model": ("blocks.0.att.time_maa_x", "blocks.0.att.time_faaaa", "blocks.0.att.ln_x.weight", "emb.weight"),
    "a transformer such as Llama model": ("model.layers.0.self_attn.q_proj.weight", "lm_head.weight"),
    "an RWKV-X hybrid model: hybrid not supported yet": ("moba.0.att.key.weight", "rwkv.blocks.0.att.r_k"),
}


@pytest.mark.parametrize(("what", "names"), OTHER_MODELS.items())
def test_other_models_are_named(tmp_path: Path, what: str, names: tuple[str, ...]) -> None:
    path = save(tmp_path, {name: torch.ones(2) for name in names})
    assert f"this is {what}" in refusal(path)


def test_models_of_hugging_face_are_named(tmp_path: Path) -> None:
    for names, what in (
        (("rwkv.blocks.0.attention.time_decay", "rwkv.blocks.0.attention.time_mix_key"), "an RWKV-4"),
        (("rwkv.blocks.0.attention.time_faaaa", "rwkv.blocks.0.attention.time_decay"), "an RWKV-5"),
        (("model.layers.0.attn.x_proj.0.weight", "model.layers.0.attn.bonus", "lm_head.weight"), "an RWKV-6"),
    ):
        with pytest.raises(InputError, match=f"this is {what}"):
            cp.detect(names)


def test_names_of_no_known_model() -> None:
    with pytest.raises(InputError, match=r"no RWKV-7 is stored under these names: conv1\.bias, conv1\.weight"):
        cp.detect(["conv1.weight", "conv1.bias"])


# The census


def without(name: str) -> Tensors:
    return {other: tensor for other, tensor in model().tensors.items() if other != name}


def filled(name: str, value: float, *, rows: int = 1) -> torch.Tensor:
    tensor = model().tensors[name].clone()
    tensor.reshape(-1, tensor.shape[-1])[:rows, :2] = value
    return tensor


FAULTS: dict[str, tuple[Callable[[], Tensors], str]] = {
    "missing": (lambda: without("blocks.1.att.g1"), "missing: blocks.1.att.g1"),
    "missing head": (lambda: without("head.weight"), "missing: head.weight"),
    "unknown": (lambda: model().tensors | {"blocks.0.att.z": torch.ones(2)}, "unknown: blocks.0.att.z"),
    "transposed": (
        lambda: model().tensors | {"blocks.2.ffn.key.weight": torch.ones(192, 208)},
        "wrong shape: blocks.2.ffn.key.weight is [192, 208], expected [208, 192]: it is transposed",
    ),
    "wrong shape": (
        lambda: model().tensors | {"blocks.2.att.k_k": torch.ones(191)},
        "wrong shape: blocks.2.att.k_k is [191], expected [192]",
    ),
    "wrong width": (
        lambda: model().tensors | {"emb.weight": torch.ones(77, 191)},
        "wrong shape: emb.weight is [77, 191], expected [77, 192]",
    ),
    "int8": (
        lambda: model().tensors | {"blocks.0.att.key.weight": torch.ones(192, 192, dtype=torch.int8)},
        "wrong dtype: blocks.0.att.key.weight is int8, expected float32, bfloat16, float16",
    ),
    "float64": (
        lambda: model().tensors | {"ln_out.bias": torch.ones(192, dtype=torch.float64)},
        "wrong dtype: ln_out.bias is float64, expected",
    ),
    "NaN": (
        lambda: model().tensors | {"emb.weight": filled("emb.weight", float("nan"))},
        "non-finite: emb.weight holds 2 NaN and 0 infinite of 14784 values",
    ),
    "infinite": (
        lambda: model().tensors | {"blocks.1.att.w2": filled("blocks.1.att.w2", -float("inf"), rows=2)},
        "non-finite: blocks.1.att.w2 holds 0 NaN and 4 infinite of 3264 values",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_one_finding(tmp_path: Path, fault: str) -> None:
    make, message = FAULTS[fault]
    path = save(tmp_path, make())
    findings = cp.read(path).findings
    assert [str(finding)[: len(message)] for finding in findings] == [message]
    assert message in refusal(path)


def test_all_faults_are_listed_and_the_rest_counted(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in model().tensors.items() if not name.startswith("blocks.1.ln")}
    for c in "rwkvag":
        tensors[f"blocks.1.att.x_{c}"] = torch.full((1, 1, WIDE.width), torch.nan)
    tensors["blocks.0.att.w1"] = tensors["blocks.0.att.w1"].t().contiguous()
    tensors["blocks.0.att.a1"] = torch.zeros(WIDE.width, 19, dtype=torch.float64)
    tensors["spare"] = torch.ones(1)
    message = refusal(save(tmp_path, tensors))
    listed = re.findall(r"^    (missing|unknown|wrong shape|wrong dtype|non-finite):", message, flags=re.M)
    assert len(listed) == 12
    assert "and 1 more" in message  # 4 missing, 1 unknown, 1 transposed, 1 dtype, 6 NaN
    assert {"missing", "unknown", "wrong shape", "wrong dtype", "non-finite"} == set(listed)


def test_a_hugging_face_fault_is_told_in_the_names_of_the_file(tmp_path: Path) -> None:
    write(model(), tmp_path / "hf", "hf")
    stored = load_file(tmp_path / "hf/model.safetensors")
    key = "model.layers.1.attn.w_lora.lora.0.weight"
    save_file(stored | {key: stored[key].t().contiguous()}, tmp_path / "hf/model.safetensors")
    assert f"wrong shape: {key} is [192, 17], expected [17, 192]: it is transposed" in refusal(tmp_path / "hf")
    del stored["lm_head.weight"]
    save_file(stored, tmp_path / "hf/model.safetensors")
    assert "missing: lm_head.weight" in refusal(tmp_path / "hf")


def test_zeros_are_a_suspicion_and_no_error(tmp_path: Path, gander: Run) -> None:
    tensors = model(unused=True).tensors
    for name in ("blocks.1.att.output.weight", "blocks.0.att.v1"):
        tensors[name] = torch.zeros_like(tensors[name])
    path = save(tmp_path, tensors)
    assert cp.all_zero(load(path)) == ["blocks.1.att.output.weight"]
    status, out, _ = gander("inspect", path)
    assert status == 0
    assert "all-zero: blocks.1.att.output.weight\n" in out and "sound, 1 suspicions" in out


def test_what_layer_0_does_not_use_is_not_judged(tmp_path: Path) -> None:
    tensors = model().tensors | {"blocks.0.att.v0": torch.full((3,), torch.nan)}
    assert cp.read(save(tmp_path, tensors)).findings == ()


def test_an_empty_tensor(tmp_path: Path) -> None:
    empty = {f"blocks.{i}.att.g{j}": torch.ones((192, 0) if j == 1 else (0, 192)) for i in range(3) for j in (1, 2)}
    assert "wrong shape: blocks.0.att.g1 is [192, 0]" in refusal(save(tmp_path, model().tensors | empty))


def test_heads_that_cannot_be_counted(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in model().tensors.items() if not name.endswith("r_k")}
    assert "the heads cannot be counted: att.r_k is missing, the model 192 wide" in refusal(save(tmp_path, tensors))
    tensors |= {f"blocks.{i}.att.r_k": torch.ones(4, 64) for i in range(3)}
    assert "att.r_k is [4, 64], the model 192 wide" in refusal(save(tmp_path, tensors))


# Hugging Face folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two shards."""
    write(model(), tmp_path / "hf", "hf")
    stored = load_file(tmp_path / "hf/model.safetensors")
    (tmp_path / "hf/model.safetensors").unlink()
    names = sorted(stored)
    shards = {"one.safetensors": names[:40], "two.safetensors": names[40:]}
    for shard, held in shards.items():
        save_file({name: stored[name] for name in held}, tmp_path / "hf" / shard)
    index = {"weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (tmp_path / "hf/model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path / "hf"


def change(folder: Path, **settings: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_shards(folder: Path) -> None:
    assert_same_bits(load(folder).tensors, model().tensors)


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "two.safetensors").unlink()
    assert "lacks 1 of its 2 shards: two.safetensors" in refusal(folder)


def test_a_tensor_saved_twice(folder: Path) -> None:
    one = load_file(folder / "one.safetensors")
    shared = next(iter(load_file(folder / "two.safetensors")))
    save_file(one | {shared: torch.ones(1)}, folder / "one.safetensors")
    assert f"duplicate: {shared} 2 times" in refusal(folder)


def test_two_names_of_one_tensor(folder: Path) -> None:
    extra = {"model.layers.0.attn.x_x": torch.ones(6, 192)}
    save_file(load_file(folder / "one.safetensors") | extra, folder / "one.safetensors")
    message = refusal(folder)
    assert "duplicate: model.layers.0.attn.x_" in message and "also as model.layers.0.attn.x_" in message


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("hidden_size", 768, 192),
        ("num_hidden_layers", 4, 3),
        ("head_dim", 32, 64),
        ("intermediate_size", 768, 208),
        ("vocab_size", 65536, 77),
        ("decay_low_rank_dim", 64, 17),
        ("v_low_rank_dim", 16, 23),
    ],
)
def test_settings_that_contradict_the_tensors(folder: Path, field: str, value: int, told: int) -> None:
    change(folder, **{field: value})
    assert f"config.json contradicts the tensors: {field} is {value}, the tensors say {told}" in refusal(folder)


def test_epsilons_follow_the_settings(folder: Path) -> None:
    change(folder, norm_eps=1e-6)
    changed = load(folder)
    assert (changed.config.layer_norm_eps, changed.config.group_norm_eps) == (1e-6, 64e-6)
    assert "GroupNorm eps 6.4e-05 and LayerNorm eps 1e-06" in changed.notes[0]
    assert "official files mean 64e-5" in changed.notes[0]
    settings = json.loads((folder / "config.json").read_text())
    del settings["norm_eps"]
    (folder / "config.json").write_text(json.dumps(settings))
    assert load(folder).config == WIDE


def test_official_files_of_narrow_heads_say_which_epsilon(tmp_path: Path) -> None:
    narrow = load(save(tmp_path, model(NARROW).tensors))
    assert narrow.config == NARROW
    assert "GroupNorm eps 64e-5" in narrow.notes[0] and "head_dim · 1e-5 = 0.00032" in narrow.notes[0]


@pytest.mark.parametrize("eps", [None, "1e-5", 0.0, -1e-5, True])
def test_a_norm_eps_that_is_none(folder: Path, eps: object) -> None:
    change(folder, norm_eps=eps)
    assert f"norm_eps is {eps!r}" in refusal(folder)


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_settings_that_are_no_json(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    assert "expected: a JSON object" in refusal(folder)


def test_a_folder_that_is_not_hugging_faces(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "mine").mkdir()
    path = save(tmp_path / "mine", model().tensors, "mine.pth")
    message = refusal(tmp_path / "mine")
    assert "is no Hugging Face folder: it has no config.json" in message and "give a file in it: mine.pth" in message
    for weights in folder.glob("*.safetensors*"):
        weights.unlink()
    assert "has no weights" in refusal(folder)
    save_file(load(path).tensors, folder / "model.safetensors")
    assert "the names are of the scheme 'official', but config.json lies beside them" in refusal(folder)


def test_a_bare_file_of_a_folder(folder: Path) -> None:
    for shard in folder.glob("two.*"):
        save_file(load_file(shard) | load_file(folder / "one.safetensors"), folder / "all.safetensors")
    message = refusal(folder / "all.safetensors")
    assert "there is no config.json to give norm_eps" in message and "give the folder" in message


# The commands


def test_inspect_says_what_a_checkpoint_is(tmp_path: Path, gander: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    path = save(tmp_path, model(unused=True).tensors)
    status, out, _ = gander("inspect", path)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 60
    text = re.sub(r"\s+", " ", out)
    for fact in (
        "scheme official",
        "bfloat16 (102 tensors)",
        "L 3",
        "D 192 = H 3 heads · N 64",
        "F 208",
        "V 77",
        "w 17 · a 19 · v 23 · g 29",
        "eps 0.00064",
        "eps 1e-05",
        "v0-v2 present, unused",
        "note: GroupNorm eps 64e-5",
    ):
        assert fact in text
    assert model().fingerprint() in re.sub(r"\s", "", out)
    assert out.endswith("sound\n")


def test_inspect_lists_every_problem(tmp_path: Path, gander: Run) -> None:
    gone = [f"blocks.{i}.att.x_{c}" for i in range(3) for c in "rwkvag"]
    path = save(tmp_path, {name: tensor for name, tensor in model().tensors.items() if name not in gone})
    status, out, _ = gander("inspect", path)
    assert status == 2
    assert [line for line in out.splitlines() if line.startswith("missing: ")] == [f"missing: {name}" for name in gone]
    assert out.endswith("not sound: 18 problems\n")


def test_inspect_as_json(tmp_path: Path, gander: Run) -> None:
    status, out, _ = gander("inspect", save(tmp_path, model().tensors), "--json")
    report = json.loads(out)
    assert (status, report["sound"], report["findings"]) == (0, True, [])
    assert report["config"] == vars(WIDE)
    assert report["fingerprint"] == model().fingerprint()
    assert report["parameters"] == sum(tensor.numel() for tensor in model().tensors.values())
    status, out, _ = gander("inspect", save(tmp_path, without("emb.weight"), "less.safetensors"), "--json")
    assert (status, json.loads(out)["findings"]) == (
        2,
        [{"kind": "missing", "name": "emb.weight", "detail": "", "error": True}],
    )


def test_convert_says_what_changes(tmp_path: Path, gander: Run) -> None:
    source = save(tmp_path, model(NARROW, unused=True).tensors)
    status, _, error = gander("convert", source, tmp_path / "hf", "--to", "hf")
    assert status == 2 and "--allow-change" in error and not (tmp_path / "hf").exists()
    status, out, _ = gander("convert", source, tmp_path / "hf", "--to", "hf", "--allow-change")
    assert status == 0
    assert "note: GroupNorm eps 0.00064 becomes 0.00032" in out
    assert "blocks.0.att.v2 left out" in out


def test_the_command_of_another_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gander", "inspect", tmp_path / "no.pth"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no such file") and "Traceback" not in done.stderr
