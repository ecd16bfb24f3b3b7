"""Dumps under a tool's own names: matched by a map, or by shape and values."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gander.conformance.mutants import MUTANTS, Port
from gander.conformance.naming import propose
from gander.conformance.tracing import trace
from gander.errors import InputError
from gander.golden import open_model
from gander.traces import Trace, write
from gander.traces.foreign import convert, is_dump, known_of, read_dump, sizes
from gander.traces.maps import read_map

MODEL = open_model("golden:adversarial")
TOKENS = tuple(np.random.default_rng(1).integers(0, 512, 24).tolist())
LAYERS, T = MODEL.config.layers, len(TOKENS)
BY_ID = {mutant.id: mutant for mutant in MUTANTS}
Arrays = dict[str, np.ndarray]


def shown(mutant: str = "", dtype: str = "float32") -> Trace:
    return trace(Port(BY_ID[mutant] if mutant else None, dtype=dtype), MODEL, TOKENS, (T,))


@pytest.fixture(scope="module")
def right() -> Trace:
    return shown(dtype="float64")


@pytest.fixture(scope="module")
def port() -> Trace:
    return shown()


@pytest.fixture(scope="module")
def wrong() -> Trace:
    return shown("group_norm.eps_1e-5")


def backwards(x: np.ndarray) -> np.ndarray:
    """As a dump of ggml has it: ne for the shape, which lists the fastest axis first, and the numbers as they lie."""
    return np.ascontiguousarray(x).reshape(x.shape[::-1])


def logit(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.log(x) - np.log1p(-x)


def raw_embedding() -> np.ndarray:
    return MODEL.weights(np.float32)["emb.weight"][list(TOKENS)]


def llama_cpp(port: Trace) -> Arrays:
    """The names that llama.cpp gives to tensors of its graph; what it gives none is `node_` and a running number."""
    x = {name: value.astype(np.float64) for name, value in port.tensors.items()}
    dump = {"inp_embd": raw_embedding(), "node_4": x["emb"]}  # before and after ln0
    for i in range(LAYERS):
        block, node = f"blocks.{i}.", 57 + 93 * i
        dump |= {
            f"attn_norm-{i}": x[f"{block}att.in"][None],
            f"node_{node}": np.stack([x[f"{block}att.x{letter}"] for letter in "rwkvag"])[:, None],
            f"node_{node + 7}": x[f"{block}att.r"].reshape(T, -1),
            f"node_{node + 12}": np.clip(logit(-np.log(x[f"{block}att.w"]) / np.exp(-0.5)), -60, 60).reshape(T, -1),
            f"node_{node + 14}": x[f"{block}att.k"].reshape(T, -1),
            f"node_{node + 31}": -x[f"{block}att.kk"],
            f"node_{node + 52}": x[f"{block}att.norm"],
            f"ffn_inp-{i}": x[f"{block}mid"],
            f"ffn_norm-{i}": x[f"{block}ffn.in"],
            f"ffn_relu-{i}": np.sqrt(x[f"{block}ffn.k"]),
            f"ffn_sqr(relu)-{i}": x[f"{block}ffn.k"],
            f"l_out-{i}": x[f"{block}out"],
            f"cache_s_l{i}": x[f"{block}state.wkv"].reshape(-1),
        }
    dump |= {"result_norm": x["ln_out"], "result_output": x["logits"]}
    return {name: backwards(value.astype(np.float32)) for name, value in dump.items()}


def hugging_face(port: Trace) -> Arrays:
    """The modules of fla's RWKV7ForCausalLM, whose outputs a hook sees, and its cache."""
    x = {name: value.astype(np.float64) for name, value in port.tensors.items()}
    dump = {"model.embeddings": raw_embedding(), "model.layers.0.pre_norm": x["emb"]}
    states = {}
    for i in range(LAYERS):
        block, layer = f"blocks.{i}.", f"model.layers.{i}."
        dump |= {
            f"{layer}attn_norm": x[f"{block}att.in"],
            f"{layer}attn.r_proj": x[f"{block}att.r"].reshape(T, -1),
            f"{layer}attn.k_proj": x[f"{block}att.k"].reshape(T, -1),
            f"{layer}attn.v_proj": x[f"{block}att.v"].reshape(T, -1),
            f"{layer}attn.w": np.log(x[f"{block}att.w"]).reshape(T, -1),
            f"{layer}attn.a_lora": np.clip(logit(x[f"{block}att.a"]), -60, 60).reshape(T, -1),
            f"{layer}attn.a_lora.lora.0": np.random.default_rng(i).normal(size=(T, 19)),  # a rank: no tap
            f"{layer}attn.g_lora": x[f"{block}att.g"],
            f"{layer}attn.o_proj": x[f"{block}att.out"],
            f"{layer}attn": x[f"{block}att.out"],  # the same again
            f"{layer}ffn_norm": x[f"{block}ffn.in"],
            f"{layer}ffn.key": np.sqrt(x[f"{block}ffn.k"]) - (x[f"{block}ffn.k"] == 0),  # before relu²
            f"{layer}ffn.value": x[f"{block}ffn.out"],
            f"model.layers.{i}": x[f"{block}out"],
        }
        states |= {
            f"past_key_values.{i}.recurrent_state": x[f"{block}state.wkv"].swapaxes(1, 2),
            f"{layer}attn.g_norm": x[f"{block}att.norm"],  # (b t) d
        }
        dump |= {
            f"past_key_values.{i}.conv_state": x[f"{block}state.att_x"][None],
            f"past_key_values.{i}.ffn_state": x[f"{block}state.ffn_x"][None],
        }
        states[f"past_key_values.{i}.recurrent_state"] = states[f"past_key_values.{i}.recurrent_state"][None]
    dump |= {"model.norm": x["ln_out"], "lm_head": x["logits"]}
    batched = {name: value[None] for name, value in dump.items()} | states
    return {name: np.ascontiguousarray(value, np.float32) for name, value in batched.items()}


TOOLS: dict[str, tuple[Callable[[Trace], Arrays], int, int, set[str]]] = {
    # the dump, its tensors that are a tap or six, those taps, and what else is in it
    "llama.cpp": (llama_cpp, 3 + 12 * LAYERS, 3 + 17 * LAYERS, {"inp_embd", "ffn_relu-"}),
    "hf": (hugging_face, 3 + 16 * LAYERS, 3 + 16 * LAYERS, {"model.embeddings", "a_lora.lora.0", "attn"}),
}


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[str, Mapping[str, np.ndarray]], Path]:
    """A dump's file: safetensors or .npz."""

    def store(name: str, arrays: Mapping[str, np.ndarray]) -> Path:
        path = tmp_path / name
        if path.suffix == ".npz":
            np.savez(path, **arrays)
        else:
            save_file(dict(arrays), path)
        return path

    return store


@pytest.fixture
def reference(tmp_path: Path, right: Trace) -> Path:
    write(tmp_path / "reference.safetensors", right)
    return tmp_path / "reference.safetensors"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal without line breaks; and few faults to choose from, for the whole catalogue takes long."""
    monkeypatch.setenv("COLUMNS", "200")
    some = [mutant for mutant in MUTANTS if mutant.id.startswith(("group_norm", "gate", "bonus"))]
    monkeypatch.setattr("gander.conformance.mutants.MUTANTS", some)


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_a_right_dump_is_matched_and_agrees(
    gander: Callable, stored: Callable, reference: Path, port: Trace, tool: str, kind: str
) -> None:
    """Without a map: every tensor that is a tap is found and compared; the others are counted, with the reason."""
    make, matched, taps, left = TOOLS[tool]
    dump = stored(f"dump.{kind}", make(port))
    if kind == "npz":
        typed = gander("diff", dump, reference)
        assert "FAIL" not in typed.out
        assert f"compared {taps}/" in typed.out
        assert f"matched {matched}/{len(make(port))} tensors of the dump" in typed.out
        assert typed.status == 2  # the reference shows more
        return
    data = json.loads(gander("diff", dump, reference, "--json").out)
    assert data["first"] is None
    assert len(data["dump"]["matched"]) == taps
    assert all(any(part in name for part in left) for name in data["dump"]["not_matched"])
    assert all(rule["used"] and rule["agrees"] for rule in data["dump"]["proposed"])


def test_the_proposed_map_works_unedited(
    gander: Callable, stored: Callable, reference: Path, port: Trace, wrong: Trace, tool: str, tmp_path: Path
) -> None:
    """Found on a right port, it names the fault of a wrong one: for diff the tap, for diagnose the mutant."""
    make, _, taps, _ = TOOLS[tool]
    names = tmp_path / "names.toml"
    assert gander("diff", stored("right.npz", make(port)), reference, "--propose", names).status == 2
    spoilt = stored("wrong.npz", make(wrong))
    typed = gander("diff", spoilt, reference, "--map", names)
    assert typed.status == 1
    assert f"compared {taps}/" in typed.out
    assert "FAIL  blocks.0.att.norm · token 0" in typed.out
    tokens = ",".join(map(str, TOKENS))
    typed = gander("diagnose", spoilt, "-m", "golden:adversarial", "--map", names, "-t", tokens)
    assert typed.status == 1
    assert "First wrong: blocks.0.att.norm · token 0" in typed.out
    assert "\n  group_norm.eps_1e-5\n" in typed.out


def test_a_wrong_dump_is_matched_as_well(
    gander: Callable, stored: Callable, reference: Path, wrong: Trace, tool: str
) -> None:
    """Its values are near, and its first layers are right before the fault."""
    make, matched, taps, _ = TOOLS[tool]
    typed = gander("diff", reference, stored("wrong.npz", make(wrong)))
    assert typed.status == 1
    assert f"matched {matched}/{len(make(wrong))} tensors of the dump" in typed.out
    assert f"compared {taps}/" in typed.out
    assert "FAIL  blocks.0.att.norm · token 0" in typed.out
    assert "att.norm" in next(line for line in typed.out.splitlines() if "values are near" in line)


def test_diagnose_finds_the_map_by_itself(gander: Callable, stored: Callable, wrong: Trace) -> None:
    dump = stored("wrong.safetensors", hugging_face(wrong))
    typed = gander("diagnose", dump, "-m", "golden:adversarial", "-t", ",".join(map(str, TOKENS)), "--json")
    data = json.loads(typed.out)
    assert [found["id"] for found in data["found"]] == ["group_norm.eps_1e-5"]
    assert data["dump"]["matched"]["blocks.3.att.norm"] == "model.layers.3.attn.g_norm"
    typed = gander("diagnose", dump, "-m", "golden:adversarial")
    assert typed.status == 2
    assert "nothing tells the tokens" in typed.err


@pytest.mark.parametrize("mutant", ["decay.no_tanh", "k_update.dropped", "v_first.layer_below"])
def test_no_fault_leads_to_a_wrong_match(stored: Callable, right: Trace, port: Trace, tool: str, mutant: str) -> None:
    """What cannot be told any more is not matched."""
    make = TOOLS[tool][0]
    known = propose(read_dump(stored("right.npz", make(port))), right)
    found = propose(read_dump(stored("wrong.npz", make(shown(mutant)))), right)
    by_name = {name: match.rule for match in known.matches for name in match.names}
    for match in found.matches:
        assert all(by_name[name] == match.rule for name in match.names)
    assert sum(len(match.names) for match in found.matches) >= len(by_name) / 2


def test_layers_counted_from_one(stored: Callable, right: Trace) -> None:
    dump = {f"h.{i + 1}.out": right.tensors[f"blocks.{i}.out"] for i in range(LAYERS)}
    proposal = propose(read_dump(stored("d.npz", dump)), right)
    (match,) = proposal.matches
    assert (match.rule.name, match.rule.taps) == (r"h\.(\d+)\.out", ("blocks.{1-1}.out",))


def test_canonical_names_need_no_rule(gander: Callable, stored: Callable, reference: Path, right: Trace) -> None:
    dump = {name: right.tensors[name] for name in ("emb", "blocks.1.att.wkv")}
    typed = gander("diff", stored("d.npz", dump | {"mine-0": right.tensors["blocks.0.mid"]}), reference)
    assert "compared 3/" in typed.out
    assert "FAIL" not in typed.out


def test_two_tensors_for_one_tap_are_not_guessed(
    gander: Callable, stored: Callable, reference: Path, right: Trace
) -> None:
    """Both as near to it: neither is used, both are listed, and the map has them as comments."""
    draw = np.random.default_rng(0)
    value = right.tensors["blocks.1.att.out"]
    near = {name: value + 0.1 * value.std() * draw.normal(size=value.shape) for name in ("this", "that")}
    dump = stored("d.npz", near | {"end": right.tensors["logits"]})
    names = dump.with_name("names.toml")
    typed = gander("diff", reference, dump, "--propose", names)
    assert typed.status == 2
    assert "compared 1/" in typed.out
    assert "matched 1/3 tensors of the dump" in typed.out
    assert "not matched: that:" in typed.out
    assert "not matched: this:" in typed.out
    assert len(read_map(names).rules) == 1
    assert "# DOUBTFUL" in names.read_text()


def test_copies_of_some_layers_leave_no_doubt(stored: Callable, right: Trace) -> None:
    """As views of a tensor are, and the rows of the last block that are wanted."""
    ends = [right.tensors[f"blocks.{i}.out"] for i in range(LAYERS)]
    dump = {f"l_out-{i}": end for i, end in enumerate(ends)}
    views = {f"l_out-{i} (reshaped)": end for i, end in enumerate(ends[:-1])}
    (match,) = propose(read_dump(stored("d.npz", dump | views | {"node_456": ends[-1]})), right).matches
    assert match.rule.taps == ("blocks.{1}.out",)
    assert match.names == tuple(dump)
    assert set(match.same) == {*views, "node_456"}


def test_a_near_relative_is_not_taken_for_the_tap(stored: Callable, right: Trace) -> None:
    """The embedding before ln0 correlates with the one after it by 0.95; but what is computed from that agrees."""
    dump = {"inp_embd": raw_embedding(), "attn_norm-0": right.tensors["blocks.0.att.in"]}
    proposal = propose(read_dump(stored("d.npz", dump)), right)
    assert [match.rule.taps for match in proposal.matches] == [("blocks.{1}.att.in",)]
    (unsure,) = proposal.unsure
    assert "which is computed from it, agrees" in unsure.doubt


def test_what_is_no_tap_is_said(gander: Callable, stored: Callable, reference: Path, right: Trace) -> None:
    dump = {
        "ids": np.array(TOKENS),
        "odd": np.ones((3, 5), np.float32),
        "void": np.full((T, 192), np.nan, np.float32),
        "noise": np.random.default_rng(0).normal(size=(T, 192)),
        "end": right.tensors["logits"],
    }
    out = gander("diff", stored("d.npz", dump), reference).out
    assert "not matched: ids: holds int64" in out
    assert "not matched: odd: no tap can have the shape (3, 5)" in out
    assert "not matched: void: holds no finite number" in out
    assert "not matched: noise: no tap is like it" in out
    typed = gander("diff", stored("e.npz", {"noise": dump["noise"]}), reference)
    assert (typed.status, typed.out) == (2, "")
    assert "is known by its shape and values:\n  noise: no tap is like it" in typed.err


LAYOUTS = {
    "transposed": ("axes = 'D T'", "blocks.1.att.g", lambda x: x.T),
    "heads apart": ("axes = '1 T H N'", "blocks.1.att.g", lambda x: x.reshape(1, T, 3, 64)),
    "merged": ("axes = 'T D'", "blocks.1.att.r", lambda x: x.reshape(T, -1)),
    "reversed": ("axes = '1 T D'\nreversed = true", "blocks.1.mid", lambda x: backwards(x[None])),
    "key first": ("axes = 'H key value'", "blocks.1.state.wkv", lambda x: x.swapaxes(1, 2)),
    "flat": ("axes = '(H value key)'", "blocks.1.state.wkv", lambda x: x.reshape(-1)),
    "log": ("apply = 'exp'", "blocks.1.att.w", lambda x: np.log(x)),
    "q": ("apply = 'exp(-exp)'", "blocks.1.att.w", lambda x: np.log(-np.log(x))),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path: Path, stored: Callable, right: Trace, layout: str) -> None:
    written, tap, change = LAYOUTS[layout]
    path = stored("d.npz", {"x_1": change(right.tensors[tap])})
    (tmp_path / "m.toml").write_text(f"[[tensor]]\nname = 'x_(?P<i>\\d)'\ntap = '{tap.replace('1', '{i}')}'\n{written}")
    dump, names = read_dump(path), read_map(tmp_path / "m.toml")
    made = convert(dump, names, sizes(right.tensors), defaults={**known_of(right), "engine": "x", "dtype": "float32"})
    assert np.allclose(made.trace.tensors[tap], right.tensors[tap], rtol=1e-12)
    (rule,) = propose(dump, right).matches  # and the proposal finds the same
    assert rule.rule.taps == (tap.replace("1", "{1}", 1),)


@pytest.mark.parametrize("axes", ["taps 1 T D", "T taps D", "1 T (taps D)"])
def test_fused_mixes_are_cut_in_the_order_stated(tmp_path: Path, stored: Callable, right: Trace, axes: str) -> None:
    order = "agrwkv"
    parts = np.stack([right.tensors[f"blocks.2.att.x{letter}"] for letter in order])
    fused = {"taps 1 T D": parts[:, None], "T taps D": parts.swapaxes(0, 1)}
    fused["1 T (taps D)"] = fused["T taps D"].reshape(1, T, -1)
    (match,) = propose(read_dump(stored("d.npz", {"xxx-2": fused[axes]})), right).matches
    assert match.rule.axes == axes
    assert match.rule.taps == tuple(f"blocks.{{1}}.att.x{letter}" for letter in order)


GOOD = "name = 'h(\\d)'\ntap = 'blocks.{1}.mid'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[tensor]\n", "is no TOML"),
        ("[tensors]\n", "has no part called 'tensors'"),
        ("tensor = 3\n", "is no list of rules"),
        ("[[tensor]]\nname = '('\ntap = 'emb'", "rule 1: name '(' is no regex"),
        ("[[tensor]]\nname = 'h'\ntap = 'blocks.{1}.mid'", "asks for group 1"),
        ("[[tensor]]\nname = '(h)0'\ntap = 'blocks.{1+1}.mid'", "{1+1} of 'h0' is 'h', not a number"),
        ("[[tensor]]\nname = 'h(\\d)'\ntap = 'blocks.{1}.med'", "no tap or state is called 'blocks.0.med'"),
        ("[[tensor]]\nname = 'h'\ntap = 'end'", "no tap or state is called 'end'"),
        ("[[tensor]]\ntap = 'emb'", "name is ''"),
        ("[[tensor]]\nname = 'h'\ntap = 'emb'\naxis = 'T D'", "nothing is called 'axis'"),
        (f"[[tensor]]\n{GOOD}\naxes = 'T W'", "no axis is called 'W'"),
        (f"[[tensor]]\n{GOOD}\naxes = 'T (D'", "cannot be read"),
        (f"[[tensor]]\n{GOOD}\naxes = '1 T D'", "'h0' has shape (24, 192)\n  expected: (1, 24, 192): 1 T D"),
        (f"[[tensor]]\n{GOOD}\nreversed = true", "has shape (192, 24) (read from the other end)"),
        (f"[[tensor]]\n{GOOD}\naxes = 'T H'", "'h0' has shape (24, 192)"),
        (f"[[tensor]]\n{GOOD}\nreversed = 1", "reversed is 1"),
        (f"[[tensor]]\n{GOOD}\napply = 'log'", "apply is 'log'"),
        ("[[tensor]]\nname = 'h0'\ntap = ['emb', 'ln_out']", "2 taps\n  expected: an axis called taps"),
        ("[[tensor]]\nname = '.*'\ntap = 'emb'", "'h0' and 'h1' are both mapped to emb"),
        (f"[[tensor]]\n{GOOD.replace('h', 'g')}", "the map has a rule for no tensor"),
        (f"[[tensor]]\n{GOOD}\n[run]\ntoken = [1]", "nothing is called 'token'"),
        (f"[[tensor]]\n{GOOD}\n[run]\ntokens = [1, -1]", "token 1 of gander.tokens is -1"),
        (f"[[tensor]]\n{GOOD}\n[run]\ndtype = 'fp8'", "gander.dtype is 'fp8'"),
        (f"[[tensor]]\n{GOOD}\n[run]\nmodel = '{'0' * 64}'", "the traces are of different models"),
    ],
)
def test_bad_maps(
    gander: Callable, tmp_path: Path, stored: Callable, reference: Path, right: Trace, text: str, message: str
) -> None:
    dump = stored("d.npz", {f"h{i}": right.tensors[f"blocks.{i}.mid"] for i in range(2)})
    (tmp_path / "m.toml").write_text(text)
    typed = gander("diff", dump, reference, "--map", tmp_path / "m.toml")
    assert (typed.status, typed.out) == (2, "")
    assert message in typed.err
    assert typed.err.startswith("error: ")


def test_pickled_objects_are_refused(gander: Callable, tmp_path: Path, reference: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.array([{"a": 1}], dtype=object))
    typed = gander("diff", tmp_path / "d.npz", reference)
    assert (typed.status, typed.out) == (2, "")
    assert "holds pickled objects, which are not read" in typed.err


def test_other_requests_that_cannot_be(gander: Callable, stored: Callable, reference: Path, right: Trace) -> None:
    dump = stored("d.npz", {"x": right.tensors["emb"]})
    for arguments, message in (
        (["diff", dump, dump], "neither file is a trace"),
        (["diff", reference, reference, "--map", "m.toml"], "is a trace, under canonical names: --map is for dumps"),
        (["diff", dump, reference, "--map", "none.toml"], "cannot read the map none.toml"),
        (["diff", dump, reference, "--map", "m.toml", "--propose", "n.toml"], "--map and --propose"),
        (["diff", dump, reference, "--propose", reference], "exists already"),
    ):
        typed = gander(*arguments)
        assert (typed.status, typed.out) == (2, "")
        assert message in typed.err


def test_a_rule_for_nothing_is_said(
    gander: Callable, tmp_path: Path, stored: Callable, reference: Path, right: Trace
) -> None:
    dump = stored("d.npz", {f"h{i}": right.tensors[f"blocks.{i}.mid"] for i in range(2)} | {"x": right.tensors["emb"]})
    (tmp_path / "m.toml").write_text(f"[[tensor]]\n{GOOD}\n[[tensor]]\nname = 'q(\\d)'\ntap = 'blocks.{{1}}.att.r'")
    typed = gander("diff", dump, reference, "--map", tmp_path / "m.toml")
    assert typed.status == 2
    assert re.search(r"rule 2: no tensor is called like q\(\\d\)", typed.out)
    assert "not matched: x: no rule is for it" in typed.out


def test_16_bits_are_known_by_their_storage(stored: Callable, right: Trace) -> None:
    half = {f"mid-{i}": right.tensors[f"blocks.{i}.mid"].astype(np.float16) for i in range(LAYERS)}
    dump = read_dump(stored("d.safetensors", half))
    assert dump.bits == "float16"
    (match,) = propose(dump, right).matches
    assert match.agrees
    assert match.rule.taps == ("blocks.{1}.mid",)


def test_a_trace_is_no_dump(tmp_path: Path, reference: Path) -> None:
    assert not is_dump(reference)
    assert not is_dump(tmp_path / "none")
    (tmp_path / "text").write_text("no tensors")
    assert not is_dump(tmp_path / "text")
    with pytest.raises(InputError, match="cannot be read"):
        read_dump(tmp_path / "text")
