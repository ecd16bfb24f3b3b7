"""The table of `gander diff`."""

import json
from dataclasses import asdict
from math import isfinite

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..conformance.diff import Diff, Row

__all__ = ["diff_as_json", "print_diff"]

HERE = "← first divergence"
COLUMNS = ("max abs", "max rel", "rms", "cosine", "SNR dB")


def print_diff(result: Diff, relative: float, console: Console) -> None:
    """One line a tensor, in execution order; narrow terminals show fewer measures, never cut names."""
    columns = COLUMNS if console.width >= 90 else COLUMNS[:1] + COLUMNS[2:3]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tensor", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    first = result.first
    for row in result.rows:
        measures = _measures(row)
        mark = Text(HERE, style="bold red") if row is first else Text("" if row.ok else "×", style="red")
        table.add_row(row.name, *(measures[column] for column in columns), mark)
    console.print(table)
    console.print()
    if first is not None:
        place = first.name + ("" if first.token is None else f" · token {first.token}")
        console.print(Text(f"FAIL  {place}: {first.message}", style="bold red"))
    counted = f"compared {len(result.rows)}/{len(result.rows) + len(result.only_a) + len(result.only_b)} tensors"
    console.print(f"{counted}, {result.tokens} tokens, tolerance {relative:.2g} of each rms")
    if result.tokens_a != result.tokens_b:
        console.print(f"texts of {result.tokens_a} and {result.tokens_b} tokens: their states are not compared")
    for which, names in (("first", result.only_a), ("second", result.only_b)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            console.print(f"only in the {which}: {', '.join(names[:3])}{more}")
    if first is None and result.partial:
        console.print(Text("INCOMPLETE", style="yellow"))
    elif first is None:
        console.print(Text("PASS", style="green"))


def _measures(row: Row) -> dict[str, str]:
    values = (
        f"{row.max_abs:.1e}", f"{row.max_rel:.1e}", f"{row.rms_ratio:.1e}", f"{row.cosine:.9f}", f"{row.snr_db:.1f}"
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def diff_as_json(result: Diff, relative: float) -> str:
    """The same as JSON; what is not a number there (infinity, NaN) is null."""
    data = asdict(result)
    for row in data["rows"]:
        row.update({key: None for key, value in row.items() if isinstance(value, float) and not isfinite(value)})
    first = result.first
    data.update(tolerance=relative, first=first.name if first else None, partial=result.partial)
    return json.dumps(data, indent=2, ensure_ascii=False)
