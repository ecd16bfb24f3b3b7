"""The workers of one run: started when they are first needed, asked one at a time, ended together."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from .inputs import Inputs
from .proof import Proof, Show
from .rows import Entry, Row
from .runners import Array

__all__ = ["Broken", "Field", "Missing", "Side", "Worker"]

# Tell OpenBLAS which processor it is on; set for another one, they make numpy slow.
MISLEADING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
READ, MULTIPLY = Entry("memory, read", "read", amount=0, laps=3), Entry("cores, matrix product", "multiply", amount=0)
LIMITS = {"read": READ, "multiply": MULTIPLY}


class Missing(Exception):
    """What a contender needs is not installed."""


class Broken(Exception):
    """A worker ended, or what it was asked for raised."""


@dataclass(frozen=True)
class Side:
    """Code to be measured: a folder that holds a package `gander`, or what is installed."""

    name: str = "gander"
    folder: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What its processes are started with."""
        kept = {name: value for name, value in os.environ.items() if name not in MISLEADING}
        if self.folder is not None:
            paths = [str(self.folder), *filter(None, [kept.get("PYTHONPATH")])]
            kept["PYTHONPATH"] = os.pathsep.join(paths)
        return kept


@dataclass(frozen=True)
class Block:
    """The seconds of one block's laps, and how much one of them did."""

    times: Sequence[float]
    amount: float

    @property
    def median(self) -> float:
        """Of the laps. One that was disturbed does not count."""
        return float(np.median(self.times))


class Worker:
    """A contender's process."""

    def __init__(self, runner: str, options: Mapping[str, Any], side: Side, scratch: Path) -> None:
        self._scratch = scratch
        self._said = scratch.with_suffix(".err").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gander.benchmarks.worker", runner, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=side.environment,
            cwd=scratch.parent,
        )
        self._ready = False
        self._gone: Missing | Broken | None = None

    def show(self, *what: Any) -> dict[str, Array]:
        """What it computes."""
        path = self._scratch.with_suffix(".npz")
        self._ask({"show": what, "out": str(path)})
        with np.load(path) as shown:
            return dict(shown)

    def block(self, entry: Entry) -> Block:
        """A block of laps of the entry's work."""
        answer = self._ask({"work": entry.work, "laps": entry.laps})
        return Block(answer["times"], entry.amount or answer["amount"])

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def _ask(self, request: Mapping[str, Any]) -> Any:
        if not self._ready:
            self._ready = True
            self._answer()
        if self._gone is not None:
            raise self._gone
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended; why is told where its answer is missed
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {}
        if not line:
            self._said.seek(0)
            said = self._said.read().strip().splitlines() or ["its process ended and does not say why"]
            self._gone = Broken(said[-1])
        elif "missing" in answer:
            self._gone = Missing(answer["missing"])
        if self._gone is not None:
            raise self._gone
        return answer


class Field:
    """All workers of one side, by what they are made with: rows share them."""

    def __init__(self, inputs: Inputs, proof: Proof, side: Side | None = None) -> None:
        self.inputs, self._proof, self._side = inputs, proof, side or Side()
        self._workers: dict[str, Worker] = {}
        self._proved: set[str] = set()
        self._count = itertools.count()

    def __enter__(self) -> "Field":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def start(self, entry: Entry) -> Worker:
        """The entry's worker, on its way."""
        options = self.inputs.options(entry)
        key = json.dumps([entry.runner, options], sort_keys=True)
        if key not in self._workers:
            scratch = self.inputs.folder / f"worker-{id(self)}-{next(self._count)}"
            self._workers[key] = Worker(entry.runner, options, self._side, scratch)
        return self._workers[key]

    def ready(self, entry: Entry) -> Worker:
        """The same, proved right: Wrong, Missing or Broken, if it is not."""
        worker = self.start(entry)
        key = json.dumps([entry.runner, dict(entry.options), entry.work], sort_keys=True)
        if key not in self._proved:
            self._proof.prove(entry, worker.show, self._verified)
            self._proved.add(key)
        return worker

    def limit(self, row: Row) -> Entry | None:
        """What of the machine the row is held against."""
        return LIMITS.get(row.limit)

    def _verified(self, entry: Entry) -> Show:
        return self.start(entry).show
