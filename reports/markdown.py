"""The report as Markdown, for the summary of a pull request: short, with what is wrong folded behind it."""

from ..conformance.results import Report, Status
from .templates import render
from .words import title

__all__ = ["as_markdown"]

SHOWN = 20  # findings of a check


def as_markdown(report: Report) -> str:
    """A line for each model, and for each check that does not pass."""
    counts = {
        model.model: {status: sum(check.status is status for check in model.checks) for status in Status}
        for model in report.models
    }
    return render("report.md", report=report, title=title(report), counts=counts, shown=SHOWN)
