"""The report as plain data, for JSON: everything that the console shows, and every finding."""

import math
from typing import Any

from ..conformance.results import CheckResult, ModelReport, Report, Status, replay

__all__ = ["as_data"]

SCHEMA = 1


def as_data(report: Report) -> dict[str, Any]:
    """A report as dictionaries, lists, strings and numbers."""
    return {
        "schema": SCHEMA,
        "gander": report.version,
        "engine": report.engine,
        "dtype": report.dtype,
        "mode": report.mode,
        "status": report.status,
        "exit": report.status.exit_code,
        "compared": report.compared,
        "expected": report.expected,
        "xfail": report.count(Status.XFAIL),
        "xpass": report.count(Status.XPASS),
        "not_applicable": report.count(Status.NOT_APPLICABLE),
        "seconds": round(report.seconds, 3),
        "models": [
            {
                "model": model.model,
                "fingerprint": model.fingerprint,
                "status": model.status,
                "checks": [_check(report, model, check) for check in model.checks],
            }
            for model in report.models
        ],
    }


def _check(report: Report, model: ModelReport, check: CheckResult) -> dict[str, Any]:
    return {
        "id": check.id,
        "status": check.status,
        "compared": check.compared,
        "expected": check.expected,
        "of_bound": check.worst if math.isfinite(check.worst) else None,  # JSON has no infinity
        "seconds": round(check.seconds, 3),
        "note": check.note,
        "xfail": check.xfail,
        "likely": check.likely,
        "replay": replay(report, model, check),
        "lacks": list(check.lacks),
        "findings": [
            {
                "where": finding.where,
                "path": finding.path,
                "token": finding.token,
                "message": finding.message,
                "hint": finding.hint,
                "missing": finding.missing,
            }
            for finding in check.findings
        ],
    }
