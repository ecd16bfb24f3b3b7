"""How often the gate is wrong, in both directions, by real runs of it:

    python tests/meta/gate.py --runs 100

Old and new are the same code: a false alarm, in 5 % of the runs at the most. In the new one every tenth call of the
engine does its work twice, which is 10 % more of the same work: found, in 95 % of the runs at least. Exit status 1 if
either is missed. Rounds and laps are those of `gander bench --against`. A busy machine makes both worse; its load is
printed.
"""

import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import click
from rich.progress import track

from gander.benchmarks.field import Field, Side
from gander.benchmarks.gate import LAUNCHES, ROUNDS, judge
from gander.benchmarks.inputs import Inputs
from gander.benchmarks.proof import Proof
from gander.benchmarks.rows import ROWS
from gander.benchmarks.sides import ROOT

RUNS_OF_A_PAIR = 10  # most of a run's time would be that of starting its processes
FALSE_ALARMS, FOUND = 0.05, 0.95

SLOWED = """

class Engine(Engine):  # noqa
    _calls = 0

    def forward(self, tokens, state, **options):
        self._calls += 1
        if self._calls % 10 == 0:
            super().forward(tokens, state.clone(), **options)
        return super().forward(tokens, state, **options)
"""


def slowed(folder: Path) -> Side:
    """This code, and a tenth more work."""
    others = shutil.ignore_patterns(".*", "__pycache__", "tests", "build", "dist", "docs")
    shutil.copytree(ROOT, folder / "gander", ignore=others)
    with (folder / "gander" / "optimized" / "__init__.py").open("a") as module:
        module.write(SLOWED)
    return Side("slowed", folder)


def alarms(new: Side, runs: int, inputs: Inputs, proof: Proof) -> int:
    """In how many runs the gate says slower."""
    row, found = ROWS["step"], 0
    with ExitStack() as started:
        pairs: list[tuple[Field, Field]] = []
        for run in track(range(runs), new.name):
            if run % RUNS_OF_A_PAIR == 0:
                started.pop_all().close()
                pairs = [
                    tuple(started.enter_context(Field(inputs, proof, side)) for side in (Side("old"), new))
                    for _ in range(LAUNCHES)
                ]
            verdict = judge(row, pairs.__getitem__, rounds=ROUNDS)
            if verdict.decision is None:
                raise click.ClickException(verdict.reason)
            found += verdict.slower
    return found


@click.command
@click.option("--runs", default=100, show_default=True, help="Of each kind.")
def main(runs: int) -> None:
    """The gate against itself."""
    with TemporaryDirectory() as folder:
        inputs = Inputs(Path(folder))
        proof = Proof(inputs)
        started = perf_counter()
        false = alarms(Side("same"), runs, inputs, proof)
        found = alarms(slowed(Path(folder, "slowed")), runs, inputs, proof)
    load, seconds = os.getloadavg()[0], perf_counter() - started
    click.echo(f"false alarms, the same code: {false} of {runs} (goal: {FALSE_ALARMS:.0%} at the most)")
    click.echo(f"found, 10 % slower: {found} of {runs} (goal: {FOUND:.0%} at least)")
    click.echo(f"load {load:.1f} on {os.cpu_count()} cores, {seconds / 60:.1f} minutes")
    sys.exit(false > FALSE_ALARMS * runs or found < FOUND * runs)


if __name__ == "__main__":
    main()
