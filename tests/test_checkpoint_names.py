"""Checkpoints: the sizes are read from the tensors, and the names of every scheme go there and back."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made import HYBRID, NARROW, WIDE, assert_same_bits, model
from safetensors.torch import load_file, save_file

from gander import checkpoint as cp
from gander.checkpoint import Config, load, shapes, write

TINY = Path(__file__).parents[2] / "shared/data/tiny-rwkv7-834k/model.safetensors"

pytestmark = pytest.mark.usefixtures("one_thread")


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


@pytest.mark.parametrize("config", [WIDE, NARROW, HYBRID])
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
    assert cp.SCHEMES["hf"].stored_block("blocks.12") == "model.layers.12"


@pytest.mark.parametrize("scheme", cp.SCHEMES.values(), ids=lambda scheme: scheme.name)
def test_names_go_there_and_back(scheme: cp.Scheme) -> None:
    names = {name: scheme.stored(name) for name in shapes(HYBRID if scheme.holds_attention else WIDE)}
    assert len(set(names.values())) == len(names)
    assert {name: scheme.official(stored) for name, stored in names.items()} == {name: name for name in names}
    assert cp.detect(list(names.values())) == scheme


@pytest.mark.parametrize(
    "name",
    [
        "blocks.1.ln0.weight",
        "blocks.01.att.r_k",
        "blocks.10000.att.r_k",
        "blocks.{i}.att.r_k",
        "blocks.0.att.x_x",
        "blocks.0.att.g0",
        "moba.0.ln1.weight",
    ],
)
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
