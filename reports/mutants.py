"""The kill matrix for a terminal, as JSON, and as a page."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tabulate import tabulate

from ..conformance.mutants import Mutant, TokenizerMutant
from ..conformance.scoring import Matrix, Row
from ..conformance.weak import WEAK
from ..files import output

__all__ = ["matrix_as_json", "print_matrix", "print_mutants", "write_matrix"]


def print_mutants(mutants: Iterable[Mutant | TokenizerMutant], console: Console) -> None:
    """Each with its fault, and where it was seen."""
    for mutant in mutants:
        console.print(Text(mutant.id, style="bold"))
        console.print(Text(f"  {mutant.fault}"))
        if mutant.same:
            console.print(Text(f"  no fault: {mutant.same}", style="green"))
        if mutant.seen:
            console.print(Text(f"  seen: {mutant.seen}", style="dim"))


def print_matrix(matrix: Matrix, console: Console, *, partial: bool) -> None:
    """A line a mutant, a line a check, what is wrong, and the verdict. `partial`: of some mutants only."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("mutant", "found by", "first"):
        table.add_column(column, no_wrap=column != "first", justify="right" if column == "found by" else "left")
    for row in matrix.rows:
        asked = len(row.killed_by | row.passed)
        first = next((check for check in matrix.checks if check in row.killed_by), "")
        mark = "equal" if row.mutant.same else first or "SURVIVES"
        style = "red" if row in matrix.survivors or row in matrix.accused else ""
        table.add_row(Text(row.mutant.id, style=style), f"{len(row.killed_by)}/{asked}", mark)
    console.print(table)
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "finds", "of"):
        table.add_column(column, no_wrap=True, justify="left" if column == "check" else "right")
    for check in matrix.checks:
        table.add_row(
            check, str(_kills(matrix, check)), str(sum(check in row.killed_by | row.passed for row in matrix.rows))
        )
    console.print(table)
    console.print()
    for gate, what in WEAK.items():
        console.print(f"{len(_missed(matrix, gate))} of {len(_of_models(matrix))} would be missed by {what}")
    console.print()
    for line in _wrong(matrix, partial=partial):
        console.print(Text(line, style="bold red"))
    verdict = "FAIL" if any(_wrong(matrix, partial=partial)) else "PASS"
    console.print(Text(verdict, style="green" if verdict == "PASS" else "bold red") + Text(f"  {_summary(matrix)}"))


def _faults(matrix: Matrix) -> list[Row]:
    return [row for row in matrix.rows if not row.mutant.same]


def _kills(matrix: Matrix, check: str) -> int:
    return sum(check in row.killed_by for row in _faults(matrix))


def _missed(matrix: Matrix, gate: str) -> list[Row]:
    return [row for row in _of_models(matrix) if gate in row.missed]


def _of_models(matrix: Matrix) -> list[Row]:
    return [row for row in _faults(matrix) if row.of_model]


def _summary(matrix: Matrix) -> str:
    equal, killed = len(matrix.rows) - len(_faults(matrix)), sum(row.killed for row in _faults(matrix))
    return f"{killed}/{len(_faults(matrix))} faults found, {equal} equal variants, {len(matrix.checks)} checks"


def _wrong(matrix: Matrix, *, partial: bool) -> list[str]:
    """What keeps the checks from proving what they claim."""
    lines = [
        f"{setting}: the port without a fault fails {', '.join(sorted(checks))}"
        for setting, checks in matrix.broken.items()
    ]
    lines += [f"{row.mutant.id} survives: {row.mutant.fault}" for row in matrix.survivors]
    lines += [f"{row.mutant.id} is no fault, but {', '.join(sorted(row.killed_by))} fails" for row in matrix.accused]
    return lines + ([] if partial else [f"{check} finds none of the faults" for check in matrix.idle])


def matrix_as_json(matrix: Matrix) -> str:
    """Every cell."""
    return json.dumps(
        {
            "schema": 1,
            "ok": matrix.ok,
            "checks": list(matrix.checks),
            "mutants": [
                {
                    "id": row.mutant.id,
                    "fault": row.mutant.fault,
                    "right": row.mutant.right,
                    "seen": row.mutant.seen,
                    "same": row.mutant.same,
                    "on": row.setting,
                    "killed_by": [check for check in matrix.checks if check in row.killed_by],
                    "passed": [check for check in matrix.checks if check in row.passed],
                    "missed_by": [gate for gate in WEAK if gate in row.missed],
                }
                for row in matrix.rows
            ],
            "survivors": [row.mutant.id for row in matrix.survivors],
            "accused": [row.mutant.id for row in matrix.accused],
            "idle": matrix.idle,
            "broken": {setting: sorted(checks) for setting, checks in matrix.broken.items()},
        },
        indent=2,
        ensure_ascii=False,
    )


PAGE = """# The kill matrix

Every check of `gander check` against every mutant: a right port (the reference's formulas behind an
engine's verbs, in float32, the recurrence in three terms) with one fault put in. {summary}. To repeat it:
`gander mutants score --page docs/kill-matrix.md`.

A check that finds no fault would prove nothing, and a fault that no check finds would get through:
`gander mutants score` fails for either, and where an equal variant is taken for a fault.

## Faults

*Found by* counts the checks that fail, of those that can be asked of the mutant's model. The last columns
say what other gates would have let through:

{gates}

{faults}

## Equal variants

Other ways to write the same formula. No check may fail.

{equal}

## Checks

{checks}

## Every cell

● the check fails; · it passes; empty: it cannot be asked of that model in that mode. Columns are numbered as above.

{cells}
"""


def write_matrix(matrix: Matrix, path: str) -> None:
    """The page, whole or not at all."""
    with output(Path(path)) as partial:
        partial.write_text(_page(matrix), encoding="utf-8")


def _page(matrix: Matrix) -> str:
    faults = [
        [f"`{row.mutant.id}`", row.mutant.fault, row.mutant.seen, row.setting.removeprefix("golden:"), _found(row)]
        + ["missed" if gate in row.missed else "" for gate in WEAK]
        for row in _faults(matrix)
    ]
    equal = [[f"`{row.mutant.id}`", row.mutant.fault, row.mutant.same] for row in matrix.rows if row.mutant.same]
    checks = [[i, f"`{check}`", _kills(matrix, check)] for i, check in enumerate(matrix.checks, 1)]
    cells = [
        [f"`{row.mutant.id}`"]
        + ["●" if check in row.killed_by else "·" if check in row.passed else "" for check in matrix.checks]
        for row in matrix.rows
    ]
    gates = "\n".join(
        f"- *{gate}*: {what}: {len(_missed(matrix, gate))} of {len(_of_models(matrix))} faults missed"
        for gate, what in WEAK.items()
    )
    return PAGE.format(
        summary=_summary(matrix),
        gates=gates,
        faults=_table(faults, ["mutant", "fault", "seen in", "model", "found by", *WEAK]),
        equal=_table(equal, ["variant", "what", "why it is the same"]),
        checks=_table(checks, ["", "check", "faults it finds"]),
        cells=_table(cells, ["mutant", *(str(i) for i in range(1, len(matrix.checks) + 1))]),
    )


def _found(row: Row) -> str:
    return f"{len(row.killed_by)}/{len(row.killed_by | row.passed)}"


def _table(rows: Sequence[Sequence[object]], headers: list[str]) -> str:
    return tabulate([[str(cell).replace("|", "\\|") for cell in row] for row in rows], headers, tablefmt="github")
