"""Checkpoints of RWKV-X: attention blocks among those of RWKV-7, however their names are spelled."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made import HYBRID, NARROW, SPELLINGS, WIDE, Run, Tensors, assert_same_bits, model, save, spelled
from safetensors.torch import load_file, save_file

from gander import checkpoint as cp
from gander.checkpoint import Config, load, shapes, used, write
from gander.checkpoint.model import squeezed
from gander.checkpoint.names import block_of, part_of
from gander.checkpoint.synthetic import Fill, synthesize
from gander.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = ("x.pth", "x.safetensors")


# Names and sizes


def test_an_attention_block_has_these_tensors() -> None:
    attention = {name: list(shape) for name, shape in shapes(HYBRID).items() if name.startswith("moba.1.")}
    assert {name.removeprefix("moba.1."): shape for name, shape in attention.items()} == {
        "ln1.weight": [192],
        "ln1.bias": [192],
        "ln2.weight": [192],
        "ln2.bias": [192],
        "att.receptance.weight": [192, 192],
        "att.key.weight": [192, 192],
        "att.value.weight": [192, 192],
        "att.output.weight": [192, 192],
        "ffn.x_k": [1, 1, 192],
        "ffn.key.weight": [208, 192],
        "ffn.value.weight": [192, 208],
    }
    assert "moba.2.ln1.weight" not in shapes(HYBRID) and "blocks.4.att.r_k" in shapes(HYBRID)


def test_an_attention_block_has_the_size_that_the_specification_says() -> None:
    config = Config(12, 768, 12, 64, 3072, 65536, 64, 64, 32, 128)
    one, none = (
        sum(torch.Size(shape).numel() for shape in shapes(replace(config, attention_layers=n)).values()) for n in (1, 0)
    )
    assert one - none == 12 * 768**2 + 5 * 768


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        (Config(12, 768, 12, 64, 3072, 65536, 64, 64, 32, 128, attention_layers=4), 219.41),
        (Config(32, 2560, 40, 64, 10240, 65536, 96, 96, 64, 320, attention_layers=8), 3577.31),
    ],
)
def test_released_models_have_their_published_size(config: Config, millions: float) -> None:
    sizes = shapes(config)
    sizes |= {f"blocks.0.att.v{i}": sizes[f"blocks.1.att.v{i}"] for i in range(3)}  # unused, but counted
    assert round(sum(torch.Size(shape).numel() for shape in sizes.values()) / 1e6, 2) == millions


def test_a_block_and_a_part_are_told_from_each_other() -> None:
    assert (block_of("blocks.3.att.key.weight"), part_of("blocks.3.att.key.weight")) == ("blocks.3", "att.key.weight")
    assert (block_of("moba.1.att.key.weight"), part_of("moba.1.att.key.weight")) == ("moba.1", "moba.att.key.weight")
    assert (block_of("head.weight"), part_of("head.weight")) == (None, "head.weight")
    assert squeezed("moba.1.ffn.x_k", torch.ones(1, 1, 4)).shape == (4,)


def test_a_config_without_attention_is_as_before() -> None:
    assert WIDE.attention_layers == 0 and WIDE.skipped == []
    assert WIDE.blocks == ["blocks.0", "blocks.1", "blocks.2"]
    assert HYBRID.blocks == ["blocks.0", "blocks.1", "moba.0", "blocks.2", "blocks.3", "moba.1"]
    assert HYBRID.skipped == ["blocks.4"]


def test_a_hybrid_is_made_from_nothing() -> None:
    made = synthesize(HYBRID, lambda name: Fill(0.5), 7, source="here")
    assert cp.infer(made.tensors) == HYBRID
    assert cp.census(cp.entries_of(made), HYBRID, cp.detect(made.tensors))[0].kind == "never run"


# Spellings


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_read_and_the_released_one_written(tmp_path: Path, spelling: str, kind: str) -> None:
    start = model(HYBRID)
    path = save(tmp_path, spelled(spelling), f"from-{kind}")
    read = load(path)
    assert (read.config, read.scheme) == (HYBRID, "rwkvx")
    assert_same_bits(read.tensors, start.tensors)
    assert write(read, tmp_path / kind, "rwkvx") == ()
    stored = torch.load(tmp_path / kind) if kind.endswith("pth") else load_file(tmp_path / kind)
    assert_same_bits(stored, spelled("released"))
    again = load(tmp_path / kind)
    assert_same_bits(again.tensors, start.tensors)
    assert again.fingerprint() == start.fingerprint()


def test_spellings_may_be_mixed(tmp_path: Path) -> None:
    official = model(HYBRID).tensors
    tensors = {
        name: tensor
        for i, spelling in enumerate(SPELLINGS)
        for name, tensor in spelled(spelling, dict([*official.items()][i::4])).items()
    }
    assert_same_bits(load(save(tmp_path, tensors)).tensors, official)


def test_a_model_without_attention_is_still_an_rwkv_7(tmp_path: Path) -> None:
    write(model(), tmp_path / "x.pth", "rwkvx")
    assert load(tmp_path / "x.pth").config == WIDE
    for spelling, scheme in {"documented": "rwkvx", "in memory": "official"}.items():
        tensors = spelled(spelling, model().tensors)
        read = load(save(tmp_path, tensors))
        assert (read.config, read.scheme, read.fingerprint()) == (WIDE, scheme, model().fingerprint())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_finding_speaks_as_the_file_does(tmp_path: Path, spelling: str) -> None:
    gone = ("moba.1.ln1.bias", "blocks.2.att.w1", "head.weight")
    tensors = {name: tensor for name, tensor in model(HYBRID).tensors.items() if name not in gone}
    findings = cp.read(save(tmp_path, spelled(spelling, tensors))).findings
    missing = {finding.name for finding in findings if finding.kind == "missing"}
    assert missing == set(spelled(spelling, dict.fromkeys(gone, torch.ones(1))))


def test_a_tensor_under_two_spellings_is_there_twice(tmp_path: Path, gander: Run) -> None:
    extra = {"moba.blocks.0.ln1.bias": torch.ones(192), "emb.weight": torch.ones(77, 192)}
    status, out, _ = gander("inspect", save(tmp_path, spelled("released") | extra))
    assert status == 2
    found = re.findall(r"duplicate: (\S+) also as (\S+)", out)
    assert {frozenset(names) for names in found} == {
        frozenset({"moba.0.ln1.bias", "moba.blocks.0.ln1.bias"}),
        frozenset({"rwkv.emb.weight", "emb.weight"}),
    }


# What is never run


def test_blocks_never_run_are_no_part_of_the_model() -> None:
    start, config = model(HYBRID), HYBRID
    assert not any(used(name, config) for name in start.tensors if name.startswith("blocks.4."))
    assert not used("blocks.0.att.v1", config) and used("moba.1.ffn.x_k", config) and used("emb.weight", config)
    weights = start.weights()
    assert set(weights) == {name for name in start.tensors if not name.startswith("blocks.4.")}
    assert weights["moba.0.ffn.x_k"].shape == (192,)
    changed = {name: tensor + 1 if name.startswith("blocks.4.") else tensor for name, tensor in start.tensors.items()}
    assert replace(start, tensors=changed).fingerprint() == start.fingerprint()
    less = {name: tensor for name, tensor in start.tensors.items() if not name.startswith("blocks.4.")}
    assert replace(start, config=replace(config, layers=4), tensors=less).fingerprint() == start.fingerprint()
    other = start.tensors | {"moba.1.ln1.bias": start.tensors["moba.1.ln1.bias"] + 1}
    assert replace(start, tensors=other).fingerprint() != start.fingerprint()


def test_the_embedding_is_normalised_even_where_block_0_is_never_run() -> None:
    config = replace(HYBRID, layers=2, attention_layers=3)
    start = model(config)
    names = {name for name in start.weights() if name.startswith("blocks.")}
    assert names == {"blocks.0.ln0.weight", "blocks.0.ln0.bias"}
    changed = start.tensors | {"blocks.0.ln0.bias": start.tensors["blocks.0.ln0.bias"] + 1}
    assert replace(start, tensors=changed).fingerprint() != start.fingerprint()


def test_zeros_are_suspect_only_where_they_are_used(tmp_path: Path) -> None:
    tensors = model(HYBRID).tensors
    for name in ("blocks.4.ffn.key.weight", "moba.1.ffn.key.weight"):
        tensors[name] = torch.zeros_like(tensors[name])
    assert cp.all_zero(load(save(tmp_path, spelled("released", tensors)))) == ["moba.1.ffn.key.weight"]


# What `gander inspect` shows


@pytest.mark.parametrize(
    ("layers", "attention_layers", "order", "never"),
    [
        (4, 2, "R0-1 A0 R2-3 A1", ""),
        (5, 2, "R0-1 A0 R2-3 A1", "rwkv.blocks.4"),
        (3, 1, "R0-2 A0", ""),
        (2, 3, "A0-2", "rwkv.blocks.0, rwkv.blocks.1"),
        (3, 3, "R0 A0 R1 A1 R2 A2", ""),
    ],
)
def test_inspect_shows_the_order_and_what_is_never_run(
    tmp_path: Path, gander: Run, layers: int, attention_layers: int, order: str, never: str
) -> None:
    start = model(replace(HYBRID, layers=layers, attention_layers=attention_layers))
    status, out, _ = gander("inspect", save(tmp_path, spelled("released", start.tensors), "x.pth"))
    text = re.sub(r"\s+", " ", out)
    assert status == 0 and out.endswith("sound\n")
    for fact in (
        "kind RWKV-X",
        f"layers L {layers} + {attention_layers} of attention",
        f"block order {order} ",
        "attention H 3 heads · N 64",
        "scheme rwkvx",
        "LoRA ranks w 17 · a 19 · v 23 · g 29",
        f"parameters {sum(tensor.numel() for name, tensor in start.tensors.items() if used(name, start.config)):,} ",
    ):
        assert fact in text
    skipped = f"never run: {never} though in the file: {attention_layers} attention blocks do not divide {layers} "
    assert (skipped + "(official rule)" in text) == bool(never) == ("never run" in text)


def test_inspect_as_json(tmp_path: Path, gander: Run) -> None:
    start = model(HYBRID, unused=True)
    status, out, _ = gander("inspect", save(tmp_path, spelled("documented", start.tensors)), "--json")
    report = json.loads(out)
    assert (status, report["sound"], report["kind"]) == (0, True, "RWKV-X")
    assert Config(**report["config"]) == HYBRID
    assert report["attention"] == {"layers": 2, "heads": 3, "head_size": 64}
    assert (report["blocks"], report["skipped"]) == (HYBRID.blocks, ["blocks.4"])
    left_out = [tensor for name, tensor in start.tensors.items() if not used(name, HYBRID)]
    assert report["parameters_left_out"] == sum(tensor.numel() for tensor in left_out)
    assert report["parameters"] == sum(tensor.size for tensor in start.weights().values())
    assert report["fingerprint"] == start.fingerprint()
    assert report["findings"] == [
        {
            "kind": "never run",
            "name": "rwkv.blocks.4",
            "detail": "though in the file: 2 attention blocks do not divide 5 (official rule)",
            "error": False,
        }
    ]
    _, out, _ = gander("inspect", save(tmp_path, model().tensors, "7.safetensors"), "--json")
    report = json.loads(out)
    assert (report["kind"], report["attention"], report["skipped"]) == ("RWKV-7", None, [])


# What is wrong: one message each, exit 2, nothing lost


def without(*starts: str) -> Tensors:
    return {name: tensor for name, tensor in spelled("released").items() if not name.startswith(starts)}


def renumbered(n: int) -> Tensors:
    """The last attention block under another number."""
    return {name.replace("moba.1.", f"moba.{n}."): tensor for name, tensor in spelled("released").items()}


FAULTS: dict[str, tuple[Callable[[], Tensors], list[str]]] = {
    "a gap": (lambda: renumbered(2), ["missing: moba.1 the whole block: the numbering has a gap"]),
    "two gaps": (
        lambda: renumbered(3),
        [f"missing: moba.{n} the whole block: the numbering has a gap" for n in (1, 2)],
    ),
    "no first": (lambda: without("moba.0."), ["missing: moba.0 the whole block: the numbering has a gap"]),
    "a gap among the others": (
        lambda: without("rwkv.blocks.1."),
        ["missing: rwkv.blocks.1 the whole block: the numbering has a gap"],
    ),
    "a number with a zero": (
        lambda: spelled("released") | {"moba.01.ln1.bias": torch.ones(192)},
        ["unknown: moba.01.ln1.bias"],
    ),
    "a number beyond all sense": (
        lambda: spelled("released") | {"moba.123456789.ln1.bias": torch.ones(192)},
        ["unknown: moba.123456789.ln1.bias"],
    ),
    "missing": (
        lambda: without("moba.0.ffn.x_k", "moba.1.att.value"),
        ["missing: moba.0.ffn.x_k", "missing: moba.1.att.value.weight"],
    ),
    "missing in a block never run": (
        lambda: without("rwkv.blocks.4.att.g1"),
        ["missing: rwkv.blocks.4.att.g1"],
    ),
    "a norm of queries": (
        lambda: spelled("released") | {"moba.0.att.q_norm.weight": torch.ones(64)},
        ["unknown: moba.0.att.q_norm.weight"],
    ),
    "a bias": (
        lambda: spelled("released") | {"moba.1.att.key.bias": torch.ones(192)},
        ["unknown: moba.1.att.key.bias"],
    ),
    "RWKV-7's tensors": (
        lambda: spelled("released") | {"moba.1.att.r_k": torch.ones(3, 64), "moba.0.ln0.bias": torch.ones(192)},
        ["unknown: moba.0.ln0.bias", "unknown: moba.1.att.r_k"],
    ),
    "4 D, as official code has it": (
        lambda: spelled("released") | {"moba.0.ffn.key.weight": torch.ones(768, 192)},
        ["wrong shape: moba.0.ffn.key.weight is [768, 192], expected [208, 192]"],
    ),
    "transposed": (
        lambda: spelled("released") | {"moba.1.ffn.value.weight": torch.ones(208, 192)},
        ["wrong shape: moba.1.ffn.value.weight is [208, 192], expected [192, 208]: it is transposed"],
    ),
    "grouped queries": (
        lambda: spelled("released") | {"moba.0.att.key.weight": torch.ones(64, 192)},
        ["wrong shape: moba.0.att.key.weight is [64, 192], expected [192, 192]"],
    ),
    "a vector": (
        lambda: spelled("released") | {"moba.0.ffn.x_k": torch.ones(1, 1, 191)},
        ["wrong shape: moba.0.ffn.x_k is [191], expected [192]"],
    ),
    "int8": (
        lambda: spelled("released") | {"moba.0.att.key.weight": torch.ones(192, 192, dtype=torch.int8)},
        ["wrong dtype: moba.0.att.key.weight is int8, expected float32, bfloat16, float16"],
    ),
    "NaN": (
        lambda: spelled("released") | {"moba.1.ln2.bias": torch.full((192,), torch.nan)},
        ["non-finite: moba.1.ln2.bias holds 192 NaN and 0 infinite of 192 values"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_said(tmp_path: Path, gander: Run, fault: str) -> None:
    make, said = FAULTS[fault]
    path = save(tmp_path, make())
    before = path.read_bytes()
    status, out, err = gander("inspect", path)
    assert (status, err) == (2, "")
    kinds = "missing|unknown|duplicate|wrong shape|wrong dtype|non-finite"
    assert re.findall(rf"^(?:{kinds}): .*$", out, flags=re.M) == said
    assert out.endswith(f"not sound: {len(said)} problems\n")
    status, out, err = gander("convert", path, tmp_path / "to.pth", "--to", "rwkvx")
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {path} is not a sound RWKV-X:\n    {said[0]}") and "Traceback" not in err
    assert [file.name for file in tmp_path.iterdir()] == [path.name] and path.read_bytes() == before


def test_one_wrong_tensor_changes_no_size(tmp_path: Path) -> None:
    """Even where most of the channel mixes are those of attention blocks."""
    start = model(replace(HYBRID, layers=2, attention_layers=3))
    wide = {f"moba.{n}.ffn.key.weight": torch.ones(768, 192) for n in range(3)}
    reading = cp.read(save(tmp_path, spelled("released", start.tensors | wide)))
    assert reading.checkpoint.config == start.config
    assert [finding.name for finding in reading.errors] == list(wide)


def test_heads_of_another_size_are_refused(tmp_path: Path, gander: Run) -> None:
    attention = {
        name: torch.ones(shape)
        for name, shape in shapes(replace(NARROW, attention_layers=1)).items()
        if name.startswith("moba.")
    }
    path = save(tmp_path, spelled("released", model(NARROW).tensors | attention))
    message = "the heads of an RWKV-X are 64 wide, those of its att.r_k 32\n  expected: att.r_k of shape [heads, 64]"
    status, out, err = gander("inspect", path)
    assert (status, out) == (2, "") and err.startswith(f"error: {path}: {message}")


def test_attention_alone_is_no_model(tmp_path: Path, gander: Run) -> None:
    tensors = {name: tensor for name, tensor in model(HYBRID).tensors.items() if name.startswith("moba.")}
    status, _, err = gander("inspect", save(tmp_path, tensors))
    assert status == 2 and "the heads cannot be counted: att.r_k is missing" in err


def test_other_schemes_would_lose_the_attention(tmp_path: Path, gander: Run) -> None:
    source = save(tmp_path, spelled("released"), "x.pth")
    for scheme, target in (("official", "m.pth"), ("hf", "hf")):
        for option in ((), ("--allow-change",)):
            status, out, err = gander("convert", source, tmp_path / target, "--to", scheme, *option)
            assert (status, out) == (2, "")
            assert err.startswith(f"error: {scheme} cannot hold this model: its 2 attention blocks would be lost\n")
            assert "--to rwkvx" in err and not (tmp_path / target).exists()
    with pytest.raises(InputError, match="would be lost"):
        write(load(source), tmp_path / "m.pth", "official")


def test_attention_in_a_hugging_face_folder_is_unknown(tmp_path: Path, gander: Run) -> None:
    write(model(), tmp_path / "hf", "hf")
    weights = tmp_path / "hf/model.safetensors"
    save_file(load_file(weights) | {"moba.0.ln1.bias": torch.ones(192)}, weights)
    status, out, _ = gander("inspect", tmp_path / "hf")
    assert status == 2 and "unknown: moba.0.ln1.bias\n" in out


def test_a_stranger_beside_official_names_is_unknown(tmp_path: Path, gander: Run) -> None:
    status, out, _ = gander("inspect", save(tmp_path, model().tensors | {"moba.0.att.q_norm.weight": torch.ones(64)}))
    assert status == 2 and "unknown: moba.0.att.q_norm.weight\n" in out
