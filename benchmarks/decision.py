"""Is the new code slower than the old? Mann–Whitney, and a floor below which nobody is called.

Timings of neighbouring laps are alike: a machine has slow seconds and slow minutes, and a test that takes each lap for
a sample of its own is sure of anything. So a sample here is the ratio of a block to the two that stand next to it, each
the median of some laps. Old and new take turns, and a round is old, new, old, new, old, new. Its first half is a sample
of new to old, its second half one of old to new; they share no block, and what a slow minute does to all three of a
half is in neither. Of the same code both are the same, but for luck. What the change does is in both, in opposite
directions: Mann–Whitney asks if the former are larger than the latter, and the median of their differences (Hodges and
Lehmann's estimate, which belongs to that test) is twice the change.

Two processes of the same code differ by a percent or two for as long as they live, by where their memory lies. No
number of rounds averages that away, and enough of them prove it. So a difference below the floor is none, and one above
it must be found a second time, in new processes (gate.py). Two launches are independent: the chance that both are wrong
is the product of the chances that each is, so each needs less proof than one alone would.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.stats import mannwhitneyu

__all__ = ["ALPHA", "FLOOR", "Decision", "Round", "decide", "decide_apart"]

ALPHA = 0.01  # of a false alarm of all rows together, by the test alone
FLOOR = 1.05  # 5 %: a smaller slowdown is not reported

Round: TypeAlias = tuple[float, ...]  # seconds of old, new, old, new, old, new
Logarithms: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Decision:
    """The new code's time ÷ the old's, and how likely as large a one is by chance."""

    ratio: float
    p: float
    slower: bool


def decide(rounds: Sequence[Round], *, tests: int = 1, launches: int = 1) -> Decision:
    """Of rounds that were taken one after the other; `tests` is how many such questions are asked together, `launches`
    how many times each must be answered alike."""
    old_1, new_1, old_2, new_2, old_3, new_3 = np.log(rounds).T
    new_to_old, old_to_new = new_1 - (old_1 + old_2) / 2, old_3 - (new_2 + new_3) / 2
    return _decided(new_to_old, old_to_new, 2, (ALPHA / tests) ** (1 / launches))


def decide_apart(old: Sequence[float], new: Sequence[float], *, tests: int = 1) -> Decision:
    """Of blocks of two runs, of which one is long past: nothing cancels what the machine did meanwhile."""
    return _decided(np.log(new), np.log(old), 1, ALPHA / tests)


def _decided(high: Logarithms, low: Logarithms, times: int, alpha: float) -> Decision:
    """They differ by so many times the change."""
    p = float(mannwhitneyu(high, low, alternative="greater").pvalue)
    ratio = float(np.exp(np.median(np.subtract.outer(high, low)) / times))
    return Decision(ratio, p, p < alpha and ratio >= FLOOR)
