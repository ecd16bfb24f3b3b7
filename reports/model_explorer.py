"""Error ÷ bound of every tap as node data for Google's Model Explorer: a colour on each node of the model's graph."""

import json
from typing import Any

from ..conformance.results import CheckResult, Report
from ..errors import InputError

__all__ = ["as_node_data"]

# Up to and with a value, of cividis: within the bound, beyond it, and by how much. What is beyond the last has none.
THRESHOLDS = [
    {"value": 0.1, "bgColor": "#00224e", "textColor": "#ffffff"},
    {"value": 1.0, "bgColor": "#434e6c", "textColor": "#ffffff"},
    {"value": 10.0, "bgColor": "#a59c74", "textColor": "#000000"},
    {"value": 1e38, "bgColor": "#fee838", "textColor": "#000000"},
]
LARGEST = 1e38  # stands for infinite, which JSON does not have


def as_node_data(report: Report) -> str:
    """A graph for each model and check of taps, its nodes by the names of the taps."""
    graphs = {
        f"{model.model} {check.id.partition('.')[2]}": _graph(check)
        for model in report.models
        for check in model.checks
        if check.errors
    }
    if not graphs:
        raise InputError(
            "this result has no errors of taps",
            expected="a run with layer.isolated or layer.cumulative",
            mend="gander check --only layer --out RESULT.json",
        )
    return json.dumps(graphs, indent=2, ensure_ascii=False)


def _graph(check: CheckResult) -> dict[str, Any]:
    shown = {errors.where: {"value": min(errors.worst, LARGEST)} for errors in check.errors if errors.given}
    return {"results": shown, "thresholds": THRESHOLDS}
