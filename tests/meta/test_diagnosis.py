"""The diagnosis names faults in code that it has never seen: a few of the implants (meta/diagnosis.py has them
all)."""

from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

from gander.conformance.diagnosis import Diagnosis, diagnose
from gander.conformance.mutants import MUTANTS
from gander.conformance.tracing import trace
from gander.golden import open_model

from .implants import IMPLANTS, PAIRS, PARTS, TOKENS, UNKNOWN, Implant, implanted

MODEL = open_model("golden:adversarial")
BY_ID = {implant.id: implant for implant in IMPLANTS}
SAMPLE = [BY_ID[id] for id in ("wkv7.decay_before_read", "v_first.layer_below_raw", "state.att_x_lost", "l2norm.l1")]


def diagnosed(edits: tuple, folder: Path, dtype: str = "float32") -> Diagnosis:
    with threadpool_limits(1), implanted(edits, folder, "implanted") as module:
        return diagnose(trace(module.Engine(dtype=dtype), MODEL, TOKENS, PARTS), MODEL, MUTANTS)


def named(diagnosis: Diagnosis) -> set[str]:
    """What explains the trace, and what it cannot be told from."""
    found = diagnosis.found.mutants if diagnosis.found else ()
    return {mutant.id for mutant in (*found, *diagnosis.alike)}


@pytest.mark.parametrize("implant", [*IMPLANTS, *UNKNOWN], ids=lambda implant: implant.id)
def test_an_implant_can_be_put_in(implant: Implant, tmp_path: Path) -> None:
    """Its lines are still there, and the engine with it runs."""
    with implanted(implant.edits, tmp_path, "implanted") as module:
        engine = module.Engine()
        engine.load(MODEL)
        assert engine.forward([1, 2, 3], engine.initial_state()).shape == (3, 512)


def test_every_implant_is_in_the_catalogue() -> None:
    assert len(IMPLANTS) == len(BY_ID) == 40
    assert not {implant.id for implant in IMPLANTS} - {mutant.id for mutant in MUTANTS}
    assert not {id for pair in PAIRS for id in pair} - BY_ID.keys()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("implant", SAMPLE, ids=lambda implant: implant.id)
def test_an_implant_is_named(implant: Implant, dtype: str, tmp_path: Path) -> None:
    assert implant.id in named(diagnosed(implant.edits, tmp_path, dtype))


def test_two_implants_are_named(tmp_path: Path) -> None:
    first, second = PAIRS[1]
    assert named(diagnosed((*BY_ID[first].edits, *BY_ID[second].edits), tmp_path)) == {first, second}


def test_an_unknown_implant_is_not_named(tmp_path: Path) -> None:
    implant = UNKNOWN[0]
    found = diagnosed(implant.edits, tmp_path)
    assert found.found is None
    assert found.where == f"blocks.0.{implant.where}"
