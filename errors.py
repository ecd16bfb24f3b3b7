"""The one error a user can cause, and how it reads.

Anything a user may get wrong (a path, a file, a name, a token) ends here: what was wrong, what was expected, how to
mend it. The command prints it without a traceback and exits 2.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

__all__ = ["InputError", "nearest", "needs"]


class InputError(Exception):
    """A request that cannot be carried out as it stands."""

    def __init__(self, problem: str, *, expected: str = "", mend: str = "") -> None:
        self.problem, self.expected, self.mend = problem, expected, mend
        lines = [problem]
        if expected:
            lines.append(f"  expected: {expected}")
        if mend:
            lines.append(f"  to mend:  {mend}")
        super().__init__("\n".join(lines))


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'a', 'b'?` for the known names nearest to `name`, or a list of all when none is near."""
    known = sorted(known)
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + ", ".join(repr(c) for c in close) + "?"
    return "one of " + ", ".join(repr(k) for k in known)


@contextmanager
def needs(what: str, package: str, *, module: str = "", extra: str = "peers") -> Iterator[None]:
    """Around an import: InputError, if it is this PyPI package that is not installed. `module` is what it is called in
    Python, if not the same; `extra` is what of gander's installs it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name != (module or package.replace("-", "_")):
            raise
        mend = f"pip install 'gander-rwkv[{extra}]'"
        raise InputError(f"{what} needs the PyPI package {package}", mend=mend) from missing
