"""A model by what the command line calls it: a golden model, a random one, a path, or a part of one."""

import re
from collections.abc import Collection

from ..checkpoint import Checkpoint, cut, load
from ..errors import InputError, nearest
from .recipes import NAMES, RANDOM_SIZES, make_golden, make_random

__all__ = ["open_model"]


def open_model(spec: str) -> Checkpoint:
    """`golden:NAME`, `random:SIZE` (a released model's shape, like 0.1B), or the path of a checkpoint.

    With `#blocks.15`, `#moba.2` or `#vocab.3` behind it, that part (`checkpoint/cut.py`).
    """
    if part := re.fullmatch(r"(.+)#((?:blocks|moba|vocab)\.\d+)", spec):
        return cut(open_model(part[1]), part[2])
    kind, _, name = spec.partition(":")
    if kind == "golden":
        return make_golden(_known(name, "golden model", NAMES))
    if kind == "random":
        return make_random(_known(name, "random model", RANDOM_SIZES))
    return load(spec)


def _known(name: str, what: str, known: Collection[str]) -> str:
    if name not in known:
        raise InputError(f"no {what} is called {name!r}", expected=nearest(name, known))
    return name
