"""What a mutant is: a fault, and the parts of a right port that it replaces."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...checkpoint import Checkpoint
from ..mode import PLAIN, Mode

__all__ = ["Mutant"]


@dataclass(frozen=True)
class Mutant:
    """One mistake that a port can make.

    `formulas` take the place of the reference's functions of those names, `methods` that of `Port`'s. Neither is a copy
    of the model: everything else stays the reference's.
    """

    id: str  # "group_norm.eps_1e-5": the formula or rule, and what is wrong with it
    fault: str  # the mistake in a line: "GroupNorm eps 1e-5 instead of 64e-5"
    right: str  # the formula or rule as it should be
    formulas: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    spoils: Callable[[Checkpoint], Checkpoint] | None = None  # what it makes of the file, which is read rightly
    seen: str = ""  # where a real port had it
    same: str = ""  # why it is no fault at all, but another way to write the right thing
    rounding: bool = False  # a fault of precision alone: the value is right, its bits are too few
    mode: Mode = PLAIN  # what it takes to have it: INT8, or an attention policy
    model: str = "golden:adversarial"  # on which it can be seen

    @property
    def formula(self) -> str:
        """The formula or rule it belongs to."""
        return self.id.partition(".")[0]
