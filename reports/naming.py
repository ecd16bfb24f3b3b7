"""What a foreign dump was taken for: for a terminal, as JSON, and as the file of a map."""

import json
from dataclasses import dataclass
from math import isfinite

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..conformance.naming import Match, Proposal
from ..traces.foreign import Converted

__all__ = ["Understood", "print_understood", "with_understood", "written"]

SHOWN = 12  # of the tensors that are no tap


@dataclass(frozen=True)
class Understood:
    """The trace that a dump became, and the map that was proposed for it, if none was given."""

    converted: Converted
    proposal: Proposal | None

    @property
    def left(self) -> dict[str, str]:
        """The tensors that are not compared, and why."""
        if self.proposal is None:
            return dict(self.converted.unmatched)
        unsure = {name: _unsure(match) for match in self.proposal.unsure for name in match.names}
        return {**unsure, **self.proposal.unmatched}


def print_understood(understood: Understood, console: Console) -> None:
    """Each rule of a proposed map with what speaks for it; what was not matched, always."""
    proposal = understood.proposal
    if proposal and (proposal.matches or proposal.unsure):
        table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
        for column in ("proposed: tensor", "tap", "axes", "because"):
            table.add_column(column, overflow="fold")
        for match in proposal.matches:
            table.add_row(*(Text(cell) for cell in (match.rule.name, _taps(match), _layout(match), _because(match))))
        for match in proposal.unsure:
            doubtful = (match.rule.name, f"{_taps(match)}?", _layout(match), _unsure(match))
            table.add_row(*(Text(cell, style="yellow") for cell in doubtful))
        console.print(table)
    for rule in understood.converted.idle:
        console.print(Text(f"{rule.where}: no tensor is called like {rule.name}", style="yellow"))
    left, matched = understood.left, len(set(understood.converted.names.values()))
    console.print(f"matched {matched}/{matched + len(left)} tensors of the dump")
    for name, why in list(left.items())[:SHOWN]:
        console.print(Text(f"  not matched: {name}: {why}"))
    if len(left) > SHOWN:
        console.print(f"  and {len(left) - SHOWN} more (--json lists them)")
    console.print()


def with_understood(text: str, understood: Understood | None) -> str:
    """A report as JSON, with what its dump was taken for."""
    if understood is None:
        return text
    return json.dumps(json.loads(text) | {"dump": _as_data(understood)}, indent=2, ensure_ascii=False)


def _as_data(understood: Understood) -> dict[str, object]:
    proposal = understood.proposal
    matches = [(match, True) for match in proposal.matches] if proposal else []
    matches += [(match, False) for match in proposal.unsure] if proposal else []
    return {
        "matched": dict(understood.converted.names),
        "not_matched": understood.left,
        "idle_rules": [rule.name for rule in understood.converted.idle],
        "proposed": [
            {
                "name": match.rule.name,
                "tap": list(match.rule.taps),
                "axes": match.rule.axes,
                "reversed": match.rule.reversed,
                "apply": match.rule.apply,
                "used": used,
                "tensors": list(match.names),
                "agrees": match.agrees,
                "relative_error": match.error if isfinite(match.error) else None,
                "correlation": match.correlation,
                "next": match.next,
                "next_error": match.next_error if isfinite(match.next_error) else None,
                "also": list(match.same),
                "doubt": match.doubt,
            }
            for match, used in matches
        ],
    }


def written(proposal: Proposal) -> str:
    """A map's file. What is doubtful is in it, but as comments."""
    lines = ["# Which of the dump's tensors is which tap (docs/map.md). Found by shape and values: read it before use."]
    for match in proposal.matches:
        lines += ["", f"# {_because(match)}", *_rule(match)]
    for match in proposal.unsure:
        lines += ["", f"# DOUBTFUL: {_unsure(match)}", *(f"# {line}" for line in _rule(match))]
    if proposal.unmatched:
        lines += ["", "# Not matched:"]
        lines += [f"# {_one_line(name)}: {_one_line(why)}" for name, why in proposal.unmatched.items()]
    return "\n".join(lines) + "\n"


def _rule(match: Match) -> list[str]:
    rule = match.rule
    taps = [_quoted(tap) for tap in rule.taps]
    lines = ["[[tensor]]", f"name = {_quoted(rule.name)}"]
    lines += [f"tap = {taps[0]}" if len(taps) == 1 else f"tap = [{', '.join(taps)}]"]
    lines += [f"axes = {_quoted(rule.axes)}"] if rule.axes else []
    lines += ["reversed = true"] if rule.reversed else []
    lines += [f"apply = {_quoted(rule.apply)}"] if rule.apply else []
    return lines


def _quoted(text: str) -> str:
    """A TOML string: in single quotes, where a regex's backslashes stand for themselves, if it can be."""
    if text.isprintable() and "'" not in text:
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)


def _taps(match: Match) -> str:
    return " ".join([match.rule.taps[0], *(tap.rpartition(".")[2] for tap in match.rule.taps[1:])])


def _layout(match: Match) -> str:
    rule = match.rule
    applied = f", {rule.apply}" if rule.apply else ""
    return (rule.axes or "its own") + (", reversed" if rule.reversed else "") + applied


def _because(match: Match) -> str:
    """By what it was found, and how sure that is."""
    if match.agrees:
        found = f"values agree (relative error {match.error:.0e})"
    else:
        found = f"values are near (relative error {match.error:.2g}, correlation {match.correlation:.3f})"
    many = f", {len(match.names)} layers" if len(match.names) > 1 else ""
    near = f"; next best {match.next} ({match.next_error:.2g})" if match.next and isfinite(match.next_error) else ""
    same = f"; so does {match.same[0]}" + (" …" if len(match.same) > 1 else "") if match.same else ""
    return found + many + near + same


def _unsure(match: Match) -> str:
    return f"not used: correlation {match.correlation:.3f}, but {match.doubt}"
