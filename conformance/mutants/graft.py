"""The reference with some of its functions replaced."""

from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

__all__ = ["calls", "graft"]

HOME = "gander.reference"


def graft(function: Callable[..., Any], replaced: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """`function` of the reference, which calls those of `replaced` instead of the reference's functions of that name,
    however deep. The reference itself stays as it is."""
    return _graft(function, replaced, {})


def calls(function: Callable[..., Any]) -> frozenset[str]:
    """The names of the reference's functions that `function` calls, however deep, and its own."""
    done: dict[Any, Any] = {}
    _graft(function, {}, done)
    return frozenset(called.__name__ for called in done)


def _graft(function: Any, replaced: Mapping[str, Callable[..., Any]], done: dict[Any, Any]) -> Any:
    if function in done:
        return done[function]
    if _is_formula(function) and function.__name__ in replaced:
        return replaced[function.__name__]
    names = {**function.__globals__}
    grafted = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    grafted.__kwdefaults__ = function.__kwdefaults__
    done[function] = grafted
    used = set(_names(function.__code__))
    for name in used:
        found = names.get(name)
        if _is_formula(found):
            names[name] = _graft(found, replaced, done)
        elif isinstance(found, ModuleType) and found.__name__ == HOME:  # reference.wkv7
            inside = {name: value for name, value in vars(found).items() if name in used}
            formulas = {name: _graft(value, replaced, done) for name, value in inside.items() if _is_formula(value)}
            names[name] = SimpleNamespace(**{**inside, **formulas})
    return grafted


def _is_formula(found: object) -> bool:
    return isinstance(found, FunctionType) and found.__module__.startswith(HOME)


def _names(code: CodeType) -> Iterator[str]:
    """Every name that the code looks up, and those of the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
