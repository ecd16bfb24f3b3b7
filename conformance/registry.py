"""The list of checks: each has an id, says what it checks, and what an engine must offer for it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..errors import InputError, nearest
from .compare import Tally
from .context import Context

__all__ = ["CHECKS", "Check", "check", "matches", "select"]


@dataclass(frozen=True)
class Check:
    """One check. `run` compares into a tally and may return a note for the report."""

    id: str
    title: str  # what it proves
    blind: str  # what it cannot see
    run: Callable[[Context, Tally], str | None]
    needs: frozenset[str]  # of engine.CAPABILITIES
    when: Callable[[Context], bool]  # whether it can be asked of this model, in this mode


# The groups in the order in which they run: what later ones rest on comes first.
GROUPS = ("load", "op", "int8", "layer", "golden", "path")

CHECKS: dict[str, Check] = {}


def check(
    id: str,
    title: str,
    *,
    blind: str,
    needs: Iterable[str] = (),
    when: Callable[[Context], bool] = lambda context: True,
) -> Callable[[Callable[[Context, Tally], str | None]], Callable[[Context, Tally], str | None]]:
    """Enter a function into the list of checks."""

    def enter(run: Callable[[Context, Tally], str | None]) -> Callable[[Context, Tally], str | None]:
        CHECKS[id] = Check(id, title, blind, run, frozenset(needs), when)
        return run

    return enter


def matches(id: str, pattern: str) -> bool:
    """Whether a check is meant by a pattern: an id, a group (`path`), or a glob (`op.*norm`)."""
    return fnmatchcase(id, pattern) or id.startswith(f"{pattern}.")


def select(only: Iterable[str], skip: Iterable[str], checks: Mapping[str, Check]) -> list[Check]:
    """The checks whose id matches `only` (all, if it is empty) and not `skip`."""

    def matching(patterns: Iterable[str]) -> set[str]:
        found: set[str] = set()
        for pattern in patterns:
            hits = {id for id in checks if matches(id, pattern)}
            if not hits:
                known = {*checks, *(id.split(".")[0] for id in checks)}
                raise InputError(f"no check {pattern!r}", expected=nearest(pattern, known), mend="gander check --list")
            found |= hits
        return found

    only, skip = list(only), list(skip)
    wanted = matching(only) if only else set(checks)
    left = wanted - matching(skip)
    chosen = [check for group in GROUPS for id, check in checks.items() if id in left and id.split(".")[0] == group]
    if not chosen:
        raise InputError("--only and --skip leave no check", mend="gander check --list shows what there is")
    return chosen
