"""Choosing the next token from its logits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError

__all__ = ["Sampling", "sampler"]

Logits = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. At temperature 0, the default, it is the likeliest."""

    temperature: float = 0.0
    top_p: float = 1.0  # of the likeliest tokens, as few as make up this probability
    top_k: int = 0  # of the likeliest tokens, this many; 0: all
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"a temperature of {self.temperature}", expected="0 (the likeliest) or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"a top-p of {self.top_p}", expected="above 0, at most 1")
        if self.top_k < 0:
            raise InputError(f"a top-k of {self.top_k}", expected="0 (all) or more")
        if self.seed < 0:
            raise InputError(f"a seed of {self.seed}", expected="0 or more")


def sampler(sampling: Sampling) -> Callable[[Logits], int]:
    """A function that draws a token from its logits (V). The same seed draws the same tokens.

    Tokens of equal probability count in the order of their ids, so that the result does not depend on the sort.
    """
    generator = np.random.default_rng(sampling.seed)

    def draw(logits: Logits) -> int:
        if np.isnan(logits).any() or not np.isfinite(logits.max()):
            raise InputError(
                "the logits are not finite: the next token cannot be chosen",
                expected="finite logits",
                mend="`gander check` says where they come from, `gander inspect` whether the weights are sound",
            )
        if sampling.temperature == 0:
            return int(logits.argmax())
        scaled = (logits - logits.max()).astype(np.float64) / sampling.temperature
        order = np.argsort(-scaled, kind="stable")
        probability = np.exp(scaled[order])
        probability /= probability.sum()
        before = np.cumsum(probability) - probability
        count = int((before < sampling.top_p).sum())  # always the likeliest
        count = min(count, sampling.top_k) if sampling.top_k else count
        kept = probability[:count] / probability[:count].sum()
        return int(order[generator.choice(count, p=kept)])

    return draw
