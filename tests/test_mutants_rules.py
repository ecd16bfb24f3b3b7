"""The mutants that are about no formula: each differs from a right port, in the smallest run that shows it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from gander.conformance.mode import Mode
from gander.conformance.mutants import (
    Mutant,
    Port,
    attention,
    batching,
    chunking,
    dtype,
    int8,
    loading,
    policies,
    rollback,
    state,
    tokenizer,
)
from gander.conformance.results import Status
from gander.conformance.tokenizers import compare_tokenizer, mixed_text
from gander.conformance.tolerances import bounds, row_errors
from gander.errors import InputError
from gander.golden import open_model, start_state
from gander.vocabulary import find_vocabulary

MODULES = (state, loading, dtype, chunking, batching, rollback, attention, policies, int8)
MUTANTS = [mutant for module in MODULES for mutant in module.MUTANTS]
FAULTS = [mutant for mutant in MUTANTS if not mutant.same]
EQUAL = [mutant for mutant in MUTANTS if mutant.same]
BEYOND = 10  # bounds: a fault is far from what rounding does; one of precision is beyond it
Shown = dict[str, np.ndarray]
Scenario = Callable[[Port, str], Iterator[tuple[str, np.ndarray]]]

model = cache(open_model)


def tokens(port: Port, number: int, seed: int = 0) -> list[int]:
    """Random, with repeats, the first and the last id among the first few."""
    drawn = np.random.default_rng(seed).integers(0, port.config.vocab, number)
    drawn[1:2], drawn[4:6] = 0, port.config.vocab - 1
    return [int(token) for token in drawn]


def begin(port: Port, seed: int = 0, cached: int = 10) -> Shown:
    return {name: value.astype(port.kind) for name, value in start_state(port.config, seed, cached).items()}


def run(port: Port, of: dict, text: list[int], parts: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Logits of each call, and the state at the end."""
    at = 0
    for number, part in enumerate(parts):
        yield f"logits {number}", port.forward(text[at : at + part], of)
        at += part
    yield from port.export_state(of).items()


def in_calls(*parts: int, chunk: int | None = None, threads: int | None = None) -> Scenario:
    def scenario(port, name):
        port.set_chunk(chunk)
        port.set_threads(threads)
        yield from run(port, port.initial_state(), tokens(port, sum(parts)), parts)

    return scenario


def from_a_start(port, name):
    """Imported, given out, run on."""
    yield from port.export_state(port.import_state(begin(port))).items()
    yield from run(port, port.import_state(begin(port)), tokens(port, 5), (1, 4))


def export_kept(port, name):
    """What was exported stays what it is."""
    of = port.import_state(begin(port))
    exported = port.export_state(of)
    port.forward(tokens(port, 3), of)
    yield from exported.items()


def imported_twice(port, name):
    """The same arrays, and then others."""
    arrays = begin(port)
    for seed in (0, 0, 1):
        given = arrays if seed == 0 else begin(port, seed)
        for what, value in run(port, port.import_state(given), tokens(port, 3), (3,)):
            yield f"{seed} {what}", value


def after_another(port, name):
    """A second text, on a state of its own."""
    first = port.initial_state()
    port.forward(tokens(port, 7, seed=1), first)
    second = port.initial_state()
    yield from run(port, second, tokens(port, 5), (4, 1))
    yield from ((f"the first's {what}", value) for what, value in run(port, first, tokens(port, 2), (2,)))


def of_finer_weights(port, name):
    """Weights that need all of float32."""
    finer = {name: (tensor * (1 + 2**-12)).float() for name, tensor in model(name).tensors.items()}
    port.load(replace(model(name), tensors=finer))
    yield from run(port, port.initial_state(), tokens(port, 5), (5,))


def batch(*lengths: int, calls: int = 1) -> Scenario:
    """Rows with states of their own; the first two begin with the same tokens."""

    def scenario(port, name):
        states = [port.import_state(begin(port, seed)) for seed in range(len(lengths))]
        texts = [tokens(port, 40, max(0, row - 1)) for row in range(len(lengths))]
        for call in range(calls):
            rows = [text[call * n : (call + 1) * n] for text, n in zip(texts, lengths, strict=True)]
            for row, logits in enumerate(port.forward_batch(rows, states)):
                yield f"call {call}, row {row}", logits
        for row, of in enumerate(states):
            yield from ((f"row {row} {what}", value) for what, value in port.export_state(of).items())

    return scenario


def rolled_back(*parts: int) -> Scenario:
    """After so many tokens, prefilled or stepped, and once more."""

    def scenario(port, name):
        of = port.initial_state()
        port.forward(tokens(port, 7), of)
        taken = port.snapshot(of)
        for time in range(2):
            for part in parts:
                port.forward(tokens(port, part, seed=1), of)
            port.rollback(of, taken)
            for what, value in run(port, of, tokens(port, 3, seed=2), (3,)):
                yield f"{time} {what}", value
            port.rollback(of, taken)

    return scenario


def cloned(original_first: bool) -> Scenario:
    def scenario(port, name):
        of = port.initial_state()
        port.forward(tokens(port, 7), of)
        first, second = (of, port.clone(of)) if original_first else (port.clone(of), of)
        port.forward(tokens(port, 3, seed=1), first)
        yield from run(port, second, tokens(port, 3, seed=2), (3,))

    return scenario


def was_reset(port, name):
    of = port.initial_state()
    port.forward(tokens(port, 7), of)
    port.reset(of)
    yield from run(port, of, tokens(port, 3), (3,))


def repeated(port, name):
    """How far a second run is from the first."""
    first, second = (dict(run(port, port.initial_state(), tokens(port, 5), (4, 1))) for _ in range(2))
    yield from ((what, second[what] - first[what]) for what in first)


def refused(port, name):
    """A call that is too long for a cache that is nearly full."""
    of = port.import_state(begin(port, cached=port.attention.length - 2))
    try:
        port.forward(tokens(port, 3), of)
    except InputError:
        yield "refused", np.ones(1)
    else:
        yield "refused", np.zeros(1)
    yield from port.export_state(of).items()


def quantised(port, name):
    """Codes, sums and products, of matrices with halves, zeros and one that needs all of float32."""
    random = np.random.default_rng(0)
    halves = np.concatenate([[127, -127], np.arange(-120, 120) + 0.5]).astype(np.float32)
    odd = random.standard_normal((64, 242)).astype(np.float32) * 10 ** random.uniform(-2, 2, (64, 1)).astype(np.float32)
    made = np.concatenate([[halves, halves / 4, -halves, 0 * halves], odd])
    yield from port.apply("quantise_rows", {"weight": made}).items()
    yield from ((f"x {what}", value) for what, value in port.apply("quantise_vector", {"x": made}).items())
    yield from port.apply("int8_linear", {"x": made, "weight": made}).items()
    ones = np.ones((2, 4095), np.float32)
    yield from (
        (f"large {what}", value) for what, value in port.apply("int8_linear", {"x": ones, "weight": ones}).items()
    )
    gone = made[:3].copy()
    gone[1, 3] = np.nan
    yield "NaN", np.isnan(port.apply("int8_linear", {"x": gone, "weight": made})["y"]).astype(float)
    near_half = (odd * np.float32(1.25)).astype(np.float32).round(2)
    yield "reciprocal", port.apply("quantise_vector", {"x": near_half})["codes"]


def in_the_model(port, name):
    """Every formula on a right port's values: nearly the same would have other codes."""
    port.given = right_taps(name)
    taps: Shown = {}
    port.forward(tokens(port, 5), port.initial_state(), taps=taps)
    yield from taps.items()


@cache
def right_taps(name: str) -> Shown:
    port, taps = Port(quantize=True), {}
    port.load(model(name))
    port.forward(tokens(port, 5), port.initial_state(), taps=taps)
    return taps


SCENARIOS: dict[str, tuple[Scenario, ...]] = {
    "state": (in_calls(5, 1, 1, 3), from_a_start, export_kept, imported_twice, after_another),
    "loading": (in_calls(6), of_finer_weights),
    "tokens": (in_calls(6),),
    "dtype": (in_calls(5, 1, 3),),
    "chunk": (
        in_calls(33), in_calls(7, 20), in_calls(1, 1, 3), in_calls(20, chunk=7), in_calls(33, chunk=32), in_calls(65),
    ),
    "batch": (batch(1, 5, 9, 2, 3), batch(4, 4, 4), batch(6), batch(1, 1, 1, calls=2)),
    "threads": (in_calls(5, threads=2),),
    "snapshot": (rolled_back(2), rolled_back(1, 1)),
    "rollback": (rolled_back(2), rolled_back(1, 1)),
    "clone": (cloned(original_first=True), cloned(original_first=False)),
    "reset": (was_reset,),
    "new": (after_another, imported_twice),
    "repeat": (repeated,),
    "attention": (in_calls(9, 1, 4),),
    "moba": (in_calls(37, 1, 5),),
    "package": (in_calls(19, 20), in_calls(30, 1, 1)),
    "capped": (in_calls(15, 1, 4),),
    "refuse": (refused,),
    "evict": (in_calls(30, 1, 1), in_calls(30, 9)),
    "memory": (in_calls(12, 1, 1),),
    "int8": (quantised, in_the_model),
}  # fmt: skip


def shown(scenario: Scenario, name: str, mode: Mode, mutant: Mutant | None, kind: str) -> Shown:
    port = Port(mutant, dtype=kind, attention=mode.attention, quantize=mode.quantize)
    port.load(model(name))
    with np.errstate(all="ignore"):
        return {what: np.array(value) for what, value in scenario(port, name)}


@cache
def expected(scenario: Scenario, name: str, mode: Mode) -> tuple[Shown, Shown]:
    """What a right port shows, and how far an honest one may be from it. In INT8 codes flip from one precision to
    another: there the same precision is right to the last bit."""
    own = shown(scenario, name, mode, None, "float32")
    want = own if mode.quantize else shown(scenario, name, mode, None, "float64")
    want = {what: value.astype(np.float64) for what, value in want.items()}
    bound = {
        what: bounds(value, [own[what]], "float32", token_axis=".state." not in what) * (own[what].dtype.kind == "f")
        for what, value in want.items()
    }
    return want, bound


def distances(mutant: Mutant) -> Iterator[float]:
    """The largest difference in each of the rule's scenarios, in bounds."""
    for scenario in SCENARIOS[mutant.formula]:
        want, bound = expected(scenario, mutant.model, mutant.mode)
        got = shown(scenario, mutant.model, mutant.mode, mutant, "float32")
        yield max(apart(got[what], value, bound[what]) for what, value in want.items())


def apart(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> float:
    if got.shape != want.shape:
        return np.inf
    error = row_errors(got, want)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.where(error == 0, 0, error / bound)  # of whole numbers the bound is zero
    return float(np.nan_to_num(ratio, nan=np.inf, posinf=np.inf).max(initial=0))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """A second one costs more than it gives, where matrices are small and the machine is busy."""
    with threadpool_limits(1):
        yield


def test_no_two_mutants_have_one_name():
    ids = [mutant.id for mutant in (*MUTANTS, *tokenizer.TOKENIZERS)]
    assert len(ids) == len(set(ids))
    assert {mutant.formula for mutant in MUTANTS} == set(SCENARIOS)


@pytest.mark.parametrize("mutant", FAULTS, ids=lambda mutant: mutant.id)
def test_a_fault_shows(mutant):
    assert any(distance > (1 if mutant.rounding else BEYOND) for distance in distances(mutant))


@pytest.mark.parametrize("mutant", EQUAL, ids=lambda mutant: mutant.id)
def test_what_is_the_same_does_not(mutant):
    assert all(distance <= 1 for distance in distances(mutant))


@cache
def vocabulary():
    """The World vocabulary, and a mixed text."""
    world = find_vocabulary()
    return world, mixed_text(world, 5000)


@pytest.fixture
def quick(monkeypatch):
    """Without the 65043 tokens, one by one, and with less mixed text."""
    world, mixed = vocabulary()
    monkeypatch.setattr("gander.conformance.tokenizers.mixed_text", lambda vocabulary, size: mixed)
    monkeypatch.setattr("gander.conformance.tokenizers._entries", lambda vocabulary: ["</div>", " the", "日本"])
    return lambda mutant: compare_tokenizer(mutant.id, mutant.make(world), world)


@pytest.mark.parametrize("mutant", tokenizer.TOKENIZERS, ids=lambda mutant: mutant.id)
def test_a_wrong_tokenizer_is_found(quick, mutant):
    result = quick(mutant)
    assert result.compared == result.expected
    assert result.status is (Status.PASS if mutant.same else Status.FAIL)
