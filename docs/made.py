"""Writes what is made of other things: reports/kills.json, and the made parts of pages. `python docs/made.py`.

A part is between two comments in its page. tests/test_docs.py fails where one is out of date.
"""

import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import grimp
import networkx

from gander.conformance import checks as _all_checks  # noqa: F401, which enters them into the registry
from gander.conformance.registry import CHECKS, Check, select
from gander.reports.kills import Kills

ROOT = Path(__file__).parents[1]

# The files of reference/ in the order in which a token meets them.
FORMULAS = (
    "embedding",
    "layer_norm",
    "token_shift",
    "linear",
    "lora",
    "decay",
    "in_context_rate",
    "gate",
    "l2norm",
    "k_update",
    "v_first",
    "wkv7",
    "group_norm",
    "bonus",
    "gate_correction",
    "channel_mix",
    "head",
    "sigmoid",
    "model",
    "attention_block",
    "attention",
    "attention.attend",
    "attention.cache",
    "attention.dense",
    "attention.capped",
    "attention.moba",
    "attention.package",
    "attention.evict",
    "attention.memory",
    "int8",
    "longest_match",
)


def made() -> Iterator[tuple[Path, str]]:
    """Each file, and what it should hold."""
    kills = _kills()
    yield ROOT / "reports" / "kills.json", _as_json(kills)
    for page, part in (("checks", _checks(kills)), ("formulas", _formulas()), ("design", _diagram())):
        path = ROOT / "docs" / f"{page}.md"
        before, rest = path.read_text(encoding="utf-8").split("<!-- made: begin -->")
        yield path, f"{before}<!-- made: begin -->\n\n{part}\n\n<!-- made: end -->{rest.split('<!-- made: end -->')[1]}"


# --- the kill matrix


def _kills() -> Kills:
    """Out of docs/kill-matrix.md, without the equal variants."""
    page = (ROOT / "docs" / "kill-matrix.md").read_text(encoding="utf-8")
    parts = {part.partition("\n")[0]: part for part in page.split("\n## ")}
    faults = set(re.findall(r"^\| `([^`]+)` ", parts["Faults"], re.MULTILINE))
    checks = re.findall(r"^\| +\d+ \| `([^`]+)`", parts["Checks"], re.MULTILINE)
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in parts["Every cell"].splitlines()]
    return Kills(
        tuple(checks), {row[0]: "".join(cell or " " for cell in row[1:]) for row in rows if row and row[0] in faults}
    )


def _as_json(kills: Kills) -> str:
    return json.dumps({"checks": kills.checks, "faults": kills.faults}, indent=1, ensure_ascii=False) + "\n"


def _checks(kills: Kills) -> str:
    return "\n\n".join(_check(check, kills) for check in select([], [], CHECKS))


def _check(check: Check, kills: Kills) -> str:
    groups, found = kills.by_group(check.id), kills.signs(check.id)
    whole = [group for group, (number, of) in groups.items() if number == of]
    some = [f"{group} ({number} of {of})" for group, (number, of) in groups.items() if 0 < number < of]
    finds = [f"Finds {sum(found.values())} of {len(found)} faults"]
    finds += [f"all of {', '.join(whole)}"] if whole else []
    finds += [f"some of {', '.join(some)}"] if some else []
    lines = [f"## {check.id}", f"Proves: {check.title}."]
    if check.needs:
        lines.append(f"Asks for: {', '.join(f'`{need}`' for need in sorted(check.needs))}.")
    lines.append("; ".join(finds) + ".")
    if alone := kills.alone(check.id):
        lines.append(f"Alone finds: {', '.join(f'`{fault}`' for fault in alone)}.")
    return "\n\n".join([*lines, f"Cannot see: {check.blind}."])


# --- the formulas


def _formulas() -> str:
    return "\n\n".join(_formula(module, name) for module in FORMULAS for name in _public(module))


def _public(module: str) -> list[str]:
    found = import_module(f"gander.reference.{module}")
    return [
        name
        for name, value in vars(found).items()
        if inspect.isfunction(value) and value.__module__ == found.__name__ and not name.startswith("_")
    ]


def _formula(module: str, name: str) -> str:
    found = import_module(f"gander.reference.{module}")
    file = Path(inspect.getfile(found)).relative_to(ROOT).as_posix()
    text = inspect.getdoc(getattr(found, name))
    return f"## {name}\n\n```text\n{text}\n```\n\n[`{file}`](../{file})"


# --- the house


def imports() -> networkx.DiGraph:
    """Which folder of the package imports which, but for what follows from others."""
    graph = grimp.build_graph("gander")
    edges = {
        (of[1], on[1])
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if len(of := module.split(".")) > 1 and len(on := imported.split(".")) > 1 and of[1] != on[1]
    }
    edges = {edge for edge in edges if "__main__" not in edge}
    return networkx.transitive_reduction(networkx.DiGraph(edges))


def _diagram() -> str:
    arrows = "\n".join(f"    {of} --> {on}" for of, on in sorted(imports().edges))
    return f"```mermaid\nflowchart TD\n{arrows}\n```"


def main() -> None:
    """Write them."""
    for path, text in made():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
