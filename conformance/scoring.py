"""The kill matrix: every check against every mutant.

A check that no mutant fails is none; a mutant that no check finds is a fault that would get through. Each cell is the
check itself, asked as `gander check` asks it, but ended at its first finding.
"""

import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from hypothesis.configuration import set_hypothesis_home_dir
from threadpoolctl import threadpool_limits

from .. import reference
from ..checkpoint import Checkpoint
from ..golden import GoldenSet, open_model, read_manifest
from ..vocabulary import Vocabulary, find_vocabulary
from .campaign import How, Result, run_cases
from .checks import LOAD_ENGINE
from .compare import Tally, compare
from .context import Context, Expected, bounds_of, digest, golden_of
from .engine import Array, Arrays
from .guard import EngineFault, Guard
from .mode import Mode
from .mutants import MUTANTS, TOKENIZERS, Mutant, Port, TokenizerMutant
from .mutants.graft import calls, graft
from .numbers.bounded import Bounded
from .ops import OPS
from .oracle import Oracle, Run
from .registry import CHECKS, Check, select
from .results import Finding, Status
from .tokenizers import compare_tokenizer
from .weak import WEAK, missed

__all__ = ["Matrix", "Row", "score"]

PROCESSES = 2
# Mutants of a model and mode that a process takes at a time: before the first it runs the port without a fault, which
# takes as long as some twenty of them. So only where there are hundreds are they cut.
PIECE, WHOLE = 4, 48
TOKENIZER = "tokenizer check"  # the command: it is no check of an engine
DTYPE = "float32"

Made = TypeVar("Made")


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
    mutants: Sequence[Mutant],
    tokenizers: Sequence[TokenizerMutant],
    *,
    how: How,
    progress: Callable[[int, int, str], None],
) -> Matrix:
    """Every check against each of `mutants`, and of `tokenizers`."""
    by_id: dict[str, Mutant | TokenizerMutant] = {mutant.id: mutant for mutant in mutants}
    by_id |= {mutant.id: mutant for mutant in tokenizers}
    rows: dict[str, Row] = {}
    broken: dict[str, frozenset[str]] = {}
    pieces = [*_pieces(mutants), *_cut([mutant.id for mutant in tokenizers])]
    # Mutants hold functions, so they go by name.
    for id, cells in run_cases(_rows, pieces, how, of={"command": "gander mutants score"}):
        rows[id] = Row(by_id[id], *(frozenset(cells[name]) for name in CELLS))
        if cells["broken"]:
            broken[rows[id].setting] = frozenset(cells["broken"])
        progress(len(rows), len(by_id), id)
    asked = frozenset().union(*(row.killed_by | row.passed for row in rows.values()))
    in_order = [*(check.id for check in select([], [], CHECKS)), TOKENIZER]
    checks = tuple(id for id in in_order if id in asked)
    in_rows = {row.setting: broken[row.setting] for id in by_id if (row := rows[id]).setting in broken}
    return Matrix(tuple(rows[id] for id in by_id), checks, in_rows)


def _pieces(mutants: Sequence[Mutant]) -> list[Sequence[str]]:
    """By model and mode, since a process works at one at a time: those with few mutants first, each as a whole."""
    settings: dict[str, list[str]] = {}
    for mutant in mutants:
        settings.setdefault(_setting(mutant), []).append(mutant.id)
    by_size = sorted(settings.values(), key=len)
    return [piece for ids in by_size for piece in ([ids] if len(ids) <= WHOLE else _cut(ids))]


def _cut(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[i : i + PIECE] for i in range(0, len(ids), PIECE)]


def _setting(mutant: Mutant) -> str:
    return f"{mutant.model} {mutant.mode}".strip()


# --- in whatever process

CELLS = ("killed_by", "passed", "missed")  # as Row has them

_BY_ID = {mutant.id: mutant for mutant in MUTANTS}
_TOKENIZERS = {mutant.id: mutant for mutant in TOKENIZERS}


def _rows(ids: Sequence[str]) -> dict[str, Result]:
    """Of tokenizers, or of mutants of one model and mode: the cells, and what fails the port without a fault."""
    set_hypothesis_home_dir(Path(tempfile.gettempdir(), "gander-hypothesis"))
    with threadpool_limits(1), np.errstate(all="ignore"):  # infinities and NaN are the checks' to judge
        if ids[0] in _TOKENIZERS:
            vocabulary = find_vocabulary()
            return {id: _tokenizer_row(_TOKENIZERS[id], vocabulary) for id in ids}
        first = _BY_ID[ids[0]]
        baseline = _baseline(first.model, first.mode)
        return {id: _row(_BY_ID[id], baseline) for id in ids}


def _row(mutant: Mutant, baseline: "_Baseline") -> Result:
    cells = _cells(mutant, baseline)
    return {
        "killed_by": [check for check, kills in cells.items() if kills],
        "passed": [check for check, kills in cells.items() if not kills],
        "missed": [name for name in WEAK if missed(name, mutant)],
        "broken": sorted(baseline.killed),
    }


def _tokenizer_row(mutant: TokenizerMutant, vocabulary: Vocabulary) -> Result:
    comparison = compare_tokenizer(mutant.id, mutant.make(vocabulary), vocabulary, until_first=True)
    return {
        **{name: [] for name in (*CELLS, "broken")},
        "passed" if comparison.status is Status.PASS else "killed_by": [TOKENIZER],
    }


# --- the port without a fault

LOADING = {"weights", "load"}  # makes `p`, before any check


@dataclass
class _Baseline:
    """A model in a mode, and how the port without a fault fares."""

    checkpoint: Checkpoint
    mode: Mode
    golden: GoldenSet | None
    killed: frozenset[str] = frozenset()  # checks that it does not pass: none, or the matrix says nothing
    asks: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by check: the parts of it that are come to
    # What the reference makes of the same is the same for every mutant.
    runs: dict[Hashable, Any] = field(default_factory=dict)
    is_known: bool = False  # of what mutants show that it does not, nothing is kept


@lru_cache(maxsize=1)  # a process works at one at a time, and what is kept is large
def _baseline(model: str, mode: Mode) -> _Baseline:
    checkpoint = open_model(model)
    baseline = _Baseline(checkpoint, mode, golden_of(read_manifest(), checkpoint, mode))
    if mode.quantize not in _OPS:  # it does not matter on which model
        _OPS[mode.quantize] = _asked(baseline, [check for check in CHECKS.values() if _is_op(check)])
    killed, asks = _asked(baseline, [check for check in CHECKS.values() if not _is_op(check)])
    ops_killed, ops_asks = _OPS[mode.quantize]
    baseline.killed, baseline.asks, baseline.is_known = killed | ops_killed, {**asks, **ops_asks}, True
    return baseline


Asked = tuple[frozenset[str], Mapping[str, frozenset[str]]]  # the checks that are not passed; by check, what is come to
_OPS: dict[bool, Asked] = {}  # INT8 has more of them


def _asked(baseline: _Baseline, checks: Sequence[Check]) -> Asked:
    context = _begun(partial(_Noting, dtype=DTYPE, **baseline.mode.options), None, baseline)
    if context is None:
        return frozenset([LOAD_ENGINE]), {}
    asks, killed = {}, set()
    for check in checks:
        if check.when(context):
            _Noting.asked = set()
            if _finds(check, context):
                killed.add(check.id)
            asks[check.id] = frozenset(_Noting.asked | (LOADING if "p" in _Noting.asked else set()))
    return frozenset(killed), asks


def _is_op(check: Check) -> bool:
    return check.id.startswith("op.")


class _Noting(Port):
    """Notes what it is asked for."""

    asked: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        _Noting.asked.add(name)
        return super().__getattribute__(name)


# --- one cell


def _cells(mutant: Mutant, baseline: _Baseline) -> dict[str, bool]:
    """Each check that can be asked, and whether it finds anything."""
    context = _begun(partial(Port, mutant, dtype=DTYPE, **mutant.mode.options), mutant, baseline)
    if context is None:
        return {LOAD_ENGINE: True}
    return {
        check.id: _comes_to(check, mutant, baseline) and _finds(check, context)
        for check in CHECKS.values()
        if check.when(context)
    }


def _begun(make: Callable[[], Port], mutant: Mutant | None, baseline: _Baseline) -> "_Impatient | None":
    """What checks are given; None, if the port cannot even be loaded."""
    checkpoint, mode, golden = baseline.checkpoint, baseline.mode, baseline.golden
    if mutant is not None and mutant.spoils is not None:
        checkpoint, golden = mutant.spoils(checkpoint), None  # nothing is stored of such a file
    guard = Guard(make(), checkpoint.config.vocab)
    context = _Impatient(
        guard, DTYPE, Port.capabilities, checkpoint, mode, golden, 0, lambda text: None, make, baseline=baseline
    )
    try:
        guard.load(checkpoint, context.shared("weights", partial(checkpoint.weights, np.float32)))
        guard.forward([0], guard.initial_state())
    except EngineFault:
        return None
    return context


def _comes_to(check: Check, mutant: Mutant, baseline: _Baseline) -> bool:
    """Whether the check comes to what is replaced. If not, it finds what it finds where there is no fault: nothing."""
    if mutant.spoils is not None or baseline.asks[check.id] & mutant.methods.keys():
        return True
    op = OPS.get(check.id.partition(".")[2])
    return bool(mutant.formulas if op is None else calls(op.function) & mutant.formulas.keys())


class _Found(Exception):
    """A check has its first finding, which is enough."""


class _Findings(list[Finding]):
    def append(self, finding: Finding) -> None:
        raise _Found


def _finds(check: Check, context: Context) -> bool:
    tally = _ImpatientTally(findings=_Findings())
    try:
        check.run(context, tally)
    except (_Found, EngineFault):
        return True
    return tally.compared != tally.expected or not tally.expected


class _Widening(Mapping[str, Array]):
    """Bounds from all yardsticks; from the first alone they are `narrow`, and who is within those need not ask for the
    others to be run."""

    def __init__(self, narrow: Mapping[str, Array], wide: Callable[[], Mapping[str, Array]]) -> None:
        self.narrow, self._wide = narrow, wide

    def __getitem__(self, name: str) -> Array:
        return self._wide()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.narrow)

    def __len__(self) -> int:
        return len(self.narrow)


class _ImpatientTally(Tally):
    def tensors(
        self, got: Mapping[str, object], want: Mapping[str, Array], bound: Mapping[str, Array], **how: Any
    ) -> bool:
        if isinstance(bound, _Widening) and all(
            compare(got.get(name), value, bound.narrow[name]).ok for name, value in want.items()
        ):
            bound = bound.narrow
        return super().tensors(got, want, bound, **how)


@dataclass
class _Impatient(Context):
    """Has the reference do nothing twice, and no more than it takes to find something."""

    baseline: _Baseline = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.oracle = self.shared("oracle", self._sparing)

    def bounded(self, value: Run, yardsticks: Iterable[Run]) -> Expected:
        runs = iter(yardsticks)
        first = next(runs)
        narrow = bounds_of(value, [first], self.dtype)
        wide = cache(lambda: bounds_of(value, [first, *runs], self.dtype))
        taps, state = (_Widening(narrow[i], partial(lambda i: wide()[i], i)) for i in range(2))
        return value, taps, state

    def _sparing(self) -> Oracle:
        self.oracle.forward = graft(reference.forward, {"wkv7": self._wkv7})
        return self.oracle

    def _wkv7(self, *inputs: Any) -> Any:
        """The formula that takes longest in layer.isolated, on inputs that a fault behind it leaves as they were."""
        if not isinstance(inputs[0], Bounded):
            return reference.wkv7(*inputs)
        parts = {
            f"{i}.{part}": array
            for i, held in enumerate(inputs)
            for part in ("value", "mse", "covariance")
            if (array := getattr(held, part, None)) is not None
        }
        return self.shared(("wkv7", digest(parts)), partial(reference.wkv7, *inputs))

    def with_codes(
        self, tokens: Sequence[int], start: Mapping[str, Array], calls: Sequence[int], taps: Arrays
    ) -> Expected:
        key = "codes", tuple(tokens), tuple(calls), digest(start), digest(taps)
        return self.shared(key, partial(super().with_codes, tokens, start, calls, taps))

    def isolated(self, tokens: Sequence[int], parts: Sequence[int], taps: Arrays) -> tuple[Run, Arrays]:
        calls = self.calls(parts, self.zero)
        key = "isolated", tuple(tokens), calls, digest(taps)
        return self.shared(key, partial(self.oracle.isolated, tokens, self.zero, calls, taps, _end_at_once))

    def shared(self, key: Hashable, make: Callable[[], Made]) -> Made:
        runs, key = self.baseline.runs, (self.checkpoint.fingerprint(), key)
        made: Made = runs[key] if key in runs else make()
        if not self.baseline.is_known:
            runs[key] = made
        return made


def _end_at_once(got: Array, want: Array, bound: Array) -> None:
    if not compare(got, want, bound).ok:
        raise _Found
