"""Known failures: a file of checks that fail, each with the reason, that the run does not fail for.

As strict as pytest: a known failure that is none any more is an error, or the file would hide the next one.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import InputError, nearest
from .registry import matches
from .results import CheckResult, Report, Status

__all__ = ["Known", "read_known", "require_matches", "with_known"]

WRITTEN = "lines of a check's id or a glob, and the reason: `path.split  our issue 12`; # begins a comment"


@dataclass(frozen=True)
class Known:
    """One line of the file."""

    pattern: str  # an id, a group, or a glob
    reason: str
    place: str  # known.txt, line 3


def read_known(path: Path) -> tuple[Known, ...]:
    """The known failures that a file lists."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", expected=f"a text file of {WRITTEN}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text: {error.reason} at byte {error.start}", expected=WRITTEN) from error
    known = []
    for number, line in enumerate(lines, 1):
        words = line.split(maxsplit=1)
        if not words or words[0].startswith("#"):
            continue
        place = f"{path}, line {number}"
        if len(words) == 1:
            raise InputError(f"{place}: {words[0]!r} has no reason", expected=WRITTEN)
        known.append(Known(words[0], words[1].strip(), place))
    return tuple(known)


def require_matches(known: Sequence[Known], ids: Collection[str]) -> None:
    """InputError if a known failure is of none of the checks that run: a typo, or no longer true."""
    for each in known:
        if not any(matches(id, each.pattern) for id in ids):
            raise InputError(
                f"{each.place}: {each.pattern!r} matches no check that is run",
                expected=nearest(each.pattern, {*ids, *(id.split(".")[0] for id in ids)}),
                mend="correct the line, or take it out",
            )


def with_known(report: Report, known: Sequence[Known]) -> Report:
    """The report with known failures as such.

    A check that fails on any model is a known failure there, and what it is elsewhere. One that passes on every model
    is none any more.
    """
    statuses: dict[str, set[Status]] = {}
    for model in report.models:
        for check in model.checks:
            statuses.setdefault(check.id, set()).add(check.status)
    require_matches(known, statuses)

    def judged(check: CheckResult) -> CheckResult:
        reason = next((each.reason for each in known if matches(check.id, each.pattern)), "")
        is_known = check.status is Status.FAIL or statuses[check.id] == {Status.PASS}
        return replace(check, xfail=reason) if is_known else check

    models = [replace(model, checks=tuple(map(judged, model.checks))) for model in report.models]
    return replace(report, models=tuple(models))
