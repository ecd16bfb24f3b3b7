"""Two faults in one port."""

from collections.abc import Callable, Sequence
from typing import Any

from .mutant import Mutant

__all__ = ["combined"]


def combined(mutants: Sequence[Mutant]) -> Mutant | None:
    """All of them at once, or None where two replace the same thing."""
    formulas: dict[str, Callable[..., Any]] = {}
    methods: dict[str, Callable[..., Any]] = {}
    for mutant in mutants:
        if formulas.keys() & mutant.formulas.keys():
            return None
        formulas |= mutant.formulas
        for name, method in mutant.methods.items():
            if name not in methods:
                methods[name] = method
            elif name == "see":
                methods[name] = _both_see(methods[name], method)
            elif name in ("carry", "hand_on"):
                methods[name] = _both_carry(methods[name], method)
            else:
                return None
    names = [mutant.id for mutant in mutants]
    faults = [mutant.fault for mutant in mutants]
    return Mutant(" + ".join(names), "; ".join(faults), "", formulas, methods, mode=mutants[0].mode)


def _both_see(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    return lambda port, name, value, seen: second(port, name, first(port, name, value, seen), seen)


def _both_carry(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    return lambda port, before, after: second(port, before, first(port, before, after))
