"""How far a conformant engine has come: levels, each on top of the one below. Nothing that was not asked is reached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["LEVELS", "Level", "highest", "reached"]


@dataclass(frozen=True)
class Level:
    """What it says of an engine, and the checks that it takes: ids or groups."""

    claim: str
    checks: tuple[str, ...]


LEVELS: Mapping[str, Level] = {
    "L0": Level("takes the model, every tensor of it", ("load",)),
    "L1": Level("has every formula right, on its own", ("op",)),
    "L2": Level("has the model and its state right", ("layer", "golden", "path.start")),
    "L3": Level("has them right on every path, and the same twice", ("path",)),
    "L4": Level("has them right in a dtype of 16 bits, or in INT8", ("int8",)),
}

REACHED, FAILED, NOT_TESTED = "reached", "failed", "not tested"
NARROW = ("float16", "bfloat16")


def reached(evidence: Mapping[str, Any]) -> dict[str, str]:
    """Of each level: reached, failed, or not tested. `evidence` is a report as data, and what could have been asked of
    each model (`applicable`)."""
    return {name: _level(name, level, evidence) for name, level in LEVELS.items()}


def highest(levels: Mapping[str, str]) -> str | None:
    """The last level that is reached with all below it."""
    last = None
    for name, verdict in levels.items():
        if verdict != REACHED:
            break
        last = name
    return last


def _level(name: str, level: Level, evidence: Mapping[str, Any]) -> str:
    in_int8 = "INT8" in evidence["mode"]
    if name == "L4" and not in_int8 and evidence["dtype"] not in NARROW:
        return NOT_TESTED
    verdicts = []
    for model in evidence["models"]:
        checks = {check["id"]: check for check in model["checks"]}
        wanted = [
            id for id in model["applicable"] if any(id == each or id.startswith(f"{each}.") for each in level.checks)
        ]
        verdicts += [_verdict(checks.get(id)) for id in wanted]
        # What was not to be expected, as a close that failed, counts too.
        verdicts += [_verdict(check) for id, check in checks.items() if name == "L0" and id.startswith("load.")]
    if name == "L4" and not in_int8:  # 16 bits have no checks of their own: all are asked in that dtype
        return REACHED
    return _worst(verdicts)


def _verdict(check: Mapping[str, Any] | None) -> str:
    """By the figures, not by the word."""
    if check is None or check["status"] == "N/A":
        return NOT_TESTED
    if any(not finding["missing"] for finding in check["findings"]) or check["status"] in ("FAIL", "XFAIL", "XPASS"):
        return FAILED
    whole = check["compared"] == check["expected"] > 0 and not check["findings"] and check["status"] == "PASS"
    return REACHED if whole and check["of_bound"] is not None and check["of_bound"] <= 1 else NOT_TESTED


def _worst(verdicts: Sequence[str]) -> str:
    return next(
        (verdict for verdict in (FAILED, NOT_TESTED) if verdict in verdicts), REACHED if verdicts else NOT_TESTED
    )
