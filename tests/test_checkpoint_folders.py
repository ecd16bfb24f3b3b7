"""Checkpoints: the folders of Hugging Face, and the commands."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from made import NARROW, WIDE, Run, assert_same_bits, model, refusal, save, without
from safetensors.torch import load_file, save_file

from gander.checkpoint import load, write

pytestmark = pytest.mark.usefixtures("one_thread")


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
