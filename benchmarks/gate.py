"""The gate: is one version of the code slower than another? Old and new take turns, in processes of their own."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import InputError
from .decision import FLOOR, Decision, Round, decide, decide_apart
from .field import Broken, Field, Missing, Side
from .inputs import Inputs
from .proof import Proof, Wrong
from .rows import Row

__all__ = ["LAUNCHES", "QUICK", "ROUNDS", "Verdict", "against_file", "against_side", "judge", "print_verdicts"]

ROUNDS, QUICK = 15, 6  # of six blocks
Pair = tuple[Field, Field]  # of old code and new

LAUNCHES = 2  # a slowdown counts if the second pair of processes shows it too


@dataclass(frozen=True)
class Verdict:
    """Of one row: the medians of both sides' blocks in seconds, and the decision; or why there is none."""

    row: Row
    old: float = 0.0
    new: float = 0.0
    decision: Decision | None = None
    reason: str = ""

    @property
    def slower(self) -> bool:
        """Proven so."""
        return self.decision is not None and self.decision.slower


def compare(row: Row, old: Field, new: Field, *, rounds: int) -> list[Round]:
    """Rounds in which old and new take turns, each side proved right first."""
    entry = row.entries[0]
    old.start(entry)
    new.start(entry)
    before, now = old.ready(entry), new.ready(entry)
    for worker in (before, now):
        worker.block(entry)  # what is done for the first time does not count

    return [tuple(worker.block(entry).median for worker in (before, now) * 3) for _ in range(rounds)]


def against_side(
    rows: Sequence[Row],
    old: Side,
    new: Side,
    inputs: Inputs,
    proof: Proof,
    *,
    rounds: int,
    say: Callable[[str], object],
) -> Iterator[Verdict]:
    """Row by row, in new processes; what is slower is measured in new ones again before it is said to be."""
    for row in rows:
        with ExitStack() as started:

            def launch(again: int, row: Row = row, started: ExitStack = started) -> Pair:
                started.pop_all().close()
                say(f"{row.id}{', once more' if again else ''}")
                return started.enter_context(Field(inputs, proof, old)), started.enter_context(
                    Field(inputs, proof, new)
                )

            yield judge(row, launch, rounds=rounds, tests=len(rows))


def judge(row: Row, launch: Callable[[int], Pair], *, rounds: int, tests: int = 1) -> Verdict:
    """Of the row's first entry, on as many pairs as it takes: `launch(i)` gives the i-th, of old and new."""
    for again in range(LAUNCHES):
        try:
            taken = compare(row, *launch(again), rounds=rounds)
        except (Wrong, Missing, Broken) as reason:
            return Verdict(row, reason=str(reason))
        old, new = ([seconds for each in taken for seconds in each[side::2]] for side in (0, 1))
        verdict = Verdict(row, *_medians(old, new), decide(taken, tests=tests, launches=LAUNCHES))
        if not verdict.slower:
            break
    return verdict


def against_file(
    rows: Sequence[Row], path: Path, new: Side, inputs: Inputs, proof: Proof, *, say: Callable[[str], object]
) -> Iterator[Verdict]:
    """The same against what an earlier run measured, on this machine."""
    past = _past(path)
    missing = [row.id for row in rows if row.id not in past]
    if missing:
        raise InputError(f"{path} has not measured {', '.join(missing)}", mend="choose with --only")
    for row in rows:
        entry, old = row.entries[0], past[row.id]
        say(row.id)
        with Field(inputs, proof, new) as now:
            try:
                worker = now.ready(entry)
                worker.block(entry)
                blocks = [worker.block(entry).median for _ in range(max(ROUNDS, len(old)))]
            except (Wrong, Missing, Broken) as reason:
                yield Verdict(row, reason=str(reason))
                continue
        yield Verdict(row, *_medians(old, blocks), decide_apart(old, blocks, tests=len(rows)))


def print_verdicts(verdicts: Sequence[Verdict], old: str, new: str, console: Console) -> int:
    """A line a row; the exit status: 1 if any is slower, 2 if any could not be measured."""
    table = Table("row", old, new, "new ÷ old", "p", "", box=None, pad_edge=False, header_style="bold")
    for verdict in verdicts:
        decision = verdict.decision
        if decision is None:
            table.add_row(verdict.row.id, "", "", "", "", Text("not measured", style="yellow"))
            continue
        text = Text("slower", style="red") if decision.slower else Text("no slowdown shown")
        cells = _milliseconds(verdict.old), _milliseconds(verdict.new), f"{decision.ratio:.3f}", f"{decision.p:.2g}"
        table.add_row(verdict.row.id, *cells, text)
    console.print(table)
    for verdict in verdicts:
        if verdict.reason:
            console.print(Text(f"{verdict.row.id} was not measured: {verdict.reason}", style="yellow"), soft_wrap=True)
    slower = [verdict.row.id for verdict in verdicts if verdict.slower]
    if slower:
        said = f"SLOWER  {', '.join(slower)}: by {FLOOR - 1:.0%} or more, proven"
        console.print(Text(said, style="bold red"), soft_wrap=True)
        return 1
    return 2 if any(verdict.decision is None for verdict in verdicts) else 0


def _medians(old: Sequence[float], new: Sequence[float]) -> tuple[float, float]:
    return float(np.median(old)), float(np.median(new))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _past(path: Path) -> dict[str, list[float]]:
    """The blocks of each row of an earlier run. InputError, if it is none, or is of another machine."""
    try:
        run: dict[str, Any] = json.loads(path.read_text())
        found = {each["extra_info"]["row"]: each["stats"]["data"] for each in run["benchmarks"]}
        theirs = _processor(run["machine_info"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        mend = "gander bench keeps its runs in .benchmarks/"
        raise InputError(f"{path} is no earlier run of gander bench", expected="its .json file", mend=mend) from error
    mine = _processor(pytest_benchmark_generate_machine_info())
    if theirs != mine:
        raise InputError(f"{path} was measured on another machine", expected=mine, mend="measure both on one machine")
    return found


def _processor(machine: dict[str, Any]) -> str:
    return f"{machine['cpu'].get('brand_raw', machine['machine'])}, {machine['cpu'].get('count')} cores"
