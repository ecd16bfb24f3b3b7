"""A trace becomes a named fault: the more it shows, the more faults can be told apart."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from gander.conformance.choices import diagnose_choices
from gander.conformance.diagnosis import Diagnosis, diagnose
from gander.conformance.mutants import MUTANTS, Mutant, Port
from gander.conformance.mutants.combine import combined
from gander.conformance.tracing import trace
from gander.errors import InputError
from gander.golden import open_model
from gander.optimized import Engine
from gander.traces import Trace, op_of, write

NARROW = open_model("golden:narrow")
TOKENS = tuple(np.random.default_rng(1).integers(0, 512, 24).tolist())
BY_ID = {mutant.id: mutant for mutant in MUTANTS}
# Of every kind of fault: of a formula, of the wiring, of what is carried, of what is read.
SOME = [
    BY_ID[id]
    for id in (
        "group_norm.eps_1e-5", "decay.no_tanh", "gate.sigmoid_outside", "k_update.dropped", "l2norm.updated_key",
        "v_first.layer_below", "state.att_x_lost", "state.wkv_transposed", "loading.key_transposed", "bonus.raw_key",
    )
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def small_matrices():
    with threadpool_limits(1):
        yield


def shown(
    mutant: Mutant | None, what: str = "all", dtype: str = "float32", parts: tuple[int, ...] = (9, 1, 14)
) -> Trace:
    whole = trace(Port(mutant, dtype=dtype), NARROW, TOKENS, parts)
    keep: dict[str, Callable[[str], bool]] = {
        "all": lambda name: True,
        "stream": lambda name: op_of(name) in ("emb", "mid", "out", "logits"),
        "logits": lambda name: name == "logits",
        "state": lambda name: ".state." in name,
    }
    return replace(whole, tensors={name: value for name, value in whole.tensors.items() if keep[what](name)})


def ids(diagnosis: Diagnosis) -> list[str]:
    return [mutant.id for mutant in diagnosis.found.mutants] if diagnosis.found else []


@pytest.mark.parametrize("what", ["all", "stream", "logits", "state"])
@pytest.mark.parametrize("mutant", SOME, ids=lambda mutant: mutant.id)
def test_a_fault_is_named(mutant: Mutant, what: str) -> None:
    found = diagnose(shown(mutant, what), NARROW, SOME)
    assert ids(found) == [mutant.id]
    assert not found.agrees
    assert found.found.explains > 0.999


@pytest.mark.parametrize("mutant", SOME, ids=lambda mutant: mutant.id)
def test_in_bfloat16_too(mutant: Mutant) -> None:
    assert ids(diagnose(shown(mutant, dtype="bfloat16"), NARROW, SOME)) == [mutant.id]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("engine", [Port, Engine])
def test_a_right_engine_has_no_fault(engine: type, dtype: str) -> None:
    """The fast one as well, which computes in other steps."""
    found = diagnose(trace(engine(dtype=dtype), NARROW, TOKENS, (9, 1, 14)), NARROW, SOME)
    assert found.agrees
    assert found.found is None


def test_where_it_is_wrong() -> None:
    """The first wrong tap, the token and the head; isolated, since what goes into it was shown."""
    faint = open_model("golden:adversarial")
    whole = trace(Port(BY_ID["l2norm.clamp_1e-7"]), faint, TOKENS, (24,))
    found = diagnose(whole, faint, [BY_ID["l2norm.clamp_1e-7"], *SOME])
    assert (found.where, found.token, found.head, found.alone) == ("blocks.1.att.kk", 0, 2, True)
    logits = replace(whole, tensors={"logits": whole.tensors["logits"]})
    assert (lambda d: (d.where, d.alone))(diagnose(logits, faint, SOME)) == ("logits", False)


@pytest.mark.parametrize("what", ["all", "stream"])
def test_two_faults_at_once(what: str) -> None:
    both = combined([BY_ID["group_norm.eps_1e-5"], BY_ID["gate.sigmoid_outside"]])
    assert sorted(ids(diagnose(shown(both, what), NARROW, SOME))) == ["gate.sigmoid_outside", "group_norm.eps_1e-5"]


def test_a_fault_that_nobody_knows() -> None:
    """No verdict is better than a wrong one; where it first shows is said all the same."""
    unknown = Mutant("unknown", "", "", {"k_update": lambda k, a, k_a: k * np.cos(a * k_a)})
    found = diagnose(shown(unknown), NARROW, SOME)
    assert found.found is None
    assert not found.agrees
    assert found.where == "blocks.0.att.k_mod"


def test_what_cannot_be_told_apart_is_said() -> None:
    """Lost or zeroed, the shift state of a text in two calls is the same."""
    lost, zeroed = BY_ID["state.att_x_lost"], BY_ID["state.att_x_zeroed"]
    found = diagnose(shown(lost, parts=(9, 15)), NARROW, [lost, zeroed])
    assert {*ids(found), *(mutant.id for mutant in found.alike)} == {lost.id, zeroed.id}


def test_of_a_large_model_one_block_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gander.conformance.diagnosis.LARGE", 0)
    ran = []
    forward = Port.forward
    monkeypatch.setattr(Port, "forward", lambda port, *a, **k: ran.append(port.config.blocks) or forward(port, *a, **k))
    found = diagnose(shown(BY_ID["v_first.layer_below"]), NARROW, SOME)
    assert ids(found) == ["v_first.layer_below"]
    assert found.where.startswith("blocks.2.")
    assert ran[-1] == ["blocks.0", "blocks.1", "blocks.2"]


def test_greedy_tokens_are_enough_for_some() -> None:
    mutant = BY_ID["gate.sigmoid_outside"]
    port = Port(mutant)
    port.load(NARROW)
    tokens, state, call = list(TOKENS[:8]), port.initial_state(), list(TOKENS[:8])
    for _ in range(24):
        call = [int(port.forward(call, state)[-1].argmax())]
        tokens += call
    greedy = replace(shown(None), tokens=tuple(tokens), path="prefill", tensors={})
    found = diagnose_choices(greedy, NARROW, SOME, prompt=8)
    assert ids(found) == [mutant.id]
    with pytest.raises(InputError, match="a prompt of 32 tokens"):
        diagnose_choices(greedy, NARROW, SOME, prompt=32)


def test_the_command(gander: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the whole catalogue."""
    monkeypatch.setenv("COLUMNS", "60")
    write(tmp_path / "t", shown(BY_ID["group_norm.eps_1e-5"]))
    typed = gander("diagnose", tmp_path / "t", "-m", "golden:narrow")
    assert typed.status == 1
    assert "First wrong: blocks.0.att.norm · token 0" in typed.out
    assert "group_norm.eps_1e-5" in typed.out
    assert "GroupNorm eps 1e-5 instead of 64e-5" in typed.out
    assert max(len(line.rstrip()) for line in typed.out.splitlines()) <= 60


def test_the_command_on_a_right_trace(gander: Callable, tmp_path: Path) -> None:
    write(tmp_path / "t", shown(None))
    assert gander("diagnose", tmp_path / "t", "-m", "golden:narrow").status == 0
    typed = gander("diagnose", tmp_path / "t", "-m", "golden:narrow", "--json")
    assert json.loads(typed.out)["agrees"] is True
    typed = gander("diagnose", tmp_path / "t", "-m", "golden:adversarial")
    assert typed.status == 2
    assert "the trace is of another model" in typed.err


def test_a_check_that_fails_says_what_is_likely(
    gander: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spoiled.py").write_text(
        "from gander.conformance.mutants import MUTANTS, Port\n"
        "class Engine(Port):\n"
        "    def __init__(self):\n"
        "        super().__init__({mutant.id: mutant for mutant in MUTANTS}['k_update.dropped'])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    typed = gander("check", "-m", "golden:narrow", "-e", "py:spoiled:Engine", "--only", "layer.isolated")
    assert typed.status == 1
    assert f"likely: {BY_ID['k_update.dropped'].fault} (explains 99.9 % of the difference" in typed.out
