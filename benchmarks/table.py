"""The table of speeds: from pytest-benchmark's record of a run, for a terminal and for docs/performance.md."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tabulate import tabulate

from ..errors import InputError
from ..files import output
from .machine import packages
from .rows import ROWS, Goal, Row

__all__ = ["Line", "check_page", "lines", "print_table", "read_run", "write_page"]

COLUMNS = ("work", "engine", "median", "speed", "ratio", "goal", "share")
WIDTHS = (16, 7, 15, 5, 13, 5)  # of all but the first, in a terminal: aligned from row to row
BEGIN, END = "<!-- made by gander bench: begin -->", "<!-- made by gander bench: end -->"


@dataclass(frozen=True)
class Line:
    """One contender of a row. `ratio` is gander's speed (in a row of seconds: its time) ÷ this one's."""

    work: str
    engine: str
    median: str = ""
    speed: str = ""
    ratio: str = ""
    goal: str = ""
    share: str = ""
    met: bool | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of COLUMNS."""
        goal = f"{self.goal} {'met' if self.met else 'missed'}" if self.met is not None else self.goal
        return self.work, self.engine, self.median, self.speed, self.ratio, goal, self.share


def read_run(path: Path) -> Mapping[str, Any]:
    """pytest-benchmark's record."""
    run: dict[str, Any] = json.loads(path.read_text())
    return run


def lines(run: Mapping[str, Any]) -> Iterator[Line]:
    """Of the rows that were measured."""
    for benchmark in run["benchmarks"]:
        yield from _row(ROWS[benchmark["extra_info"]["row"]], benchmark["extra_info"])


def print_table(run: Mapping[str, Any], console: Console) -> None:
    """Row by row; a goal that is missed is red."""
    console.print(_aligned([COLUMNS[1:]], [""]))
    for title, group in _grouped(lines(run)):
        console.print(Text(title, style="bold"), soft_wrap=True)
        cells, styles = [line.cells[1:] for line in group], ["red" if line.met is False else "" for line in group]
        console.print(_aligned(cells, styles))
    console.print(Text(_machine(run), style="dim"), soft_wrap=True)


def _grouped(of: Iterable[Line]) -> Iterator[tuple[str, list[Line]]]:
    """The lines of each row: its first says what work it is."""
    group: list[Line] = []
    for line in of:
        if line.work and group:
            yield group[0].work, group
            group = []
        group.append(line)
    if group:
        yield group[0].work, group


def _aligned(rows: Iterable[Sequence[str]], styles: Iterable[str]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for width in WIDTHS:
        table.add_column(min_width=width)
    for cells, style in zip(rows, styles, strict=True):
        table.add_row(*map(Text, cells), style=style)
    return table


def check_page(path: Path) -> tuple[str, str]:
    """What stands before the table and behind it. InputError, if the page has no place for one."""
    try:
        page = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{path} has no place for the table", expected=f"a line {BEGIN} and a line {END}")
    return before, after


def write_page(run: Mapping[str, Any], path: Path) -> None:
    """Put the table between the page's two marks; all else on it stays."""
    before, after = check_page(path)
    rows = [[cell.replace("|", "\\|") for cell in line.cells] for line in lines(run)]
    table = tabulate(rows, COLUMNS, tablefmt="github", disable_numparse=True)
    with output(path) as partial:
        partial.write_text(f"{before}{BEGIN}\n\n{table}\n\n{_machine(run)}\n\n{END}{after}", encoding="utf-8")


def _row(row: Row, info: Mapping[str, Any]) -> Iterator[Line]:
    entries = {entry["label"]: entry for entry in info["entries"]}
    goals = {goal.against: goal for goal in row.goals}
    ours = row.entries[0].label
    work = row.title
    for entry in row.entries:
        goal = goals.get("" if entry.label == ours else entry.label)
        if entry.label not in entries:
            yield Line(work, entry.label, info["left_out"][entry.label], goal=_wanted(row, goal))
            continue
        figure = _figure(row, entries[entry.label])
        mine = _figure(row, entries[ours])
        ratio = None if entry.label == ours else mine / figure
        reached = None if goal is None else _reached(row, goal, mine if ratio is None else ratio)
        share = entries[entry.label]["share"]
        yield Line(
            work,
            entry.label,
            _seconds(float(np.median(entries[entry.label]["seconds"])) * (entry.amount or 1)),
            "" if row.unit == "s" else f"{figure:.3g} {row.unit}/s" if figure < 1000 else f"{figure:.0f} {row.unit}/s",
            "" if ratio is None else f"{ratio:.2f}",
            _wanted(row, goal),
            "" if share is None else f"{share:.0%}",
            reached,
        )
        work = ""


def _figure(row: Row, entry: Mapping[str, Any]) -> float:
    """Speed in the row's unit, or seconds of the whole."""
    seconds = float(np.median(entry["seconds"]))
    return seconds * (entry["amount"] or 1) if row.unit == "s" else 1 / seconds


def _reached(row: Row, goal: Goal, figure: float) -> bool:
    return figure <= goal.limit if row.unit == "s" else figure >= goal.limit


def _wanted(row: Row, goal: Goal | None) -> str:
    if goal is None:
        return ""
    unit = "" if goal.against else f" {row.unit}{'' if row.unit == 's' else '/s'}"
    return f"{'≤' if row.unit == 's' else '≥'} {goal.limit:g}{unit}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _machine(run: Mapping[str, Any]) -> str:
    """Where and when, with what, and how quiet it was."""
    info = run["machine_info"]
    infos = [benchmark["extra_info"] for benchmark in run["benchmarks"]]
    cpu = info["cpu"]
    loads = [each["load"] for each in infos]
    parts = [
        f"{cpu.get('brand_raw', info['machine'])}, {cpu.get('count', '?')} cores, {run['datetime'][:10]}",
        f"gander {run['commit_info']['id']}",
        ", ".join(f"{name} {version}" for name, version in packages().items()),
    ]
    limits = _limits(infos)
    if limits:
        parts.append(limits)
    parts.append(f"load {min(loads):.1f} to {max(loads):.1f}" if loads else "nothing measured")
    return " · ".join(parts)


def _limits(infos: Sequence[Mapping[str, Any]]) -> str:
    """The machine's own figures, of all rows in which they were measured."""
    texts = []
    for limit, text in (("read", "memory read {} GB/s"), ("multiply", "matrix products {} GFLOP/s")):
        found = [info["limit"] for info in infos if info["limit"] and ROWS[info["row"]].limit == limit]
        if found:
            low, high = min(found), max(found)
            texts.append(text.format(f"{low:.0f} to {high:.0f}" if high - low >= 1 else f"{high:.0f}"))
    return ", ".join(texts)
