"""What became better or worse from one result to another."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ..conformance.results import CheckResult, ModelReport, Report, Status
from .words import of_bound, title

__all__ = ["Change", "Changes", "changes", "changes_as_json", "print_changes"]

# Two honest runs differ too: the largest of many roundings is no constant. It rarely moves by more than a factor of
# four (tolerances.py has the reason); so what moves by less, on its side of 1, is no change.
FACTOR = 4.0

SHOWN = 6  # changes of a check; the JSON has them all
INDENT = 6
STYLE = {"WORSE": "bold red", "BETTER": "green", "WITHIN": "", "NOT WORSE": "green"}

# The better a verdict, the further on.
ORDER = (Status.FAIL, Status.XPASS, Status.INCOMPLETE, Status.NOT_APPLICABLE, Status.XFAIL, Status.PASS)


@dataclass(frozen=True)
class Change:
    """One thing that is not as it was: a check's verdict, or a tap's error ÷ bound."""

    model: str
    check: str
    tap: str  # none, if it is the verdict
    before: str
    after: str
    better: bool
    within: bool = False  # of a tap: at most its bound before and after


@dataclass(frozen=True)
class Changes:
    """Everything that changed, and whether the two are of the same thing."""

    found: tuple[Change, ...]
    apart: tuple[str, ...]  # what is not the same in the two runs, so that not only the engine may have made the change
    alone: tuple[str, ...]  # models and checks that only one of them has

    @property
    def worse(self) -> bool:
        """Whether anything that is beyond a bound, or a verdict, became worse."""
        return any(not (change.better or change.within) for change in self.found)


def changes(before: Report, after: Report) -> Changes:
    """From `before` to `after`. Models are the same if their fingerprints are, whatever they are called."""
    apart = [
        f"{what}: {one or 'none'} before, {other or 'none'} after"
        for what, one, other in (
            ("engine", title(before), title(after)),
            ("seed", str(before.seed), str(after.seed)),
            ("gander", before.version, after.version),
            ("stored traces", before.golden[:12], after.golden[:12]),
        )
        if one != other
    ]
    old, new = ({model.fingerprint: model for model in report.models} for report in (before, after))
    alone = _alone("", {key: f"{each.model} {key[:12]}…" for key, each in old.items()}, new, "before")
    alone += _alone("", {key: f"{each.model} {key[:12]}…" for key, each in new.items()}, old, "after")
    found: list[Change] = []
    for key in [key for key in old if key in new]:
        first, then = ({check.id: check for check in model.checks} for model in (old[key], new[key]))
        alone += _alone(f"{new[key].model}: ", {id: id for id in first}, then, "before")
        alone += _alone(f"{new[key].model}: ", {id: id for id in then}, first, "after")
        for id in [id for id in first if id in then]:
            found += _of_check(new[key], first[id], then[id])
    return Changes(tuple(found), tuple(apart), tuple(alone))


def _alone(where: str, names: Mapping[str, str], others: Collection[str], when: str) -> list[str]:
    lone = [name for key, name in names.items() if key not in others]
    return [f"{where}only {when}: {', '.join(lone)}"] if lone else []


def _of_check(model: ModelReport, before: CheckResult, after: CheckResult) -> Iterator[Change]:
    if before.status is not after.status:
        better = ORDER.index(after.status) > ORDER.index(before.status)
        yield Change(model.model, after.id, "", before.status, after.status, better)
    first, then = ({each.where: each.worst for each in check.errors if each.given} for check in (before, after))
    for tap in [tap for tap in first if tap in then]:
        low, high = sorted((first[tap], then[tap]))
        if low <= 1 < high or high > FACTOR * low:
            better = then[tap] < first[tap]
            yield Change(model.model, after.id, tap, of_bound(first[tap]), of_bound(then[tap]), better, high <= 1)


def changes_as_json(changes: Changes) -> str:
    """Every change."""
    return json.dumps(
        {
            "schema": 1,
            "worse": changes.worse,
            "changes": [asdict(change) for change in changes.found],
            "apart": list(changes.apart),
            "alone": list(changes.alone),
        },
        indent=2,
        ensure_ascii=False,
    )


def print_changes(changes: Changes, console: Console) -> None:
    """What became worse first, then better, then what moved within its bound; and the verdict."""
    for line in changes.apart:
        console.print(Text(f"not the same {line}", style="yellow"))
    for line in changes.alone:
        console.print(Text(line, style="yellow"))
    groups = {
        "WORSE": [each for each in changes.found if not (each.better or each.within)],
        "BETTER": [each for each in changes.found if each.better and not each.within],
        "WITHIN": [each for each in changes.found if each.within],
    }
    for word, found in groups.items():
        for (model, check), of_it in groupby(found, key=lambda each: (each.model, each.check)):
            _print_check(word, f"{model} · {check}", list(of_it), console)
    console.print()
    word = "WORSE" if changes.worse else "NOT WORSE"
    worse, better, within = (len(found) for found in groups.values())
    verdict = Text(word, style=STYLE[word])
    console.print(verdict.append(f"  {worse} worse, {better} better, {within} moved within the bound", style=""))


def _print_check(word: str, place: str, found: Sequence[Change], console: Console) -> None:
    console.print()
    console.print(Text(word, style=STYLE[word]) + Text(f"  {place}", style="bold"))
    for each in found[:SHOWN]:
        what = f"{each.tap}: error ÷ bound {each.before}" if each.tap else f"was {each.before}"
        console.print(Padding(Text(f"{what}, is {each.after}"), (0, 0, 0, INDENT)))
    if len(found) > SHOWN:
        console.print(Padding(Text(f"… and {len(found) - SHOWN} more (--to json lists them)"), (0, 0, 0, INDENT)))
