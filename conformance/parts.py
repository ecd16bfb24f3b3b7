"""Models checked part by part (checkpoint/cut.py), in a report that calls taps what the whole model does."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..checkpoint import Checkpoint
from ..golden import GoldenSet
from .results import CheckResult, Report

__all__ = ["with_whole_names"]


def with_whole_names(report: Report, models: Sequence[tuple[str, Checkpoint, GoldenSet | None]]) -> Report:
    """The report, its blocks named as in the model that each part is of."""
    whole = {name: checkpoint.whole for name, checkpoint, _ in models}
    renamed = (
        replace(model, checks=tuple(_renamed(check, whole[model.model]) for check in model.checks))
        for model in report.models
    )
    return replace(report, models=tuple(renamed))


def _renamed(check: CheckResult, whole: Mapping[str, str]) -> CheckResult:
    def name(where: str) -> str:
        kind, _, rest = where.partition(".")
        number, dot, tap = rest.partition(".")
        return f"{whole.get(f'{kind}.{number}', f'{kind}.{number}')}{dot}{tap}" if dot else where

    return replace(
        check,
        findings=tuple(replace(finding, where=name(finding.where)) for finding in check.findings),
        errors=tuple(replace(errors, where=name(errors.where)) for errors in check.errors),
        cause=check.cause and replace(check.cause, where=name(check.cause.where)),
    )
