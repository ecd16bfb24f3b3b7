"""The gate's rule on simulated timings: how often it is wrong, in both directions, and what it takes for slower.

tests/meta/gate.py asks the same of real runs.
"""

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("scipy", reason="pip install 'gander-rwkv[bench]'")

from gander.benchmarks.decision import ALPHA, FLOOR, Round, decide, decide_apart
from gander.benchmarks.gate import ROUNDS

RUNS = 400
NEW = np.array([0, 1, 0, 1, 0, 1])  # which blocks of a round are the new code's
Noise = Callable[[np.random.Generator, int], np.ndarray]  # the machine's slowness, block by block


def quiet(random: np.random.Generator, blocks: int) -> np.ndarray:
    """Blocks that are independent, within 2 %."""
    return np.exp(0.02 * random.standard_normal(blocks))


def restless(random: np.random.Generator, blocks: int) -> np.ndarray:
    """A machine that others share: most blocks are within a tenth, some are far off."""
    return np.exp(0.06 * random.standard_t(3, blocks))


def wandering(random: np.random.Generator, blocks: int) -> np.ndarray:
    """A machine that grows slower and faster again by tens of per cent, over many rounds."""
    steps = 0.03 * random.standard_normal(blocks)
    return np.exp(np.cumsum(steps)) * quiet(random, blocks)


def interrupted(random: np.random.Generator, blocks: int) -> np.ndarray:
    """Something else runs a tenth of the time, for a few blocks each, and takes half of the machine."""
    begins = random.random(blocks) < 0.03
    runs = np.convolve(begins, np.ones(4))[:blocks] > 0
    return np.where(runs, 2.0, 1.0) * quiet(random, blocks)


def drifting(random: np.random.Generator, blocks: int) -> np.ndarray:
    """A machine that slows down all the time, to half its speed."""
    return np.linspace(1, 2, blocks) * quiet(random, blocks)


NOISES = [quiet, restless, wandering, interrupted, drifting]


def rounds_of(blocks: np.ndarray, slowdown: float) -> list[Round]:
    """With the new code's taking so many times as long."""
    return [tuple(each) for each in blocks.reshape(-1, 6) * slowdown**NEW]


def alarms(noise: Noise, slowdown: float) -> float:
    """How many of RUNS runs are called slower, where the new code takes `slowdown` times as long."""
    random = np.random.default_rng(0)
    called = 0
    for _ in range(RUNS):
        called += decide(rounds_of(noise(random, 6 * ROUNDS), slowdown)).slower
    return called / RUNS


@pytest.mark.parametrize("noise", NOISES)
def test_the_same_code_is_rarely_called_slower(noise: Noise) -> None:
    """At most one time in twenty, with no second pair of processes to ask."""
    assert alarms(noise, 1.0) <= 0.05


@pytest.mark.parametrize("noise", NOISES)
def test_ten_per_cent_are_found(noise: Noise) -> None:
    """At least nineteen times in twenty."""
    assert alarms(noise, 1.1) >= 0.95


def test_two_per_cent_are_below_the_floor() -> None:
    """They are proven, and not reported."""
    decision = decide(rounds_of(1 + 1e-4 * (np.arange(600) % 7), 1.02))
    assert decision.p < ALPHA
    assert decision.ratio < FLOOR
    assert not decision.slower


def test_what_is_faster_is_not_slower() -> None:
    assert alarms(quiet, 0.9) == 0


def test_too_few_rounds_prove_nothing() -> None:
    """However large the difference."""
    decision = decide(rounds_of(np.ones(12), 2.0))
    assert decision.ratio == 2
    assert not decision.slower


def test_many_questions_need_more_proof() -> None:
    """Each row of a run may raise a false alarm: together as rarely as one."""
    rounds = rounds_of(quiet(np.random.default_rng(1), 36), 1.06)
    one = decide(rounds)
    assert one.slower
    assert not decide(rounds, tests=int(ALPHA / one.p) + 1).slower


@pytest.mark.parametrize("noise", NOISES)
def test_two_launches_are_wrong_together_as_rarely_as_one_alone(noise: Noise) -> None:
    """Each of them may be more often: with ALPHA for both, √ALPHA for each."""
    random = np.random.default_rng(2)
    both = 0
    for _ in range(RUNS):
        launches = [rounds_of(blocks, 1.0) for blocks in np.split(noise(random, 12 * ROUNDS), 2)]
        both += all(decide(rounds, launches=2).p < ALPHA**0.5 for rounds in launches)
    assert both / RUNS <= 3 * ALPHA  # of 400 runs; the floor is not even asked
    one = decide(rounds_of(quiet(random, 18), 1.1), launches=2)
    assert ALPHA < one.p < ALPHA**0.5
    assert one.slower


def test_an_earlier_run_is_compared_block_by_block() -> None:
    """Its blocks stand next to none of today's."""
    random = np.random.default_rng(0)
    old, same, slow = quiet(random, 12), quiet(random, 15), 1.1 * quiet(random, 15)
    assert not decide_apart(old, same).slower
    assert decide_apart(old, slow).slower


def test_lap_by_lap_the_same_code_would_often_be_called_slower() -> None:
    """Why rounds are not simply put into one sample a side: on a wandering machine they are no samples."""
    random = np.random.default_rng(0)
    called = 0
    for _ in range(RUNS):
        laps = wandering(random, 2 * ROUNDS)
        called += decide_apart(laps[:ROUNDS], laps[ROUNDS:]).slower
    assert called / RUNS > 0.05
