"""One contender in a process of its own: it is made, shows what it computes, and does timed laps.

Threads of two engines in one process would wake, wait and take cores in each other's time. So each has its process, and
the others sleep while it is asked. A request is a line of JSON on stdin, its answer a line of JSON on stdout:

    {"show": [WHAT, …], "out": FILE}     arrays into an .npz file, for the proof that they are right
    {"work": [WHAT, …], "laps": n}       the seconds of each of n laps, and how much a lap did
"""

import gc
import json
import os
import sys
from time import perf_counter
from typing import Any, TextIO

import numpy as np

from ..errors import InputError
from .runners import RUNNERS, Lap

__all__ = ["main"]


def main() -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library greets with is no answer
    try:
        runner = RUNNERS[sys.argv[1]](**json.loads(sys.argv[2]))
    except InputError as missing:  # a package
        _answer(answers, {"missing": missing.problem})
        return
    _answer(answers, {})
    works: dict[str, Lap] = {}
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "show" in request:
            np.savez(request["out"], **runner.show(*request["show"]))
            _answer(answers, {})
            continue
        name = json.dumps(request["work"])
        if name not in works:
            works[name] = runner.work(*request["work"])
        _answer(answers, {"times": _times(works[name], request["laps"]), "amount": works[name].amount})


def _times(lap: Lap, laps: int) -> list[float]:
    times = []
    gc.disable()
    for _ in range(laps):
        started = perf_counter()
        lap.run()
        times.append(perf_counter() - started)
    gc.enable()
    return times


def _answer(answers: TextIO, answer: object) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
