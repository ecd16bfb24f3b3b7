"""What a run of the checks found: plain data, which every report is a view of."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "Cause",
    "CheckResult",
    "Errors",
    "Fault",
    "Finding",
    "Given",
    "ModelReport",
    "Ranked",
    "Report",
    "Status",
    "replay",
]


class Status(StrEnum):
    """The verdict of a check; PASS, FAIL and INCOMPLETE are also those of a whole run."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCOMPLETE = "INCOMPLETE"  # something that had to be compared was not
    NOT_APPLICABLE = "N/A"  # the engine does not offer what the check needs
    XFAIL = "XFAIL"  # a known failure
    XPASS = "XPASS"  # called a known failure, but passes

    @property
    def exit_code(self) -> int:
        """0 conformant, 1 not, 2 incomplete."""
        return {Status.PASS: 0, Status.XFAIL: 0, Status.FAIL: 1, Status.XPASS: 1}.get(self, 2)


# What each status of a part makes of the whole, the heaviest first.
_VERDICTS = {
    Status.FAIL: Status.FAIL,
    Status.XPASS: Status.FAIL,
    Status.INCOMPLETE: Status.INCOMPLETE,
    Status.NOT_APPLICABLE: Status.INCOMPLETE,  # never passed: --skip says that it is not wanted
    Status.PASS: Status.PASS,
    Status.XFAIL: Status.PASS,
}


def _worst(statuses: list[Status]) -> Status:
    """A failure outweighs what is missing, and what is missing outweighs what passed. Nothing at all is not a pass."""
    return next((verdict for status, verdict in _VERDICTS.items() if status in statuses), Status.INCOMPLETE)


@dataclass(frozen=True)
class Given:
    """What an engine was given when it ran a whole text: with the model, enough to run it again."""

    tokens: tuple[int, ...]
    parts: tuple[int, ...]  # tokens of each call
    start: str  # zero, random:SEED or finer:SEED (see cases.py)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: where, and by how much."""

    where: str  # a tap, a state, an op's output, or what the engine was asked to do
    message: str  # "max |Δ| 3.1e-3, bound 4.0e-6 (775×)", or what happened instead
    path: str = ""  # prefill, step, split:5+3, …
    token: int | None = None  # the first token that is wrong
    hint: str = ""  # what it means: "isolated: its inputs agree"
    missing: bool = False  # not wrong but absent: INCOMPLETE, not FAIL
    given: Given | None = None  # where it is of a whole run


@dataclass(frozen=True)
class Errors:
    """How far one tap is from what is right: error ÷ bound of each row, the largest on any path."""

    where: str
    worst: float  # of all rows; infinite where there is no number to compare
    shape: tuple[int, ...]  # (tokens,) or (tokens, heads); () if no path gave it in the right shape
    tenths: bytes  # of each row, see tenths.py
    missing: int  # paths on which the engine did not give it

    def __post_init__(self) -> None:
        if len(self.tenths) != (math.prod(self.shape) if self.shape else 0):
            raise ValueError(f"{self.where}: {len(self.tenths)} errors of shape {self.shape}")

    @property
    def given(self) -> bool:
        """Whether the engine gave it on any path, rightly shaped or not."""
        return bool(self.shape) or self.worst > 0


@dataclass(frozen=True)
class Fault:
    """A known mistake of ports."""

    id: str
    fault: str
    right: str  # the formula or rule as it should be
    seen: str  # where a real port had it


@dataclass(frozen=True)
class Ranked:
    """Known faults, and how well they explain a difference."""

    ids: tuple[str, ...]
    explains: float  # the share of the difference, 1 if nothing is left
    left: float  # the largest difference that is left, in roundings


@dataclass(frozen=True)
class Cause:
    """Where a run first goes wrong, and which known faults explain it; none may."""

    where: str
    token: int | None
    head: int | None
    alone: bool  # whether what goes into `where` was shown, so that its formula stands accused alone
    faults: tuple[Fault, ...]
    alike: tuple[str, ...]  # others that look the same here
    ranking: tuple[Ranked, ...]  # the best explanations, the found one among them


@dataclass(frozen=True)
class CheckResult:
    """One check's verdict."""

    id: str
    compared: int  # tensors
    expected: int  # tensors
    worst: float  # the largest error as a fraction of its bound; above 1 is a failure
    findings: tuple[Finding, ...]
    seconds: float
    note: str = ""
    likely: str = ""  # the fault that explains the findings: "GroupNorm eps 1e-5 instead of 64e-5 (explains 99.8 % …)"
    replay: str = ""  # the file that shows its first finding again, on less
    xfail: str = ""  # why it is known to fail
    lacks: tuple[str, ...] = ()  # capabilities that it needs and the engine does not offer: it was not asked
    paths: Mapping[str, float] = field(default_factory=dict)  # the largest error ÷ bound on each
    errors: tuple[Errors, ...] = ()  # of each tap in execution order, where the check is of taps
    cause: Cause | None = None  # what `likely` is said of

    @property
    def status(self) -> Status:
        """FAIL if anything is wrong, INCOMPLETE if anything is missing, else PASS; XFAIL, XPASS of a known failure."""
        if self.lacks:
            return Status.NOT_APPLICABLE
        if any(not finding.missing for finding in self.findings):
            return Status.XFAIL if self.xfail else Status.FAIL
        if self.findings or self.compared != self.expected or not self.expected:
            return Status.INCOMPLETE
        return Status.XPASS if self.xfail else Status.PASS


@dataclass(frozen=True)
class ModelReport:
    """Every check of one model."""

    model: str  # as it was asked for: a path, golden:NAME, random:SIZE
    fingerprint: str
    checks: tuple[CheckResult, ...]
    applicable: tuple[str, ...] = ()  # every check that could have been asked of it, chosen or not

    @property
    def status(self) -> Status:
        """The worst of its checks."""
        return _worst([check.status for check in self.checks])


@dataclass(frozen=True)
class Report:
    """A whole run."""

    engine: str
    dtype: str
    mode: str  # attention policy and INT8, where they are not the plain ones
    version: str  # gander's
    command: str  # what repeats the run, but for --model and --only
    models: tuple[ModelReport, ...]
    seconds: float
    seed: int = 0  # of every random input
    golden: str = ""  # SHA-256 of the manifest of the stored traces
    environment: Mapping[str, str] = field(default_factory=dict)  # versions of what it ran on
    stopped: bool = False  # by the user, before every check was asked

    @property
    def compared(self) -> int:
        """Tensors that were compared."""
        return sum(check.compared for model in self.models for check in model.checks)

    @property
    def expected(self) -> int:
        """Tensors that had to be."""
        return sum(check.expected for model in self.models for check in model.checks)

    def count(self, status: Status) -> int:
        """Checks of that status."""
        return sum(check.status is status for model in self.models for check in model.checks)

    @property
    def status(self) -> Status:
        """The worst of its models."""
        return _worst([model.status for model in self.models])


def replay(report: Report, model: ModelReport, check: CheckResult) -> str:
    """The command that shows a check's first finding again: its replay file, or else the whole check."""
    if check.replay:
        return f"gander check --replay {shlex.quote(check.replay)}"
    return f"{report.command} --model {shlex.quote(model.model)} --only {check.id}"
