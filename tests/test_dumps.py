"""examples/dump_*.py: what real runs of llama.cpp and of rwkv7-hf dump is matched by the proposed map, unedited."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
from installed import needs

EXAMPLES = Path(__file__).parents[1] / "examples"
TOKENS = "3,511,7,7,300,12,45"


@pytest.fixture
def dump(gander: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Convert a golden model for a tool, and run its script as a user would."""

    def run(tool: str, model: str, *options: str) -> Path:
        suffix, scheme = {"llama_cpp": (".gguf", "gguf"), "hf": ("", "hf")}[tool]
        converted, made = tmp_path / f"model{suffix}", tmp_path / "dump.safetensors"
        assert gander("convert", f"golden:{model}", converted, "--to", scheme, *options).status == 0
        script = EXAMPLES / f"dump_{tool}.py"
        monkeypatch.setattr("sys.argv", [str(script), str(converted), TOKENS, str(made)])
        runpy.run_path(str(script), run_name="__main__")
        return made

    return run


@pytest.fixture
def compared(gander: Callable, tmp_path: Path) -> Callable[..., tuple[dict[str, bool], dict]]:
    """Of a dump against the reference: whether each tap agrees, and what became of names."""

    def run(made: Path, model: str) -> tuple[dict[str, bool], dict]:
        right = tmp_path / "right.safetensors"
        traced = gander("trace", "-m", f"golden:{model}", "-t", TOKENS, "-e", "reference", "-o", right)
        assert traced.status == 0, traced.err
        report = json.loads(gander("diff", right, made, "--json").out)
        return {row["name"]: row["ok"] for row in report["rows"]}, report["dump"]

    return run


# What a hook on modules, and the cache, can show of a block.
SEEN = (
    *("att.in", "att.r", "att.k", "att.v", "att.a", "att.g", "att.out", "ffn.in", "ffn.k", "ffn.out", "out"),
    *("state.att_x", "state.wkv", "state.ffn_x"),
)


@needs("rwkv7_hf", "transformers")
def test_hugging_face_modules(dump: Callable, compared: Callable) -> None:
    rows, names = compared(dump("hf", "adversarial"), "adversarial")
    assert rows == dict.fromkeys(
        ["emb", *(f"blocks.{i}.{tap}" for i in range(4) for tap in SEEN), "ln_out", "logits"], True
    )
    written = {rule["name"]: rule for rule in names["proposed"]}
    assert written[r"past_key_values\.(\d+)\.recurrent_state"]["axes"] == "1 H key value"
    assert written[r"model\.layers\.(\d+)\.ffn\.key"]["apply"] == "relu2"
    assert written[r"model\.layers\.(\d+)\.attn\.a_lora\.lora\.2"]["apply"] == "sigmoid"


@needs("rwkv7_hf", "transformers")
def test_a_real_disagreement_is_named(dump: Callable, gander: Callable) -> None:
    """A folder means a GroupNorm eps of head size · 1e-5: for heads of 32 another model."""
    made = dump("hf", "narrow", "--allow-change")
    typed = gander("diagnose", made, "-m", "golden:narrow", "-t", TOKENS)
    assert typed.status == 1
    assert "First wrong: blocks.0.att.out" in typed.out
    assert "group_norm.eps_N_1e-5" in typed.out.split("candidate")[0]


@needs("llama_cpp", "gguf")
def test_llama_cpp_graph(dump: Callable, compared: Callable) -> None:
    """Most of its tensors have no name but a running number, and many are views or copies of others."""
    rows, names = compared(dump("llama_cpp", "adversarial"), "adversarial")
    assert all(rows.values())
    # wkv lies in one tensor with the state, att_x in one with ffn_x; block 0's v is its v_mix too.
    lacking = {"blocks.0.att.v_mix", *(f"blocks.{i}.{name}" for i in range(4) for name in ("att.wkv", "state.att_x"))}
    assert len(rows) == 123 - len(lacking)
    assert not rows.keys() & lacking
    written = {rule["name"]: rule["tap"] for rule in names["proposed"]}
    assert written[r"l_out-(\d+)"] == ["blocks.{1}.out"]  # the same numbers again in its views: no doubt
    assert written[r"ffn_inp-(\d+)"] == ["blocks.{1}.mid"]  # and in the last block's wanted rows: all
