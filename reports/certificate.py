"""A certificate for people: what was reached, on what evidence; and as a badge."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..files import output
from .badge import level_badge

__all__ = ["print_certificate", "write_badge"]

STYLE = {"reached": "green", "failed": "bold red", "not tested": "yellow"}


def print_certificate(certificate: Mapping[str, Any], wrong: Sequence[str], console: Console) -> None:
    """Its levels; or what in it does not follow from its evidence."""
    if not wrong:
        mode = f" {certificate['mode']}" if certificate["mode"] else ""
        title = f"{certificate['engine']} {certificate['dtype']}{mode}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for column in ("level", "verdict", "the engine"):
            table.add_column(column)
        for name, level in certificate["levels"].items():
            table.add_row(name, Text(level["verdict"], style=STYLE[level["verdict"]]), level["claim"])
        console.print(table)
        for model in certificate["models"]:
            console.print(f"{model['model']} {model['fingerprint'][:12]}…", highlight=False)
    for line in wrong:
        console.print(Text(line))
    verdict = Text("FAIL", style="bold red") if wrong else Text("PASS", style="green")
    compared = f"{certificate.get('compared')}/{certificate.get('expected')} tensors compared"
    verdict.append("  it does not follow from its evidence" if wrong else f"  {said(certificate)}, {compared}")
    console.print(verdict)


def said(certificate: Mapping[str, Any]) -> str:
    """The level in words."""
    return f"level {certificate['level']}" if certificate["level"] else "no level"


def write_badge(certificate: Mapping[str, Any], path: Path) -> None:
    """An SVG: gander | L3 float32."""
    with output(path) as partial:
        badge = level_badge(certificate["level"], certificate["dtype"], certificate["mode"])
        partial.write_text(badge, encoding="utf-8")
