"""The trace file: what is written is read, and each rule of FORMAT.md is enforced."""

import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gander import traces
from gander.errors import InputError
from gander.traces import Trace, read, write

MODEL = "0123456789abcdef" * 4
METADATA = {
    "gander.schema": "1",
    "gander.model": MODEL,
    "gander.tokens": "[0, 7, 7]",
    "gander.engine": "mine",
    "gander.dtype": "float32",
    "gander.path": "split:2+1",
}
# T 3, H 2, N 4, D 8, F 5, V 9
SHAPES = {
    "emb": (3, 8),
    "blocks.1.att.w": (3, 2, 4),
    "blocks.1.ffn.k": (3, 5),
    "logits": (3, 9),
    "blocks.1.state.wkv": (2, 4, 4),
    "blocks.1.state.att_x": (8,),
}


def store(path, metadata=None, shapes=SHAPES, kind="F32"):
    """A safetensors file by hand: any metadata (None takes a key away), any shapes, any kind of number."""
    size = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I32": 4}[kind]
    changed = {f"gander.{key}": value for key, value in (metadata or {}).items()}
    header = {"__metadata__": {key: value for key, value in (METADATA | changed).items() if value is not None}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + size * int(np.prod(shape))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return path


def trace_of(**changed):
    rng = np.random.default_rng(1)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    return replace(Trace(MODEL, (0, 7, 7), "mine", "float32", "split:2+1", "random:3", tensors), **changed)


def test_what_is_written_is_read(tmp_path):
    trace = trace_of()
    trace.tensors["emb"][0, :3] = np.nan, np.inf, -0.0  # evidence, not a mistake
    trace.tensors["logits"] = trace.tensors["logits"].astype(np.float64) + 1e-12
    write(tmp_path / "t.safetensors", trace)
    again = read(tmp_path / "t.safetensors")
    assert replace(again, tensors={}) == replace(trace, tensors={})
    assert list(again.tensors) == list(trace.tensors)
    for name, array in trace.tensors.items():
        assert again.tensors[name].dtype == array.dtype
        assert again.tensors[name].tobytes() == array.tobytes(), name


def test_the_same_trace_gives_the_same_bytes_and_nothing_else(tmp_path):
    for name in "ab":
        write(tmp_path / name, trace_of())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_strided_and_big_endian_arrays_are_written_by_value(tmp_path):
    trace = trace_of()
    wkv = np.arange(32, dtype=np.float32).reshape(2, 4, 4)
    write(tmp_path / "t", replace(trace, tensors={"blocks.1.state.wkv": wkv.swapaxes(1, 2)}))
    assert np.array_equal(read(tmp_path / "t").tensors["blocks.1.state.wkv"], wkv.swapaxes(1, 2))
    with pytest.raises(InputError, match="M10"):
        write(tmp_path / "t", replace(trace, tensors={"blocks.1.state.wkv": wkv.astype(">f4")}))


def test_the_file_is_ordinary_safetensors(tmp_path):
    from safetensors.numpy import load_file

    trace = trace_of()
    write(tmp_path / "t.safetensors", trace)
    for name, array in load_file(tmp_path / "t.safetensors").items():
        assert np.array_equal(array, trace.tensors[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_tensors_become_float32(tmp_path, dtype):
    value = torch.tensor([[1.0, -3.140625, 2.0**-20, float("nan"), float("inf"), 0, 1, 2]] * 3).to(dtype)
    save_file({"emb": value}, tmp_path / "t.safetensors", metadata=METADATA)
    array = read(tmp_path / "t.safetensors").tensors["emb"]
    assert array.dtype == np.float32
    assert np.array_equal(array, value.float().numpy(), equal_nan=True)


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "t"
    write(path, trace_of())
    before = path.read_bytes()
    with pytest.raises(InputError, match="cannot be written"):
        write(path, trace_of(tokens=(1,)))
    with pytest.raises(InputError, match="cannot write"):
        write(tmp_path / "absent" / "t", trace_of())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_good_file_is_good(tmp_path):
    trace = read(store(tmp_path / "t"))
    assert trace.start == "zero"
    assert {name: array.shape for name, array in trace.tensors.items()} == SHAPES


@pytest.mark.parametrize(
    "metadata",
    [
        {"path": "prefill"},
        {"path": "step"},
        {"path": "split:1+1+1"},
        {"start": "zero"},
        {"start": "random:18"},
        {"dtype": "bfloat16"},
        {"tokens": "[0, 8, 8]"},
    ],
    ids=str,
)
def test_what_the_metadata_may_say(tmp_path, metadata):
    read(store(tmp_path / "t", metadata))


@pytest.mark.parametrize("shapes", [{"logits": (3, 9)}, {"blocks.0.att.states": (3, 2, 4, 4)}], ids=str)
def test_a_trace_may_be_partial(tmp_path, shapes):
    assert set(read(store(tmp_path / "t", shapes=shapes)).tensors) == set(shapes)


def test_other_keys_are_ignored(tmp_path):
    save_file({"emb": torch.zeros(3, 8)}, tmp_path / "t", metadata=METADATA | {"mine": "anything"})
    read(tmp_path / "t")


BROKEN_METADATA = [
    ("M2", {"schema": None}, "no gander.schema"),
    ("M2", {"schema": "one"}, "'one', not a number"),
    ("M2", {"schema": "2"}, r"written by a newer gander \(schema 2, this one reads 1\)"),
    *[("M3", {key: None}, f"no gander.{key}") for key in ("model", "tokens", "engine", "dtype", "path")],
    ("M3", {"engine": ""}, "no gander.engine"),
    ("M3", {"strat": "zero"}, "did you mean 'gander.start'"),
    ("M4", {"model": MODEL[:-1]}, "not 64"),
    ("M4", {"model": MODEL.upper()}, "lower-case"),
    ("M5", {"tokens": "0, 7, 7"}, "not JSON"),
    ("M5", {"tokens": "[]"}, "at least one"),
    ("M5", {"tokens": '{"0": 7}'}, "not a list"),
    ("M5", {"tokens": "[0, 7.5, 7]"}, "token 1 of gander.tokens is 7.5"),
    ("M5", {"tokens": "[0, 7, true]"}, "token 2"),
    ("M5", {"tokens": "[-1, 7, 7]"}, "token 0"),
    ("M6", {"dtype": "fp32"}, "'fp32'"),
    ("M7", {"path": "prefil"}, "'prefil', not prefill"),
    ("M7", {"path": "split:2+2"}, "does not add up to the 3 tokens"),
    ("M7", {"path": "split:3"}, r"like split:5\+3"),
    ("M7", {"path": "split:3+0"}, r"like split:5\+3"),
    ("M8", {"start": "random"}, "not zero"),
    ("M8", {"start": "random:-1"}, "not zero"),
    ("M14", {"attention": "full"}, "no attention policy is called 'full'"),
    ("M14", {"attention": "moba:chunk=0"}, "chunk is 0"),
    ("M15", {"quantized": "int4"}, "'int4'"),
    ("M13", {"tokens": "[0, 7, 9]"}, "token 2 is 9, but logits are of 9 tokens"),
]
BROKEN_SHAPES = [
    ("M9", {}, "no tensor"),
    ("M9", {"blocks.0.att.wvk": (3, 2, 4)}, "'blocks.0.att.wkv'"),
    ("M11", SHAPES | {"emb": (3, 2, 4)}, r"emb has shape \(3, 2, 4\), expected \(T, D\)"),
    ("M11", SHAPES | {"emb": (2, 8)}, "emb has 2 rows for 3 tokens"),
    ("M11", SHAPES | {"logits": (1, 9)}, "logits has 1 rows"),
    ("M12", SHAPES | {"blocks.1.mid": (3, 9)}, "D is 8 in emb, but 9 in blocks.1.mid"),
    ("M12", SHAPES | {"blocks.1.state.wkv": (2, 4, 5)}, "N is 4"),
    ("M12", {"emb": (3, 9), "blocks.1.att.w": (3, 2, 4)}, "D is 9 in emb, but H·N is 2 · 4"),
]


def refused(path, rule, message):
    with pytest.raises(InputError, match=message) as caught:
        read(path)
    assert str(caught.value).endswith(f"(FORMAT.md, {rule})")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("rule", "metadata", "message"), BROKEN_METADATA, ids=str)
def test_metadata_that_breaks_a_rule(tmp_path, rule, metadata, message):
    refused(store(tmp_path / "t", metadata), rule, message)


@pytest.mark.parametrize(("rule", "shapes", "message"), BROKEN_SHAPES, ids=str)
def test_tensors_that_break_a_rule(tmp_path, rule, shapes, message):
    refused(store(tmp_path / "t", shapes=shapes), rule, message)


def test_m10_whole_numbers(tmp_path):
    refused(store(tmp_path / "t", kind="I32"), "M10", "stored as I32")


def test_every_rule_has_a_test():
    rules = re.findall(r"\*\*(M\d+)\*\*", Path(traces.__file__).with_name("FORMAT.md").read_text())
    assert len(rules) == len(set(rules))
    assert set(rules) == {"M1", "M10"} | {rule for rule, *_ in BROKEN_METADATA + BROKEN_SHAPES}


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"not a trace at all", b"\xff" * 64], ids=repr)
def test_m1_what_is_no_safetensors_file(tmp_path, content):
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(InputError, match=r"not a complete safetensors file.*M1"):
        read(tmp_path / "t")


def test_m1_every_truncation(tmp_path):
    content = store(tmp_path / "t").read_bytes()
    for end in (*range(0, len(content), 37), len(content) - 1):
        (tmp_path / "t").write_bytes(content[:end])
        with pytest.raises(InputError, match="M1"):
            read(tmp_path / "t")


def test_what_cannot_be_opened(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(InputError, match="cannot read"):
            read(path)
