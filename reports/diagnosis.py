"""A diagnosis for a terminal, and as JSON."""

import json

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..conformance.diagnosis import Candidate, Diagnosis
from ..conformance.mutants import Mutant
from .words import share

__all__ = ["diagnosis_as_json", "print_diagnosis"]

SHOWN = 5  # of the ranking


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """The verdict, what the mistake is and what is right, and how far other mistakes are from explaining it."""
    if diagnosis.agrees:
        console.print(Text("The trace agrees with the reference: there is nothing to explain.", style="green"))
        return
    console.print(Text(_place(diagnosis), style="bold"))
    console.print()
    if diagnosis.found is None:
        console.print(Text("None of the known faults explains it.", style="bold red"))
    else:
        many = len(diagnosis.found.mutants) > 1
        console.print(Text(f"{'These faults' if many else 'This fault'} {_measure(diagnosis.found)}:"))
        for mutant in diagnosis.found.mutants:
            _print_mutant(mutant, console)
        if diagnosis.alike:
            console.print("\nThe trace cannot tell it from:")
            for mutant in diagnosis.alike:
                console.print(Padding(Text(f"{mutant.fault} ({mutant.id})"), (0, 0, 0, 2)))
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("candidate")
    table.add_column("explains", justify="right", no_wrap=True)
    table.add_column("left, in roundings", justify="right")
    for candidate in diagnosis.ranking[:SHOWN]:
        table.add_row(_ids(candidate), share(candidate.explains), f"{candidate.left:.2g}")
    console.print(table)


def _place(diagnosis: Diagnosis) -> str:
    place = [diagnosis.where]
    place += [] if diagnosis.token is None else [f"token {diagnosis.token}"]
    place += [] if diagnosis.head is None else [f"head {diagnosis.head}"]
    inputs = "its inputs agree" if diagnosis.alone else "what goes into it was not shown"
    return f"First wrong: {' · '.join(place)} ({inputs})"


def _print_mutant(mutant: Mutant, console: Console) -> None:
    lines = [mutant.fault, f"right: {mutant.right}"] + ([f"seen: {mutant.seen}"] if mutant.seen else [])
    console.print()
    console.print(Text(f"  {mutant.id}", style="bold red"))
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 4)))


def _measure(candidate: Candidate) -> str:
    many = len(candidate.mutants) > 1
    explain, leave = ("explain", "leave") if many else ("explains", "leaves")
    return f"{explain} {share(candidate.explains)} of the difference and {leave} {candidate.left:.2g} roundings"


def _ids(candidate: Candidate) -> str:
    return " + ".join(mutant.id for mutant in candidate.mutants)


def diagnosis_as_json(diagnosis: Diagnosis) -> str:
    """The same, and the whole ranking."""
    found = diagnosis.found
    return json.dumps(
        {
            "schema": 1,
            "agrees": diagnosis.agrees,
            "where": diagnosis.where,
            "token": diagnosis.token,
            "head": diagnosis.head,
            "inputs_agree": diagnosis.alone,
            "found": [
                {"id": mutant.id, "fault": mutant.fault, "right": mutant.right, "seen": mutant.seen}
                for mutant in (found.mutants if found else ())
            ],
            "alike": [mutant.id for mutant in diagnosis.alike],
            "ranking": [
                {
                    "ids": [mutant.id for mutant in candidate.mutants],
                    "explains": candidate.explains,
                    "left": candidate.left if candidate.left < float("inf") else None,
                }
                for candidate in diagnosis.ranking
            ],
        },
        indent=2,
        ensure_ascii=False,
    )
