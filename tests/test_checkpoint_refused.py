"""Checkpoints: what is refused and in which words, and the census of their tensors."""

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from made import WIDE, Run, Tensors, assert_same_bits, filled, model, refusal, save, without
from safetensors.torch import load_file, save_file

from gander import checkpoint as cp
from gander.checkpoint import load, write
from gander.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")


# What is refused, and in which words


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


FAULTS: dict[str, tuple[Callable[[], Tensors], str]] = {
    "missing": (lambda: without("blocks.1.att.g1"), "missing: blocks.1.att.g1"),
    "missing block": (
        lambda: {name: tensor for name, tensor in model().tensors.items() if not name.startswith("blocks.1.")},
        "missing: blocks.1 the whole block: the numbering has a gap",
    ),
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
