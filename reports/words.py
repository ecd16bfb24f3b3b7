"""How places, figures and verdicts are said, the same in every report."""

import math
from collections.abc import Sequence

from ..conformance.engine import CAPABILITIES
from ..conformance.results import CheckResult, Finding, ModelReport, Report, Status, replay

__all__ = ["decades", "lacking", "of_bound", "place", "repeat", "said", "share", "summary", "title"]


def title(report: Report) -> str:
    """What was checked, but for the model: `optimized float32 INT8`."""
    return " ".join(filter(None, (report.engine, report.dtype, report.mode)))


def place(finding: Finding) -> str:
    """Where it is: `blocks.0.att.norm · token 0 · path prefill`."""
    parts = [finding.where]
    if finding.token is not None:
        parts.append(f"token {finding.token}")
    if finding.path:
        parts.append(f"path {finding.path}")
    return " · ".join(parts)


def said(finding: Finding) -> str:
    """What is wrong there, and what it means."""
    return finding.message + (f", {finding.hint}" if finding.hint else "")


def of_bound(ratio: float) -> str:
    """Error ÷ bound: `0.23`, `10431`, `∞` where there is no number."""
    if math.isinf(ratio):
        return "∞"
    return f"{ratio:.2g}" if ratio < 100 else f"{ratio:.0f}" if ratio < 1e6 else f"{ratio:.0e}"


def decades(ratio: float) -> float:
    """Where error ÷ bound is between 0.01 and 100, from 0 to 1, on a log scale: the bound is in the middle."""
    return (math.log10(min(max(ratio, 1e-2), 1e2)) + 2) / 4


def share(explains: float) -> str:
    """Of a difference: never 100 % unless it is; less than nothing is nothing."""
    return f"{min(max(0.0, 100 * explains), 99.9 if explains < 1 else 100):.1f} %"


def repeat(report: Report, model: ModelReport, check: CheckResult) -> str:
    """The command that shows a check's first finding again; none, if only someone's own tests can make the engine."""
    return replay(report, model, check) if check.replay or report.command else ""


def lacking(lacks: Sequence[str]) -> str:
    """What an engine does not offer: `'batch' (forward_batch: …)`."""
    return " nor ".join(f"{name!r} ({CAPABILITIES.get(name, 'unknown')})" for name in lacks)


def summary(report: Report) -> str:
    """The figures of the whole run."""
    line = f"compared {report.compared}/{report.expected} tensors in {report.seconds:.1f} s"
    for status, words in (
        (Status.XFAIL, "XFAIL"),
        (Status.XPASS, "XPASS"),
        (Status.NOT_APPLICABLE, "not applicable (--skip leaves them out)"),
    ):
        if number := report.count(status):
            line += f", {number} {words}"
    return line + (", stopped before the end" if report.stopped else "")
