"""What each check was shown to find: the last whole kill matrix, for reports that say what a check is worth."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["FOUND", "Kills", "kills"]

FOUND = "●"  # other signs: · passed, a space where the check cannot be asked


@dataclass(frozen=True)
class Kills:
    """Faults, each with a sign for each check."""

    checks: tuple[str, ...]
    faults: Mapping[str, str]

    def signs(self, check: str) -> dict[str, bool]:
        """Of the faults that the check can be asked of, whether it finds them."""
        if check not in self.checks:
            return {}
        column = self.checks.index(check)
        return {fault: signs[column] == FOUND for fault, signs in self.faults.items() if signs[column] != " "}

    def by_group(self, check: str) -> dict[str, tuple[int, int]]:
        """How many it finds, and of how many, by what the faults are faults of (`decay`, `state`)."""
        counts: dict[str, tuple[int, int]] = {}
        for fault, found in self.signs(check).items():
            group = group_of(fault)
            number, of = counts.get(group, (0, 0))
            counts[group] = number + found, of + 1
        return counts

    def alone(self, check: str) -> list[str]:
        """The faults that no other check finds."""
        return [fault for fault, found in self.signs(check).items() if found and self.faults[fault].count(FOUND) == 1]

    @property
    def groups(self) -> list[str]:
        """In the order of the matrix."""
        return list(dict.fromkeys(map(group_of, self.faults)))


def group_of(fault: str) -> str:
    """`decay` of `decay.no_tanh`."""
    return fault.partition(".")[0]


@cache
def kills() -> Kills:
    """The one that comes with gander."""
    data = json.loads((files(__package__) / "kills.json").read_text(encoding="utf-8"))
    return Kills(tuple(data["checks"]), data["faults"])
