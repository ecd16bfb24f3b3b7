"""The report as one page that opens without a network: what the console says, and pictures of every tap.

Vega-Lite draws them. Its bundle, which vl-convert holds, makes the page 0.9 MB larger.
Its figures are SVG, so what is missing can be hatched, and a screen reader can read them.
"""

import re
from functools import cache
from typing import Any

from ..conformance.levels import LEVELS, reached
from ..conformance.results import CheckResult, ModelReport, Report
from ..errors import needs
from .data import as_data
from .kills import kills
from .templates import render
from .words import title

__all__ = ["as_html"]

VIEWS = {"layer.isolated": "isolated", "layer.cumulative": "cumulative"}
SHOWN = 200  # findings of a check; the saved result has them all
RESIDUAL = re.compile(r"emb|blocks\.\d+\.(mid|out)|moba\.\d+\.(mid|end)")


def as_html(report: Report) -> str:
    """The page."""
    data = as_data(report)
    verdicts = reached(data)
    return render(
        "report.html",
        report=report,
        title=title(report),
        levels=[(name, verdicts[name], level.claim) for name, level in LEVELS.items()],
        pictures={"models": [_pictures(*pair) for pair in zip(report.models, data["models"], strict=True)]},
        kills=kills(),
        paths=_paths,
        missing=_missing,
        shown=SHOWN,
        bundle=_bundle(),
    )


def _pictures(model: ModelReport, data: dict[str, Any]) -> dict[str, Any]:
    """What the figures of one model are drawn from; the errors of its taps are as in the saved result."""
    views = {
        VIEWS[check.id]: [{**each, **_placed(each["where"])} for each in of_it["errors"]]
        for check, of_it in zip(model.checks, data["checks"], strict=True)
        if check.id in VIEWS and check.errors
    }
    return {"model": model.model, "views": views}


def _placed(where: str) -> dict[str, Any]:
    """A tap's column and row: its block, and its name in it."""
    kind, *rest = where.split(".", 2)
    inside = kind in ("blocks", "moba")
    return {
        "block": ("m" if kind == "moba" else "") + rest[0] if inside else "in" if where == "emb" else "out",
        "tap": ("moba." if kind == "moba" else "") + rest[1] if inside else where,
        "residual": bool(RESIDUAL.fullmatch(where)),
    }


def _paths(model: ModelReport) -> list[tuple[CheckResult, list[tuple[str, float]]]]:
    """The ways to cut a text into calls, of each check that has any, and the largest error ÷ bound on each."""
    return [
        (check, list(check.paths.items())) for check in model.checks if check.paths and check.id.startswith("path.")
    ]


def _missing(model: ModelReport) -> list[str]:
    """What had to be compared, and was not there."""
    return [finding.where for check in model.checks for finding in check.findings if finding.missing]


@cache
def _bundle() -> str:
    with needs("the HTML report", "vl-convert-python", module="vl_convert", extra="report"):
        from vl_convert import javascript_bundle
    bundle: str = javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle
