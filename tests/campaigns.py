"""What workers of the campaign tests are given: they import it by name."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gander.optimized import Engine


def squares(names: Sequence[str]) -> dict[str, int]:
    """Of numbers; each is noted in the file CAMPAIGN_LOG, by process."""
    with Path(os.environ["CAMPAIGN_LOG"]).open("a") as log:
        log.write("".join(f"{os.getpid()} {name}\n" for name in names))
    return {name: int(name) ** 2 for name in names}


def stopped(names: Sequence[str]) -> dict[str, int]:
    """The same, until it comes to 3."""
    if "3" in names:
        raise KeyboardInterrupt
    return squares(names)


def fatal(names: Sequence[str]) -> dict[str, int]:
    """Ends every process that it is run in."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


class Mortal(Engine):
    """The fast engine, but the first to be asked for `gate` ends with its process. MORTAL_DIED is a file for that."""

    def apply(self, op: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        died = Path(os.environ["MORTAL_DIED"])
        if op == "gate" and not died.exists():
            died.write_text(f"{os.getpid()}")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().apply(op, inputs)
