"""Stored traces, their manifest, and the verifier: what is stored holds, and each way to spoil it is noticed."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from gander.errors import InputError
from gander.golden import GOLDEN, HOLDS, NAMES, greedy, make, open_model, read_manifest, record, verify
from gander.golden.manifest import MANIFEST, write_manifest
from gander.golden.record import expected_names, run
from gander.golden.store import PLANS, store, tokens_of
from gander.golden.verify import deviation
from gander.traces import parse_attention, parse_path, read, write


def entry(name, kind):
    golden = next(model for model in read_manifest().models if model.name == name)
    return golden, next(trace for trace in golden.traces if f".{kind}." in trace.file)


def test_the_stored_traces_are_what_the_reference_says():
    results = list(verify(read_manifest()))
    assert len(results) == sum(map(len, PLANS.values())) == 16
    assert [result for result in results if result.verdict != "same"] == []


def test_the_folder_is_small_and_has_nothing_unlisted():
    files = [path for path in GOLDEN.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 8_000_000
    manifest = read_manifest()
    listed = {model.path(trace) for model in manifest.models for trace in model.traces}
    assert listed == set((GOLDEN / "traces").iterdir())
    assert [model.name for model in manifest.models] == list(NAMES)
    for model in manifest.models:
        assert manifest.find(model.fingerprint) is model
        for trace in model.traces:
            assert trace.bytes == model.path(trace).stat().st_size
            stored = model.read(trace)
            assert list(stored.tensors) == expected_names(open_model(model.source).config, trace.holds)
            assert {array.dtype for array in stored.tensors.values()} == {np.dtype("float32")}
    assert manifest.find("0" * 64) is None


@pytest.mark.parametrize("name", NAMES)
def test_tokens_have_both_ends_and_repeats_and_the_lengths_that_matter(name):
    golden, tokens = entry(name, "tokens")
    vocab = open_model(golden.source).config.vocab
    assert {0, vocab - 1} <= set(tokens.tokens[:6])
    assert len(set(tokens.tokens)) < len(tokens.tokens)
    assert tokens.tokens[1] == tokens.tokens[2]
    assert len(tokens.tokens) == (130 if name != "vocab" else 6)
    taps = entry(name, "taps")[1]
    assert len(taps.tokens) == (17 if name != "hybrid" else 5) and taps.start == "random:1"
    assert taps.tokens == tokens_of(name, vocab, len(taps.tokens))


@pytest.mark.parametrize("policy", ["capped", "moba", "package", "evicting", "memory"])
def test_other_policies_than_dense_have_something_to_do(policy):
    """They say the same as dense at first, and something else before the text ends."""
    golden, trace = entry("hybrid", policy)
    stored, dense = golden.read(trace), golden.read(entry("hybrid", "tokens")[1])
    tokens = len(trace.tokens)
    assert stored.attention == trace.attention != "dense" and trace.tokens == dense.tokens[:tokens]
    far = np.abs(stored.tensors["logits"] - dense.tensors["logits"][:tokens]).max(axis=-1) > 0.01
    assert not far[:8].any() and far[-10:].any()


def test_eviction_changes_what_the_package_says():
    one, other = (entry("hybrid", kind) for kind in ("package", "evicting"))
    assert one[1].tokens == other[1].tokens
    assert sum(parse_path(other[1].path, 80)[:-1]) > parse_attention(other[1].attention).evict_at
    difference = np.abs(one[0].read(one[1]).tensors["logits"] - other[0].read(other[1]).tensors["logits"])
    assert difference[-16:].max() > 0.01


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 130])
def test_shorter_texts_are_prefixes(length):
    golden, trace = entry("adversarial", "tokens")
    logits = run(open_model(golden.source), trace.tokens[:length])["logits"]
    assert deviation("logits", golden.read(trace).tensors["logits"][:length], logits) <= 1


GREEDY = [("adversarial", "greedy"), ("narrow", "greedy"), ("hybrid", "greedy"), ("vocab", "tokens")]


@pytest.mark.parametrize(("name", "kind"), GREEDY)
def test_the_continuation_is_the_likeliest_by_a_margin(name, kind):
    golden, trace = entry(name, kind)
    logits = golden.read(trace).tensors["logits"]
    assert len(trace.tokens) - trace.prompt == (32 if kind == "greedy" else 2)
    said = logits[trace.prompt - 1 : -1]
    assert said.argmax(axis=-1).tolist() == list(trace.tokens[trace.prompt :])
    second, first = np.partition(said, -2, axis=-1)[:, -2:].T
    assert (first - second).min() > 1e-3 * logits.std()  # no tie that another engine could break otherwise


def test_greedy_carries_its_state():
    checkpoint = open_model("golden:narrow")
    tokens = greedy(checkpoint, (1, 2), 3)
    for end in range(2, 5):  # recomputed from the start each time
        assert run(checkpoint, tokens[:end])["logits"][-1].argmax() == tokens[end]


def test_making_them_again_gives_the_same_bytes(tmp_path):
    store(tmp_path)
    fresh = read_manifest(tmp_path)
    for new, old in zip(fresh.models, read_manifest().models, strict=True):
        assert new.fingerprint == old.fingerprint
        for now, then in zip(new.traces, old.traces, strict=True):
            # Not the hash: another BLAS may round the last bit otherwise.
            assert replace(now, sha256="") == replace(then, sha256="")


# -- spoiling a folder ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A folder that a user made, for a model small enough to spoil often."""
    make(open_model("golden:narrow"), [3, 0, 511, 3], tmp_path, holds=HOLDS)
    return tmp_path


def verdicts(folder):
    return [(result.verdict, result.detail) for result in verify(read_manifest(folder))]


def spoil(folder, change):
    """Rewrite the trace with other tensors, and the manifest to match."""
    path = folder / "trace.safetensors"
    trace = read(path)
    tensors = {name: array.copy() for name, array in trace.tensors.items()}
    change(tensors)
    write(path, replace(trace, tensors=tensors))
    from gander.golden.manifest import sha256

    (golden,) = read_manifest(folder).models
    write_manifest(folder, [replace(golden, traces=(replace(golden.traces[0], sha256=sha256(path)),))])


def test_a_made_folder_verifies(folder):
    assert verdicts(folder) == [("same", "93 tensors")]
    (golden,) = read_manifest(folder).models
    assert golden.source == "golden:narrow"
    assert golden.traces[0].tokens == (3, 0, 511, 3) and golden.traces[0].prompt is None


def test_rewriting_it_changes_nothing(folder):
    spoil(folder, lambda tensors: None)
    assert verdicts(folder)[0][0] == "same"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_is_noticed(folder, value):
    def change(tensors):
        tensors["blocks.1.att.g"][2, 5] = value

    spoil(folder, change)
    assert verdicts(folder)[0][0] == "wrong" and "blocks.1.att.g" in verdicts(folder)[0][1]


@pytest.mark.parametrize("name", ["emb", "blocks.0.att.wkv", "blocks.2.att.bonus", "logits", "blocks.2.state.wkv"])
def test_two_units_in_the_last_place_are_noticed(folder, name):
    def change(tensors):
        array = tensors[name]
        where = np.unravel_index(np.abs(array).argmax(), array.shape)
        array[where] = np.nextafter(np.nextafter(array[where], np.float32(9e9)), np.float32(9e9))

    spoil(folder, change)
    assert verdicts(folder)[0][0] == "wrong" and name in verdicts(folder)[0][1]


def test_a_missing_tensor_is_missing(folder):
    spoil(folder, lambda tensors: tensors.pop("blocks.2.mid"))
    assert verdicts(folder) == [("missing", "1 of 93 tensors, first blocks.2.mid")]


def test_a_missing_file_is_missing(folder):
    (folder / "trace.safetensors").unlink()
    assert verdicts(folder) == [("missing", "no such file")]


def test_a_flipped_bit_is_noticed(folder):
    path = folder / "trace.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert verdicts(folder)[0][0] == "wrong" and "sha256" in verdicts(folder)[0][1]
    path.write_bytes(content[:-1])
    assert verdicts(folder)[0][0] == "wrong" and "M1" in verdicts(folder)[0][1]


def edit(folder, change):
    content = json.loads((folder / MANIFEST).read_text())
    change(content)
    (folder / MANIFEST).write_text(json.dumps(content))


def test_another_model_is_noticed(folder):
    edit(folder, lambda content: content["models"][0].update(source="golden:adversarial"))
    assert verdicts(folder)[0][0] == "wrong" and "another model" in verdicts(folder)[0][1]


@pytest.mark.parametrize("changed", [{"tokens": [3, 0, 511, 4]}, {"start": "random:1"}], ids=str)
def test_a_manifest_that_disagrees_is_noticed(folder, changed):
    edit(folder, lambda content: content["models"][0]["traces"][0].update(changed))
    assert verdicts(folder)[0][0] == "wrong" and "disagree" in verdicts(folder)[0][1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.update(version=2), r"newer gander \(version 2, this one reads 1\)"),
        (lambda content: content.pop("version"), "no version"),
        (lambda content: content.pop("models"), "models"),
        (lambda content: content["models"][0].pop("fingerprint"), "fingerprint"),
        (lambda content: content["models"][0]["traces"][0].pop("sha256"), "sha256"),
        (lambda content: content["models"][0]["traces"][0].update(extra=1), "extra"),
    ],
)
def test_a_manifest_that_is_none(folder, change, message):
    edit(folder, change)
    with pytest.raises(InputError, match=message):
        read_manifest(folder)


def test_no_manifest_and_no_json(tmp_path):
    with pytest.raises(InputError, match="gander golden make"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(InputError, match="no version"):
        read_manifest(tmp_path)


def test_deviation_is_in_units_of_its_bound():
    expected = np.array([[[1.0, 0.5], [1e-8, 0.0]]])  # (T, H, N): one strong head, one faint
    bound = 2.0**-24 * np.abs(expected) + 1e-12 * np.array([[[1.0], [1e-8]]])
    assert deviation("blocks.0.att.k", expected, expected) == 0
    assert deviation("blocks.0.att.k", expected + bound / 2, expected) == pytest.approx(0.5, rel=1e-3)
    assert deviation("blocks.0.att.k", expected + 2 * bound, expected) == pytest.approx(2, rel=1e-3)
    assert deviation("blocks.0.att.k", expected[:, :, :1], expected) == np.inf
    assert deviation("blocks.0.att.k", expected * np.nan, expected) == np.inf


def test_float64_is_good_to_well_below_the_bound():
    """The reference in extended precision: what float64's rounding may move, and so another BLAS."""
    from gander import reference

    checkpoint = open_model("golden:narrow")
    tokens = entry("narrow", "tokens")[1].tokens[:40]
    value = run(checkpoint, tokens)
    exact = {}
    state = {name: a.astype(np.longdouble) for name, a in reference.initial_state(checkpoint.config).items()}

    def keep(name, array):
        exact[name] = array
        return array

    _, after = reference.forward(checkpoint.weights(np.longdouble), checkpoint.config, tokens, state, keep)
    for name, array in (exact | after).items():
        others = tuple(range(array.ndim - 1)) if array.ndim == 2 else (0, -1)
        scale = np.abs(array).max(axis=others, keepdims=True) if array.ndim > 1 else np.abs(array).max()
        assert (np.abs(array - value[name]) <= 1e-12 * np.maximum(scale, np.abs(array))).all(), name


def test_make_does_not_replace_unasked(folder):
    before = (folder / MANIFEST).read_bytes()
    with pytest.raises(InputError, match=r"already has trace\.safetensors and manifest\.json"):
        make(open_model("golden:narrow"), [1], folder)
    assert (folder / MANIFEST).read_bytes() == before
    make(open_model("golden:narrow"), [1], folder, holds=("logits",), force=True)
    assert verdicts(folder) == [("same", "1 tensor")]


def test_make_needs_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        make(open_model("golden:narrow"), [1], tmp_path / "file" / "deeper")


def test_record_tells_of_each_tap():
    seen = []
    record(open_model("golden:narrow"), [1], seen=seen.append)
    assert seen[0] == "emb" and seen[-1] == "logits" and len(seen) == 3 + 3 * 27


def test_a_copy_elsewhere_verifies(tmp_path):
    shutil.copytree(GOLDEN / "traces", tmp_path / "traces")
    shutil.copy(GOLDEN / MANIFEST, tmp_path)
    (tmp_path / "traces" / "narrow.taps.safetensors").unlink()
    assert sorted(verdict for verdict, _ in verdicts(tmp_path)) == ["missing"] + ["same"] * 15


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    """Whenever it comes: the folder is there before the work, and gone after it."""

    def stop(name):
        assert (tmp_path / "made").is_dir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(open_model("golden:narrow"), [1, 2], tmp_path / "made", seen=stop)
    assert not list(tmp_path.iterdir())
