"""GGUF: what the file holds, read back by the gguf package, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made import HYBRID, NARROW, WIDE, model

from gander.checkpoint import Checkpoint, load, write, write_gguf
from gander.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")

gguf = pytest.importorskip("gguf", reason="PyPI gguf is not installed")

TOKENS = {1: b"a", 2: b"\n\t\r", 3: b"\\x", 4: b"\x80\xff", 5: "é'".encode(), 6: b"[PAD8]"}


def written(tmp_path: Path, checkpoint: Checkpoint, **options: object) -> tuple[object, tuple[str, ...]]:
    """A reader of the file, and the notes of writing it."""
    notes = write_gguf(checkpoint, tmp_path / "m.gguf", **options)
    return gguf.GGUFReader(tmp_path / "m.gguf"), notes


def values(reader: object) -> dict[str, np.ndarray]:
    """Every tensor by name, in numpy's order of axes, as float32."""
    return {each.name: gguf.quants.dequantize(each.data, each.tensor_type) for each in reader.tensors}


def undone(stored: dict[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """Back to official names and layouts, without singleton axes, by this test's own table."""
    plain = {
        "emb.weight": "token_embd.weight",
        "blocks.0.ln0.weight": "token_embd_norm.weight",
        "blocks.0.ln0.bias": "token_embd_norm.bias",
        "ln_out.weight": "output_norm.weight",
        "ln_out.bias": "output_norm.bias",
        "head.weight": "output.weight",
    }
    official = {ours: stored[theirs] for ours, theirs in plain.items()}
    for i in range(layers):
        ours, theirs = f"blocks.{i}.", f"blk.{i}."
        for row, letter in enumerate("rwkvag"):
            fused = stored[f"{theirs}time_mix_lerp_fused.weight"]
            assert fused.shape[:3] == (6, 1, 1)
            official[f"{ours}att.x_{letter}"] = fused[row, 0, 0]
        for letter in "wag" if i == 0 else "wavg":
            for n in (0, 1, 2) if letter != "g" else (1, 2):
                value = stored[f"{theirs}time_mix_{letter}{n}.weight"]
                official[f"{ours}att.{letter}{n}"] = value if n == 0 else value.T
        for name in ("k_k", "k_a", "r_k"):
            official[f"{ours}att.{name}"] = stored[f"{theirs}time_mix_{name}.weight"]
        for name in ("receptance", "key", "value", "output"):
            official[f"{ours}att.{name}.weight"] = stored[f"{theirs}time_mix_{name}.weight"]
        for kind in ("weight", "bias"):
            official[f"{ours}att.ln_x.{kind}"] = stored[f"{theirs}time_mix_ln.{kind}"]
            official[f"{ours}ln1.{kind}"] = stored[f"{theirs}attn_norm.{kind}"]
            official[f"{ours}ln2.{kind}"] = stored[f"{theirs}attn_norm_2.{kind}"]
        official[f"{ours}ffn.x_k"] = stored[f"{theirs}channel_mix_lerp_k.weight"]
        official[f"{ours}ffn.key.weight"] = stored[f"{theirs}channel_mix_key.weight"]
        official[f"{ours}ffn.value.weight"] = stored[f"{theirs}channel_mix_value.weight"]
    return official


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [WIDE, NARROW], ids=["N64", "N32"])
def test_every_value_is_where_llama_cpp_looks(tmp_path: Path, config: object, dtype: torch.dtype) -> None:
    start = model(config, dtype, unused=True)
    reader, notes = written(tmp_path, start)
    assert notes == ()
    assert all(each.tensor_type == gguf.GGMLQuantizationType.F32 for each in reader.tensors)
    official = undone(values(reader), config.layers)
    assert official.keys() == start.weights().keys()
    for name, want in start.weights(np.float32).items():
        assert np.array_equal(official[name], want.reshape(official[name].shape)), name


def test_the_names_are_those_of_the_package(tmp_path: Path) -> None:
    """All that it lists for rwkv7, for every block: block 0 has v0, v1 and v2, of the sizes of a0, a1 and a2."""
    reader, _ = written(tmp_path, model())
    stems = [gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.RWKV7]]
    expected = {stem.format(bid=i) for stem in stems for i in range(WIDE.layers)}
    names = {each.name for each in reader.tensors}
    assert {name.rpartition(".")[0] for name in names} == expected
    assert {name.rpartition(".")[2] for name in names} == {"weight", "bias"}
    stored = values(reader)
    for n in range(3):
        assert np.array_equal(stored[f"blk.0.time_mix_v{n}.weight"], stored[f"blk.0.time_mix_a{n}.weight"])
    shapes = {each.name: each.shape.tolist() for each in reader.tensors}  # ggml's order: the rows' length first
    assert shapes["blk.1.time_mix_v1.weight"] == [WIDE.width, WIDE.rank_v]
    assert shapes["blk.1.time_mix_v2.weight"] == [WIDE.rank_v, WIDE.width]
    assert shapes["blk.1.time_mix_lerp_fused.weight"] == [WIDE.width, 1, 1, 6]
    assert shapes["blk.1.time_mix_r_k.weight"] == [WIDE.width]
    assert shapes["token_embd.weight"] == [WIDE.width, WIDE.vocab]


def test_the_keys(tmp_path: Path) -> None:
    config = replace(WIDE, layer_norm_eps=2e-5)
    reader, _ = written(tmp_path, replace(model(), config=config), tokens=TOKENS)
    keys = {
        "general.architecture": "rwkv7",
        "general.file_type": 0,
        "rwkv7.context_length": 1048576,
        "rwkv7.embedding_length": 192,
        "rwkv7.block_count": 3,
        "rwkv7.feed_forward_length": 208,
        "rwkv7.attention.head_count": 0,
        "rwkv7.wkv.head_size": 64,
        "rwkv7.attention.layer_norm_epsilon": pytest.approx(2e-5),
        "rwkv7.attention.decay_lora_rank": 17,
        "rwkv7.attention.iclr_lora_rank": 19,
        "rwkv7.attention.value_residual_mix_lora_rank": 23,
        "rwkv7.attention.gate_lora_rank": 29,
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    for key, value in keys.items():
        assert reader.fields[key].contents() == value, key


def test_the_vocabulary(tmp_path: Path) -> None:
    reader, _ = written(tmp_path, model(), tokens=TOKENS)
    spelled = reader.fields["tokenizer.ggml.tokens"].contents()
    assert spelled[1:7] == ["a", r"\n\t\r", r"\\x", r"\x80\xff", r"\xc3\xa9'", "[PAD8]"]
    assert spelled[7:9] == ["[PAD7]", "[[PAD8]]"]  # two that are alike end llama.cpp
    assert len(set(spelled)) == WIDE.vocab
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    assert kinds == [gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * 6, *[gguf.TokenType.UNUSED] * 70]


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
def test_fewer_bits_are_for_large_matrices(tmp_path: Path, dtype: str) -> None:
    config = replace(WIDE, ffn=224)  # 7 · 32
    start = model(config, torch.float32)
    reader, notes = written(tmp_path, start, dtype=dtype)
    assert notes == ()
    kinds = {each.name: each.tensor_type.name.lower() for each in reader.tensors}
    large = {name for name, kind in kinds.items() if kind != "f32"}
    assert {kinds[name] for name in large} == {dtype}
    assert len(large) == 2 + 6 * config.layers
    assert not any("time_mix_w1" in name or "lerp" in name or "norm" in name for name in large)
    official = undone(values(reader), config.layers)
    for name, want in start.weights(np.float32).items():
        got = official[name].reshape(want.shape)
        step = np.abs(want).max() * (2**-11 if dtype == "f16" else 1.01 / 254 + 2**-11)
        assert np.abs(got - want).max() <= step, name


def test_rows_that_q8_0_cannot_cut_are_f16(tmp_path: Path) -> None:
    reader, (note,) = written(tmp_path, model(), dtype="q8_0")  # 208 is no multiple of 32
    kinds = {each.name: each.tensor_type.name for each in reader.tensors}
    assert (kinds["blk.1.channel_mix_value.weight"], kinds["blk.1.channel_mix_key.weight"]) == ("F16", "Q8_0")
    assert note == "3 matrices are f16, their rows being no multiple of 32: blocks.0.ffn.value.weight and the like"


def test_an_rwkv_x_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its 2 attention blocks would be lost"):
        write_gguf(model(HYBRID), tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


def test_another_group_norm_is_refused_or_told(tmp_path: Path) -> None:
    other = replace(model(NARROW), config=replace(NARROW, group_norm_eps=32e-5))
    with pytest.raises(InputError, match=r"GroupNorm eps 0\.00032 becomes 0\.00064"):
        write_gguf(other, tmp_path / "m.gguf")
    _, notes = written(tmp_path, other, allow_change=True)
    assert notes == ("GroupNorm eps 0.00032 becomes 0.00064",)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("m.bin", {}, "of no known kind"),
        ("no/m.gguf", {}, "no such folder"),
        ("there.gguf", {}, "exists"),
        ("folder.gguf", {"overwrite": True}, "cannot be written"),
        ("m.gguf", {"dtype": "q4_0"}, "no GGUF dtype 'q4_0'"),
        ("m.gguf", {"tokens": {i: str(i).encode() for i in range(1, 78)}}, "77 tokens, the model 77 rows"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, name: str, options: dict, message: str) -> None:
    (tmp_path / "there.gguf").write_bytes(b"kept")
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(InputError, match=message):
        write_gguf(model(), tmp_path / name, **options)
    assert (tmp_path / "there.gguf").read_bytes() == b"kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.gguf", "there.gguf"]


def test_a_number_beyond_f16_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    large = model(dtype=torch.float32)
    large.tensors["head.weight"] = large.tensors["head.weight"] * 1e5
    with pytest.raises(InputError, match=r"head\.weight holds .* more than f16 can"):
        write_gguf(large, tmp_path / "m.gguf", dtype="f16")
    assert list(tmp_path.iterdir()) == []
    write_gguf(large, tmp_path / "m.gguf", dtype="q8_0")


def test_the_command(tmp_path: Path, gander: Callable) -> None:
    source = tmp_path / "m.pth"
    write(model(), source, "official")
    target = tmp_path / "m.gguf"
    typed = gander("convert", str(source), str(target), "--to", "gguf", "--dtype", "f16")
    assert (typed.status, typed.err) == (0, "")
    assert typed.out.splitlines() == [
        "note: its 77 rows are not the World vocabulary's: tokens get placeholders, text needs --vocab FILE",
        f"{source} → {target} (gguf, f16)",
    ]
    assert gguf.GGUFReader(target).fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_F16
    typed = gander("convert", str(source), str(tmp_path / "n.pth"), "--to", "official", "--dtype", "f16")
    assert typed.status == 2
    assert "error: --dtype is a choice of gguf" in typed.err
    assert load(source).fingerprint() == model().fingerprint()
