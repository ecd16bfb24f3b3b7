"""A result in a word, as an SVG badge: gander | L3 float32."""

from anybadge import Badge

from ..conformance.levels import highest, reached
from ..conformance.results import Report, Status
from .data import as_data

__all__ = ["COLOURS", "as_badge", "level_badge"]

# From grey to green, by the level that is reached.
COLOURS = {None: "#9f9f9f", "L0": "#dfb317", "L1": "#dfb317", "L2": "#a4a61d", "L3": "#4c1", "L4": "#4c1"}
VERDICTS = {Status.FAIL: "#c0392b", Status.INCOMPLETE: "#dfb317", Status.PASS: "#4c1"}


def level_badge(level: str | None, dtype: str, mode: str) -> str:
    """Of a level, in what it was reached."""
    value = " ".join(filter(None, (level, dtype, mode)))
    return _badge(value if level else "no level", COLOURS[level])


def as_badge(report: Report) -> str:
    """The level, of a run that passed and was of all that a level takes; or else the verdict."""
    level = highest(reached(as_data(report)))
    if report.status is Status.PASS and level is not None:
        return level_badge(level, report.dtype, report.mode)
    return _badge(" ".join(filter(None, (report.status, report.dtype, report.mode))), VERDICTS[report.status])


def _badge(value: str, colour: str) -> str:
    text: str = Badge("gander", value, default_color=colour).badge_svg_text
    return text
