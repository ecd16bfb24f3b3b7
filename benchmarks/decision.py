"""Is the new code slower than the old? Mann–Whitney, and a floor below which nobody is called.

Timings of neighbouring laps are alike: a machine has slow seconds and slow minutes, and a test that takes each lap for
a sample of its own is sure of anything. So a sample here is the ratio of two blocks that stand next to each other, each
the median of some laps. A round is old, new, old. Its new block over its two old ones is a sample of what the change
does; one of its old blocks over the other is a sample of what the machine does by itself. What a slow minute does to
all three is in neither. Mann–Whitney asks if the former are larger than the latter; for independent blocks the two are
uncorrelated.

Two processes of the same code differ by a percent or two for as long as they live, by where their memory lies. No
number of rounds averages that away, and enough of them prove it. So a difference below the floor is none, and one above
it must be found a second time, in new processes (gate.py). Two launches are independent: the chance that both are wrong
is the product of the chances that each is, so each needs less proof than one alone would.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu

__all__ = ["ALPHA", "FLOOR", "Decision", "Round", "decide", "decide_apart"]

ALPHA = 0.01  # of a false alarm of all rows together, by the test alone
FLOOR = 1.05  # 5 %: a smaller slowdown is not reported

Round = tuple[float, float, float]  # seconds of old, new, old


@dataclass(frozen=True)
class Decision:
    """The new code's time ÷ the old's, and how likely as large a one is by chance."""

    ratio: float
    p: float
    slower: bool


def decide(rounds: Sequence[Round], *, tests: int = 1, launches: int = 1) -> Decision:
    """Of rounds that were taken one after the other; `tests` is how many such questions are asked together, `launches`
    how many times each must be answered alike."""
    before, new, after = np.array(rounds).T
    change = new / np.sqrt(before * after)
    drift = after / before
    drift[1::2] = 1 / drift[1::2]  # a machine that slows down all the time is then no slow machine
    return _decided(change, drift, float(np.median(change)), (ALPHA / tests) ** (1 / launches))


def decide_apart(old: Sequence[float], new: Sequence[float], *, tests: int = 1) -> Decision:
    """Of blocks of two runs, of which one is long past: nothing cancels what the machine did meanwhile."""
    return _decided(new, old, float(np.median(new) / np.median(old)), ALPHA / tests)


def _decided(high: Sequence[float], low: Sequence[float], ratio: float, alpha: float) -> Decision:
    p = float(mannwhitneyu(high, low, alternative="greater").pvalue)
    return Decision(ratio, p, p < alpha and ratio >= FLOOR)
