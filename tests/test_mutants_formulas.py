"""The mutants of a block's formulas: each is what it says, on a model where it shows.

Run against the reference on 33 tokens from a random state. "Seen" is what the harness calls out of bounds: more than 16
times what float32 itself loses against float64, row by row.
"""

import inspect
from collections.abc import Iterator
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from gander import reference
from gander.conformance.compare import compare
from gander.conformance.mutants import (
    Mutant,
    Port,
    bonus,
    channel_mix,
    decay,
    embedding,
    gate,
    gate_correction,
    group_norm,
    head,
    in_context_rate,
    k_update,
    l2norm,
    layer_norm,
    linear,
    lora,
    residual,
    token_shift,
    v_first,
    wkv7,
)
from gander.conformance.tolerances import bounds, jitter
from gander.golden import open_model, start_state
from gander.traces import op_of

# Each formula's file, and the taps at which its faults come to light.
FILES = {
    layer_norm: {"emb", "att.in", "ffn.in"},
    embedding: {"emb", "att.in"},
    token_shift: {"att.xr", "att.xw", "att.xa"},
    decay: {"att.w"},
    in_context_rate: {"att.a"},
    gate: {"att.g"},
    l2norm: {"att.kk"},
    k_update: {"att.k_mod"},
    v_first: {"att.v_mix"},
    wkv7: {"att.wkv"},
    group_norm: {"att.norm"},
    bonus: {"att.norm", "att.bonus"},
    gate_correction: {"att.norm", "att.gated"},
    channel_mix: {"ffn.xk", "ffn.k", "ffn.out"},
    head: {"ln_out", "logits"},
    linear: {"att.r", "ffn.out"},
    lora: {"att.w"},
    residual: {"mid", "ffn.in", "out"},
}
MUTANTS = [mutant for file in FILES for mutant in file.MUTANTS]
WRONG = [mutant for mutant in MUTANTS if not mutant.same]
SAME = [mutant for mutant in MUTANTS if mutant.same]
TOKENS, FEWER, START = 33, 17, 5


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield


def tokens_of(vocab: int) -> tuple[int, ...]:
    """Random, the first and the last id among them."""
    tokens = np.random.default_rng(0).integers(0, vocab, TOKENS)
    tokens[[1, 4, 5]] = 0, vocab - 1, vocab - 1
    return tuple(map(int, tokens))


model_of = cache(open_model)


def run(mutant: Mutant, dtype: str, tokens: int = TOKENS) -> dict[str, np.ndarray]:
    """Every tap of a port with that fault, logits among them."""
    checkpoint = model_of(mutant.model)
    port, taps = Port(mutant, dtype=dtype), {}
    port.load(checkpoint)
    with np.errstate(over="ignore", invalid="ignore"):
        port.forward(
            tokens_of(checkpoint.config.vocab)[:tokens],
            port.import_state(start_state(checkpoint.config, START)),
            taps=taps,
        )
    return taps


@cache
def expected(model: str, dtype: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The reference in float64, and how far an engine of `dtype` may be from it."""
    checkpoint, want = model_of(model), {}

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        want[name] = value
        return value

    config = checkpoint.config
    reference.forward(checkpoint.weights(), config, tokens_of(config.vocab), start_state(config, START), tap)
    yardsticks = [
        run(mutant, "float32") for mutant in (Mutant("", "", "", model=model), *map(shaken, [model] * 3, (1, 2, 3)))
    ]
    bound = {name: bounds(value, [taps[name] for taps in yardsticks], dtype) for name, value in want.items()}
    return want, bound


def shaken(model: str, draw: int) -> Mutant:
    """A right port whose every value moves by one rounding."""
    move = jitter("float32", draw)
    return Mutant("", "", "", methods={"see": lambda port, name, value, seen: move(name, value)}, model=model)


def outside(mutant: Mutant, dtype: str = "float32") -> list[str]:
    """The taps that are out of bounds, in the order in which they are computed."""
    want, bound = expected(mutant.model, dtype)
    got = run(mutant, dtype)
    assert got.keys() == want.keys()
    return [name for name in want if not compare(got[name], want[name], bound[name]).ok]


def ids(mutants: list[Mutant]) -> dict[str, object]:
    return {"argvalues": mutants, "ids": [mutant.id for mutant in mutants]}


@pytest.mark.parametrize("model", sorted({mutant.model for mutant in MUTANTS}))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_port_without_a_fault_is_within_bounds(model: str, dtype: str) -> None:
    """Otherwise the faults below could be seen for the port alone."""
    assert outside(Mutant("", "", "", model=model), dtype) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.__name__.rpartition(".")[2])
def test_a_file_holds_the_mutants_of_its_formula(file: object) -> None:
    """By name; each says what is wrong and what is right."""
    for mutant in file.MUTANTS:
        assert mutant.formula == file.__name__.rpartition(".")[2]
        assert mutant.fault
        assert mutant.right
        assert mutant.formulas or mutant.methods


def test_ids_are_unique() -> None:
    names = [mutant.id for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert len({mutant.fault for mutant in MUTANTS}) == len(names)


def test_there_are_enough() -> None:
    assert len(WRONG) >= 55
    assert len(SAME) >= 8


@pytest.mark.parametrize("name", sorted({name for mutant in MUTANTS for name in mutant.formulas}))
def test_what_is_replaced_is_called(name: str) -> None:
    """A name that nothing calls would be no mutant."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(Mutant("", "", "", {name: fail}), "float32")


@pytest.mark.parametrize("mutant", **ids(MUTANTS))
def test_a_replaced_formula_takes_what_the_right_one_takes(mutant: Mutant) -> None:
    """Under the same names, with the same defaults: it is asked for on its own, too."""
    for name, formula in mutant.formulas.items():
        own, right = (
            [(parameter.name, parameter.default) for parameter in inspect.signature(function).parameters.values()]
            for function in (formula, getattr(reference, name))
        )
        assert own == right


@pytest.mark.parametrize("mutant", **ids(WRONG))
def test_a_wrong_formula_is_seen_where_it_is(mutant: Mutant) -> None:
    """The first tap out of bounds is one of the formula's own."""
    seen = outside(mutant)
    assert seen, "within the bounds of float32"
    (taps,) = (taps for file, taps in FILES.items() if mutant in file.MUTANTS)
    assert op_of(seen[0]) in taps


@pytest.mark.parametrize("mutant", **ids(SAME))
def test_another_way_to_write_the_right_formula_is_not_seen(mutant: Mutant) -> None:
    """Nor in float64, where only what is equal is equal."""
    assert outside(mutant) == []
    if mutant.id != "decay.constant_0.606531":
        assert outside(mutant, "float64") == []


def test_six_digits_of_the_decay_constant_are_enough_for_float32_only() -> None:
    (mutant,) = (mutant for mutant in SAME if mutant.id == "decay.constant_0.606531")
    assert outside(mutant, "float64")[0] == "blocks.0.att.w"


@pytest.mark.parametrize("model", sorted({mutant.model for mutant in WRONG}))
def test_no_fault_has_two_names(model: str) -> None:
    """The logits of any two differ by more than float64 loses."""
    every_8th = slice(None, None, 8)
    logits = {
        mutant.id: run(mutant, "float64", FEWER)["logits"][every_8th].ravel()
        for mutant in WRONG
        if mutant.model == model
    }
    rounding = 1e-9 * np.std(expected(model, "float64")[0]["logits"])
    for (one, its), (other, others) in combinations(logits.items(), 2):
        finite = np.isfinite(its)
        alike = (finite == np.isfinite(others)).all() and (np.abs(its - others)[finite] <= rounding).all()
        assert not alike, f"{other} is {one}"
