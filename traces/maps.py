"""Maps: which of a foreign tool's tensors is which tap, and how it is laid out there. `docs/map.md` has the rules."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, nearest
from .taps import Tensor, named

__all__ = ["FUNCTIONS", "Map", "Rule", "read_map"]

Array = npt.NDArray[Any]


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


# From what a tool keeps to what the tap is.
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,  # the decay's log
    "exp(-exp)": lambda x: np.exp(-np.exp(x)),  # q of w = exp(-exp(q)), as the CUDA kernels take it
    "decay": lambda x: np.exp(-np.exp(-0.5) * _sigmoid(x)),  # what goes into the decay: w0 + tanh(xw w1) w2
    "sigmoid": _sigmoid,  # what goes into a
    "relu2": lambda x: np.square(np.maximum(x, 0)),  # what goes into relu², or relu of it
    "negate": np.negative,  # -kk, as the kernels take it
}
RULE = ("name", "tap", "axes", "reversed", "apply")
RUN = ("model", "tokens", "engine", "dtype", "path", "start", "attention", "quantized")
ATOMS = ("1", "T", "H", "N", "D", "F", "V", "M", "key", "value", "taps")
_GROUP = re.compile(r"\{(\w+)([+-]\d+)?\}")  # {1}, {layer}, {1-1}


@dataclass(frozen=True)
class Rule:
    """Tensors whose whole name `name` matches are `taps`, laid out as `axes` says.

    In a tap's name `{1}` or `{layer}` is what the group of the regex caught, `{1-1}` that number less one. `axes` are
    those of the file: `1 T (H N)` has a batch axis and merged heads. Empty: the tap's own.
    """

    name: str
    taps: tuple[str, ...]  # several, where `axes` has an axis called taps
    axes: str = ""
    reversed: bool = False  # the shape lists the fastest axis first, as ggml's ne does; the numbers lie as they are
    apply: str = ""  # one of FUNCTIONS
    where: str = ""  # for messages

    def taps_of(self, name: str) -> list[Tensor] | None:
        """The taps that a tensor is; None if it is not this rule's."""
        match = re.fullmatch(self.name, name)
        return None if match is None else [self._tap(tap, match) for tap in self.taps]

    def _tap(self, template: str, match: re.Match[str]) -> Tensor:
        def filled(group: re.Match[str]) -> str:
            key: int | str = int(group[1]) if group[1].isdecimal() else group[1]
            caught = match[key] or ""
            if not caught.isdecimal():
                if group[2]:
                    raise InputError(f"{self.where}: {group[0]} of {match.string!r} is {caught!r}, not a number")
                return caught
            return str(int(caught) + int(group[2] or 0))

        try:
            return named(_GROUP.sub(filled, template))
        except InputError as unknown:
            problem = f"{self.where}: for {match.string!r}, {unknown.problem}"
            raise InputError(problem, expected=unknown.expected) from unknown

    def canonical(self, name: str, array: Array, dims: Mapping[str, int]) -> dict[str, Array]:
        """The taps that a tensor is, by name, with their own axes."""
        taps = self.taps_of(name) or []
        laid = laid_out(f"{self.where}: {name!r}", array, taps[0], self.axes, self.reversed, dims, len(taps))
        if self.apply:
            with np.errstate(all="ignore"):
                laid = FUNCTIONS[self.apply](laid.astype(np.float64)).astype(array.dtype)
        return {tap.name: np.ascontiguousarray(each) for tap, each in zip(taps, laid, strict=True)}


@dataclass(frozen=True)
class Map:
    """Rules, of which the first that matches holds, and what the dump does not say of its run."""

    rules: tuple[Rule, ...]
    run: Mapping[str, str] = field(default_factory=dict)

    def rule(self, name: str) -> Rule | None:
        """The rule for a tensor."""
        return next((rule for rule in self.rules if rule.taps_of(name)), None)


def atoms_of(tap: Tensor) -> tuple[str, ...]:
    """A tap's axes, each by a name of its own: those of a recurrent state are value and key."""
    return (*tap.axes[:-2], "value", "key") if tap.axes[-2:] == ("N", "N") else tap.axes


def parse_axes(text: str) -> list[tuple[str, ...]]:
    """What each axis of a file's tensor is made of: `1 T (H N)` → [("1",), ("T",), ("H", "N")]."""
    found = re.findall(r"\(([^()]*)\)|([^\s()]+)", text)
    groups = [tuple(inside.split()) if inside else (single,) for inside, single in found]
    if re.sub(r"\([^()]*\)|[^\s()]+|\s", "", text) or not all(groups):
        raise InputError(f"axes {text!r} cannot be read", expected="names of axes, merged ones in brackets: T (H N)")
    for atom in (atom for group in groups for atom in group):
        if atom not in ATOMS:
            raise InputError(f"axes {text!r}: no axis is called {atom!r}", expected=nearest(atom, ATOMS))
    return groups


def laid_out(
    what: str, array: Array, tap: Tensor, axes: str, reverse: bool, dims: Mapping[str, int], count: int = 1
) -> Array:
    """`array`, whose axes are `axes`, with those of the tap behind one of `count` taps. InputError if it cannot be."""
    if reverse:
        array = array.reshape(array.shape[::-1])
    atoms = atoms_of(tap)
    groups = parse_axes(axes) if axes else [(atom,) for atom in atoms]
    sizes = {**dims, "value": dims.get("N", 0), "key": dims.get("N", 0), "taps": count, "1": 1}
    used = {atom for group in (*groups, atoms) for atom in group}
    if used & {"H", "N", "value", "key"}:  # heads on one side, their width on the other
        groups = [tuple(part for atom in group for part in _split(atom)) for group in groups]
        atoms = tuple(part for atom in atoms for part in _split(atom))
    given = [atom for group in groups for atom in group]
    unsized = sorted({atom for atom in (*given, *atoms) if not sizes.get(atom)})
    if unsized:
        raise InputError(f"{what}: nothing tells the size of {', '.join(unsized)}")
    shape = tuple(prod(sizes[atom] for atom in group) for group in groups)
    if array.shape != shape:
        own = " (read from the other end)" if reverse else ""
        said = axes or " ".join(atoms_of(tap))
        raise InputError(f"{what} has shape {array.shape}{own}", expected=f"{shape}: {said}")
    split = array.reshape([sizes[atom] for atom in given])
    kept = [atom for atom in given if atom != "1"]
    split = split.reshape([sizes[atom] for atom in kept])
    wanted = ("taps", *atoms) if count > 1 else atoms
    there = [atom for atom in wanted if atom in kept]
    if sorted(there) != sorted(kept) or any(sizes[atom] != 1 for atom in wanted if atom not in kept):
        raise InputError(f"{what}: axes {axes!r}", expected=f"all of {' '.join(wanted)}, once each, and 1s")
    shape = tuple(sizes[axis] for axis in tap.axes)
    return split.transpose([kept.index(atom) for atom in there]).reshape(count, *shape)


def _split(atom: str) -> tuple[str, ...]:
    return ("H", "N") if atom == "D" else (atom,)


def read_map(path: Path) -> Map:
    """The map in a TOML file. InputError says which rule is wrong, and how."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the map {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"the map {path} is no TOML: {error}", mend="write regexes in single quotes") from error
    for key in data:
        if key not in ("run", "tensor"):
            raise InputError(f"the map {path} has no part called {key!r}", expected="[run] and [[tensor]]")
    rules, run = data.get("tensor", []), data.get("run", {})
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules) or not isinstance(run, dict):
        raise InputError(
            f"the map {path} is no list of rules", expected="[[tensor]] above each rule, one [run] at most"
        )
    return Map(tuple(_rule(rule, f"{path}, rule {i + 1}") for i, rule in enumerate(rules)), _run(run, path))


def _rule(data: Mapping[str, object], where: str) -> Rule:
    for key in data:
        if key not in RULE:
            raise InputError(f"{where}: nothing is called {key!r}", expected=nearest(key, RULE))
    name, tap, axes, apply = (data.get(key, "") for key in ("name", "tap", "axes", "apply"))
    taps: list[object] = tap if isinstance(tap, list) else [tap]
    for key, value in (("name", name), ("axes", axes), ("apply", apply), *(("tap", tap) for tap in taps)):
        if not isinstance(value, str) or (key in ("name", "tap") and not value):
            raise InputError(f"{where}: {key} is {value!r}", expected="a text")
    backwards = data.get("reversed", False)
    if not isinstance(backwards, bool):
        raise InputError(f"{where}: reversed is {backwards!r}", expected="true or false")
    rule = Rule(str(name), tuple(map(str, taps)), str(axes), backwards, str(apply), where)
    _check(rule)
    return rule


def _check(rule: Rule) -> None:
    """InputError if a rule is wrong whatever the dump."""
    try:
        regex = re.compile(rule.name)
    except re.error as error:
        raise InputError(f"{rule.where}: name {rule.name!r} is no regex: {error}") from error
    for template in rule.taps:
        for group in _GROUP.finditer(template):
            if group[1] not in regex.groupindex and not (group[1].isdecimal() and int(group[1]) <= regex.groups):
                what = f"{rule.where}: tap {template!r} asks for group {group[1]}"
                raise InputError(what, expected=f"a group of {rule.name!r}, which has {regex.groups}")
        inner = re.fullmatch(r"((?:blocks|moba)\.)(?:\d+|\{[^}]*\})(\.[^{}]+)", template)
        if inner or "{" not in template:  # all but the number is known
            try:
                named(f"{inner[1]}0{inner[2]}" if inner else template)
            except InputError as unknown:
                raise InputError(f"{rule.where}: {unknown.problem}", expected=unknown.expected) from unknown
    try:
        groups = parse_axes(rule.axes)
    except InputError as error:
        raise InputError(f"{rule.where}: {error.problem}", expected=error.expected) from error
    if (len(rule.taps) > 1) != any("taps" in group for group in groups):
        raise InputError(f"{rule.where}: {len(rule.taps)} taps", expected="an axis called taps if there are several")
    if rule.apply and rule.apply not in FUNCTIONS:
        raise InputError(f"{rule.where}: apply is {rule.apply!r}", expected=nearest(rule.apply, FUNCTIONS))


def _run(data: Mapping[str, object], path: Path) -> dict[str, str]:
    """What a trace's metadata would say."""
    for key, value in data.items():
        if key not in RUN:
            raise InputError(f"{path}, [run]: nothing is called {key!r}", expected=nearest(key, RUN))
        if not isinstance(value, str) and key != "tokens":
            raise InputError(f"{path}, [run]: {key} is {value!r}", expected="a text")
    return {key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in data.items()}
