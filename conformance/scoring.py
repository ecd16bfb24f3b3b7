"""The kill matrix: every check against every mutant.

A check that no mutant fails is none; a mutant that no check finds is a fault that would get through. Each cell is the
check itself, asked as `gander check` asks it, but ended at its first finding.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

from hypothesis.configuration import set_hypothesis_home_dir
from threadpoolctl import threadpool_limits

from ..checkpoint import Checkpoint
from ..golden import open_model, read_manifest
from ..vocabulary import find_vocabulary
from .checks import LOAD_ENGINE
from .compare import Tally
from .context import Context, Expected
from .engine import Array
from .guard import EngineFault, Guard
from .mode import Mode
from .mutants import MUTANTS, TOKENIZERS, Mutant, Port, TokenizerMutant
from .mutants.graft import calls
from .ops import OPS
from .registry import CHECKS, Check, select
from .results import Finding, Status
from .tokenizers import compare_tokenizer
from .weak import WEAK, missed

__all__ = ["Matrix", "Row", "score"]

PROCESSES = 2
TOKENIZER = "tokenizer check"  # the command: it is no check of an engine
DTYPE = "float32"


@dataclass(frozen=True)
class Row:
    """One mutant, and what became of it. A check that cannot be asked of its model in its mode is in neither set."""

    mutant: Mutant | TokenizerMutant
    killed_by: frozenset[str]
    passed: frozenset[str]
    missed: frozenset[str] = frozenset()  # of WEAK: what would have let it through

    @property
    def of_model(self) -> bool:
        """Whether it is a fault of a model, which gates on models could see."""
        return isinstance(self.mutant, Mutant)

    @property
    def setting(self) -> str:
        """What it is tried on."""
        return _setting(self.mutant) if isinstance(self.mutant, Mutant) else "the World vocabulary"

    @property
    def killed(self) -> bool:
        """Whether any check finds it."""
        return bool(self.killed_by)


@dataclass(frozen=True)
class Matrix:
    """Every mutant, in the order of the catalogue, and every check."""

    rows: tuple[Row, ...]
    checks: tuple[str, ...]
    broken: Mapping[
        str, frozenset[str]
    ]  # models and modes on which the port without a fault is not passed, and by what

    @property
    def survivors(self) -> list[Row]:
        """Faults that no check finds."""
        return [row for row in self.rows if not row.mutant.same and not row.killed]

    @property
    def accused(self) -> list[Row]:
        """Right variants that a check takes for a fault."""
        return [row for row in self.rows if row.mutant.same and row.killed]

    @property
    def idle(self) -> list[str]:
        """Checks that find no fault."""
        busy = frozenset().union(*(row.killed_by for row in self.rows if not row.mutant.same))
        return [check for check in self.checks if check not in busy]

    @property
    def ok(self) -> bool:
        """Whether the checks prove what they claim."""
        return not (self.survivors or self.accused or self.idle or self.broken)


def score(
    mutants: Sequence[Mutant], tokenizers: Sequence[TokenizerMutant], *, progress: Callable[[int, int, str], None]
) -> Matrix:
    """Every check against each of `mutants`, and of `tokenizers`, two processes at a time."""
    chosen = list(mutants)
    settings = {_setting(mutant): mutant.id for mutant in chosen}
    total, done = len(settings) + len(chosen) + len(tokenizers), 0
    rows, broken, asks = {}, {}, {}
    # Not forked: numpy's and torch's threads do not survive it. Mutants hold functions, so they go by name.
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn"), initializer=_prepare) as pool:
        for setting, baseline in zip(settings, pool.map(_baseline, settings.values()), strict=True):
            killed, asks[setting] = baseline
            if killed:
                broken[setting] = killed
            progress(done := done + 1, total, f"without a fault: {setting}")
        jobs = [(mutant.id, asks[_setting(mutant)]) for mutant in chosen]
        for mutant, row in zip(chosen, pool.map(_row, *zip(*jobs, strict=True)), strict=True):
            rows[mutant.id] = Row(mutant, *row)
            progress(done := done + 1, total, mutant.id)
        ids = [mutant.id for mutant in tokenizers]
        for spoiled, differs in zip(tokenizers, pool.map(_tokenizer, ids), strict=True):
            found = frozenset({TOKENIZER})
            rows[spoiled.id] = Row(spoiled, found if differs else frozenset(), frozenset() if differs else found)
            progress(done := done + 1, total, spoiled.id)
    asked = frozenset().union(*(row.killed_by | row.passed for row in rows.values()))
    in_order = [*(check.id for check in select([], [], CHECKS)), TOKENIZER]
    checks = tuple(id for id in in_order if id in asked)
    return Matrix(tuple(rows.values()), checks, broken)


def _setting(mutant: Mutant) -> str:
    return f"{mutant.model} {mutant.mode}".strip()


# --- in a process of the pool


def _prepare() -> None:
    threadpool_limits(1)
    set_hypothesis_home_dir(Path(tempfile.gettempdir(), "gander-hypothesis"))


_BY_ID = {mutant.id: mutant for mutant in MUTANTS}
_TOKENIZERS = {mutant.id: mutant for mutant in TOKENIZERS}


FIRST = {"weights", "load", "initial_state"}  # what is asked before any check
Asks = Mapping[str, frozenset[str]]  # by check: the parts of the port that it comes to


def _baseline(id: str) -> tuple[frozenset[str], Asks]:
    """The checks that the port without a fault does not pass: none, or the matrix says nothing. And what each asks."""
    mutant, asks, killed = _BY_ID[id], {}, set()
    _Noting.asked = set()
    for check, kills in _cells(partial(_Noting, dtype=DTYPE, **mutant.mode.options), None, mutant, {}):
        asks[check], _Noting.asked = frozenset(_Noting.asked | FIRST), set()
        if kills:
            killed.add(check)
    return frozenset(killed), asks


class _Noting(Port):
    """Notes what it is asked for."""

    asked: ClassVar[set[str]]

    def __getattribute__(self, name: str) -> Any:
        _Noting.asked.add(name)
        return super().__getattribute__(name)


def _row(id: str, asks: Asks) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    mutant = _BY_ID[id]
    cells = dict(_cells(partial(Port, mutant, dtype=DTYPE, **mutant.mode.options), mutant, mutant, asks))
    killed = frozenset(check for check, kills in cells.items() if kills)
    return killed, frozenset(cells) - killed, frozenset(name for name in WEAK if missed(name, mutant))


def _cells(make: Callable[[], Port], mutant: Mutant | None, where: Mutant, asks: Asks) -> Iterator[tuple[str, bool]]:
    """Each check that can be asked, and whether it finds anything. `where` has the model and the mode."""
    mode = where.mode
    checkpoint, golden, runs = _opened(where.model, mode)
    if mutant is not None and mutant.spoils is not None:
        checkpoint, golden, runs = mutant.spoils(checkpoint), None, {}  # nothing is stored of such a file
    guard = Guard(make(), checkpoint.config.vocab)
    context = _Sharing(guard, DTYPE, Port.capabilities, checkpoint, mode, golden, 0, lambda text: None, make, runs=runs)
    try:
        guard.load(checkpoint)
        guard.forward([0], guard.initial_state())
    except EngineFault:
        yield LOAD_ENGINE, True
        return
    for check in CHECKS.values():
        if check.when(context):
            yield check.id, _comes_to(check, mutant, asks) and _finds(check, context)


def _comes_to(check: Check, mutant: Mutant | None, asks: Asks) -> bool:
    """Whether the check comes to what is replaced. If not, it finds what it finds where there is no fault: nothing."""
    if mutant is None or mutant.spoils is not None or asks[check.id] & mutant.methods.keys():
        return True
    op = OPS.get(check.id.partition(".")[2])
    return bool(mutant.formulas if op is None else calls(op.function) & mutant.formulas.keys())


def _tokenizer(id: str) -> bool:
    mutant, vocabulary = _TOKENIZERS[id], _vocabulary()
    return compare_tokenizer(id, mutant.make(vocabulary), vocabulary).status is not Status.PASS


_vocabulary = cache(find_vocabulary)


class _Found(Exception):
    """A check has its first finding, which is enough."""


class _Findings(list[Finding]):
    def append(self, finding: Finding) -> None:
        raise _Found


def _finds(check: Check, context: Context) -> bool:
    tally = Tally(findings=_Findings())
    try:
        check.run(context, tally)
    except (_Found, EngineFault):
        return True
    return tally.compared != tally.expected or not tally.expected


@dataclass
class _Sharing(Context):
    """What the reference makes of the same tokens is the same for every mutant."""

    runs: dict[Any, Expected] = field(default_factory=dict)

    def plain(self, tokens: Sequence[int], start: Mapping[str, Array], parts: Sequence[int]) -> Expected:
        state = hash(tuple((name, value.tobytes()) for name, value in start.items()))
        key = (self.checkpoint.fingerprint(), tuple(tokens), self.calls(parts, start), state)
        if key not in self.runs:
            self.runs[key] = super().plain(tokens, start, parts)
        return self.runs[key]


@cache
def _opened(model: str, mode: Mode) -> tuple[Checkpoint, Any, dict[Any, Expected]]:
    checkpoint = open_model(model)
    stored = read_manifest().find(checkpoint.fingerprint())
    golden = None if stored is None or mode.quantize else stored.run_as(str(mode.attention))
    return checkpoint, golden, {}
