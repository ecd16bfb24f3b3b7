"""What a run of the checks found: plain data, which every report is a view of."""

import shlex
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CheckResult", "Finding", "ModelReport", "Report", "Status", "replay"]


class Status(StrEnum):
    """The verdict of a check, and of a whole run."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCOMPLETE = "INCOMPLETE"  # something that had to be compared was not

    @property
    def exit_code(self) -> int:
        """0 conformant, 1 not, 2 incomplete."""
        return {Status.PASS: 0, Status.FAIL: 1, Status.INCOMPLETE: 2}[self]


def _worst(statuses: list[Status]) -> Status:
    """A failure outweighs what is missing, and what is missing outweighs what passed. Nothing at all is not a pass."""
    for status in (Status.FAIL, Status.INCOMPLETE, Status.PASS):
        if status in statuses:
            return status
    return Status.INCOMPLETE


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: where, and by how much."""

    where: str  # a tap, a state, an op's output, or what the engine was asked to do
    message: str  # "max |Δ| 3.1e-3, bound 4.0e-6 (775×)", or what happened instead
    path: str = ""  # prefill, step, split:5+3, …
    token: int | None = None  # the first token that is wrong
    hint: str = ""  # what it means: "isolated: its inputs agree"
    missing: bool = False  # not wrong but absent: INCOMPLETE, not FAIL


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

    @property
    def status(self) -> Status:
        """FAIL if anything is wrong, INCOMPLETE if anything is missing, else PASS."""
        if any(not finding.missing for finding in self.findings):
            return Status.FAIL
        if self.findings or self.compared != self.expected or not self.expected:
            return Status.INCOMPLETE
        return Status.PASS


@dataclass(frozen=True)
class ModelReport:
    """Every check of one model."""

    model: str  # as it was asked for: a path, golden:NAME, random:SIZE
    fingerprint: str
    checks: tuple[CheckResult, ...]

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

    @property
    def compared(self) -> int:
        """Tensors that were compared."""
        return sum(check.compared for model in self.models for check in model.checks)

    @property
    def expected(self) -> int:
        """Tensors that had to be."""
        return sum(check.expected for model in self.models for check in model.checks)

    @property
    def status(self) -> Status:
        """The worst of its models."""
        return _worst([model.status for model in self.models])


def replay(report: Report, model: ModelReport, check: CheckResult) -> str:
    """The command that runs one check again, the same way."""
    return f"{report.command} --model {shlex.quote(model.model)} --only {check.id}"
