"""The kill matrix fails for a fault that no check finds, a right variant that one takes for a fault, and a check that
finds nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from gander.conformance.checks.op import PROPERTIES, Sizes
from gander.conformance.mutants import MUTANTS, Mutant, Port
from gander.conformance.mutants.graft import calls, graft
from gander.conformance.ops import INT8_OPS, OPS, Op
from gander.conformance.registry import CHECKS
from gander.conformance.results import Status
from gander.conformance.runner import run
from gander.conformance.scoring import Matrix, Row, _ImpatientTally, _Widening
from gander.errors import InputError
from gander.golden import open_model, read_manifest
from gander.reference import channel_mix, forward, gate, sigmoid
from gander.reports.mutants import print_matrix, write_matrix

FAULT = Mutant("k_update.dropped", "a fault", "right")
EQUAL = Mutant("k_update.sum_of_two", "another way", "right", same="the same sum")


def matrix(*rows: Row, checks: tuple[str, ...] = ("op.k_update", "path.split")) -> Matrix:
    return Matrix(rows, checks, {})


def row(mutant: Mutant, *killed_by: str) -> Row:
    return Row(mutant, frozenset(killed_by), frozenset({"op.k_update", "path.split"}) - frozenset(killed_by))


PROVEN = matrix(row(FAULT, "op.k_update", "path.split"), row(EQUAL))


def test_every_fault_found_and_every_check_finding_one_is_what_is_wanted() -> None:
    assert PROVEN.ok


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (matrix(row(FAULT), row(EQUAL)), "k_update.dropped survives: a fault"),
        (matrix(row(FAULT, "op.k_update", "path.split"), row(EQUAL, "op.k_update")), "k_update.sum_of_two is no fault"),
        (matrix(row(FAULT, "op.k_update"), row(EQUAL)), "path.split finds none of the faults"),
        (replace(PROVEN, broken={"golden:narrow": frozenset({"op.gate"})}), "the port without a fault fails op.gate"),
    ],
)
def test_else_it_fails_and_says_why(wrong: Matrix, said: str, capsys: pytest.CaptureFixture) -> None:
    assert not wrong.ok
    print_matrix(wrong, Console(width=120), partial=False)
    out = capsys.readouterr().out
    assert said in out
    assert "FAIL" in out


def test_a_check_that_only_an_equal_variant_fails_finds_no_fault() -> None:
    accused = matrix(row(FAULT, "op.k_update"), row(EQUAL, "path.split"))
    assert accused.idle == ["path.split"]


SIZES = Sizes(T=5, H=2, N=32, rank=7, seed=0, regime="ordinary")
MATRICES = {"x": np.eye(3, 64, dtype=np.float32), "weight": np.eye(16, 64, dtype=np.float32)}
ASKED = [
    pytest.param(mutant, op, id=f"{mutant.id}-{op.name}")
    for mutant in MUTANTS
    for op in (*OPS.values(), *INT8_OPS.values())
    if calls(op.function) & mutant.formulas.keys()
]


@pytest.mark.parametrize(("mutant", "op"), ASKED)
def test_a_mutant_answers_an_op_wrongly_it_does_not_break_down(mutant: Mutant, op: Op) -> None:
    """A check that only finds a mutant's own mistakes as a program has not found the fault."""
    if op.name in OPS:
        inputs = PROPERTIES[op.name].draw(SIZES, np.random.default_rng(0))
    else:
        inputs = {name: MATRICES[name] for name in op.inputs}
    with np.errstate(all="ignore"):
        answer = Port(mutant).apply(op.name, inputs)
    assert answer.keys() == set(op.outputs)


def test_the_command_scores_some(gander: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    options = "--only", "k_update.sign", "--only", "k_update.sum_of_two", "--only", "tokenizer.nfc"
    typed = gander("mutants", "score", *options, "--json", "--page", tmp_path / "page.md")
    assert typed.status == 0, typed.out
    sign, equal, tokenizer = json.loads(typed.out)["mutants"]
    assert {"op.k_update", "layer.isolated", "layer.cumulative", "golden.taps", "path.split"} <= set(sign["killed_by"])
    assert {"op.gate", "path.repeat", "load.census"} <= set(sign["passed"])
    assert sign["missed_by"] == ["untrained"]
    assert equal["killed_by"] == []
    assert tokenizer["killed_by"] == ["tokenizer check"]
    page = (tmp_path / "page.md").read_text()
    assert "`k_update.sign`" in page
    assert "2/2 faults found, 1 equal variants" in page


def test_a_mutants_row_is_what_the_whole_checks_say(gander: Callable) -> None:
    """Scoring ends a check at its first finding, and leaves out what does not come to the fault."""
    (mutant,) = (mutant for mutant in MUTANTS if mutant.id == "group_norm.eps_N_1e-5")
    model = open_model(mutant.model)
    golden = read_manifest().find(model.fingerprint())
    assert golden is not None
    models = [(mutant.model, model, golden.run_as("dense"))]
    (whole,) = run(lambda: Port(mutant), models, list(CHECKS.values()), command="").models
    failing = {check.id for check in whole.checks if check.status is Status.FAIL}
    typed = gander("mutants", "score", "--only", mutant.id, "--json")
    (row,) = json.loads(typed.out)["mutants"]
    assert set(row["killed_by"]) == failing
    assert len(failing) > 10


@pytest.mark.parametrize(
    ("off", "within", "asked"), [(0.5, True, 0), (1.5, True, 1), (2.5, False, 1), (np.nan, False, 1), (None, False, 1)]
)
def test_all_yardsticks_are_run_only_for_who_is_beyond_the_first(off: float | None, within: bool, asked: int) -> None:
    """The verdict is that of all of them."""
    runs = 0

    def wide() -> dict[str, np.ndarray]:
        nonlocal runs
        runs += 1
        return {"x": np.array([2.0])}

    tally, bound = _ImpatientTally(), _Widening({"x": np.array([1.0])}, wide)
    got = {} if off is None else {"x": np.array([[off]])}
    assert tally.tensors(got, {"x": np.array([[0.0]])}, bound) is within
    assert (tally.expected, tally.compared, runs) == (1, off is not None, asked)
    assert (not tally.findings) is within


def test_a_page_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        write_matrix(PROVEN, str(tmp_path))  # a folder
    assert not list(tmp_path.parent.glob("*.partial"))


def test_no_mutant_of_that_name(gander: Callable) -> None:
    typed = gander("mutants", "score", "--only", "k_update.sing")
    assert typed.status == 2
    assert "no mutant 'k_update.sing'" in typed.err


def test_the_list_names_every_mutant(gander: Callable) -> None:
    out = gander("mutants", "list").out.splitlines()
    assert all(mutant.id in out for mutant in MUTANTS)


def test_a_graft_replaces_a_formula_however_deep_and_leaves_the_reference_alone() -> None:
    def wrong(x):
        return x

    ones = np.eye(3), np.eye(3), np.eye(3)
    np.testing.assert_array_equal(graft(gate, {"sigmoid": wrong})(*ones), np.eye(3))
    assert gate(*ones)[0, 0] == sigmoid(np.ones(()))
    assert graft(sigmoid, {"sigmoid": wrong}) is wrong
    assert gate.__globals__["sigmoid"] is sigmoid


def test_what_a_formula_calls() -> None:
    assert calls(channel_mix) == {"channel_mix", "channel_mix_key", "linear", "int8_linear", "quantise_vector",
                                  "_quantise", "int8_sums"}  # fmt: skip
    assert {"wkv7", "token_shift", "attend", "sigmoid", "layer_norm"} <= calls(forward)
