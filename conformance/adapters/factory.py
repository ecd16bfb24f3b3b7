"""From what a user calls an engine to the engine."""

import inspect
import sys
import threading
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

from ...errors import InputError, nearest
from ..engine import CAPABILITIES, Engine
from ..guard import EngineFault
from ..mode import PLAIN, Mode
from ..tolerances import UNIT_ROUNDOFF
from . import ENGINES, IMPORT_TIMEOUT

__all__ = ["engine_factory"]


def engine_factory(
    spec: str, *, dtype: str | None = None, mode: Mode = PLAIN, import_timeout: float = IMPORT_TIMEOUT
) -> Callable[[], Engine]:
    """A function that imports and makes the engine `spec` names: one of ENGINES, or `py:module:Class`.

    Its class gets the keywords `dtype`, `attention` and `quantize` where they are asked for, and no others.

    A spec that names nothing is the user's mistake (InputError); a module that hangs, raises or holds no engine is the
    engine's (EngineFault).
    """
    if spec.startswith("py:"):
        module, separator, name = spec.removeprefix("py:").partition(":")
        if not separator or not module or not name:
            raise InputError(
                f"engine {spec!r} is not complete", expected="py:MODULE:CLASS, e.g. py:my_port.engine:Engine"
            )
    elif spec in ENGINES:
        module, name = ENGINES[spec][0], "Engine"
    else:
        raise InputError(f"no engine {spec!r}", expected=f"{nearest(spec, ENGINES)}, or py:MODULE:CLASS")

    def make() -> Engine:
        found = getattr(_import(spec, module, import_timeout), name, None)
        if found is None:
            raise InputError(f"module {module!r} has no {name!r}", mend="name the class that has the engine's verbs")
        options = mode.options | ({} if dtype is None else {"dtype": dtype})
        _takes(spec, found, options)
        try:
            engine = found(**options)
        except InputError:
            raise
        except Exception as error:
            wanted = f"({', '.join(f'{name}={value!r}' for name, value in options.items())})" if options else ""
            raise EngineFault(spec, f"raised {type(error).__name__} when it was made{wanted}: {error}") from error
        lacking = [verb for verb in ("name", "dtype", "capabilities", "load", "initial_state", "forward", "close")
                   if not hasattr(engine, verb)]  # fmt: skip
        if lacking:
            raise EngineFault(spec, f"is no engine: it lacks {', '.join(lacking)} (see gander/conformance/engine.py)")
        if engine.dtype not in UNIT_ROUNDOFF:
            raise EngineFault(
                spec, f"has an unknown dtype {engine.dtype!r}: {nearest(str(engine.dtype), UNIT_ROUNDOFF)}"
            )
        unknown = sorted(set(engine.capabilities) - set(CAPABILITIES))
        if unknown:
            raise EngineFault(spec, f"claims an unknown capability {unknown[0]!r}: {nearest(unknown[0], CAPABILITIES)}")
        return engine

    return make


def _takes(spec: str, engine: Any, options: Collection[str]) -> None:
    """An InputError where the engine's class has no such keyword; one that cannot be asked is tried."""
    try:
        known = inspect.signature(engine).parameters
    except (TypeError, ValueError):
        return
    for option in options:
        if option not in known and not any(each.kind is each.VAR_KEYWORD for each in known.values()):
            raise InputError(f"engine {spec!r} has no choice of {option}", expected=f"a class that takes {option}=…")


def _import(spec: str, module: str, timeout: float) -> object:
    """Import in a thread, so that a module that never returns can be named instead of waited for."""
    if spec.startswith("py:") and "" not in sys.path:
        sys.path.insert(0, "")  # the folder the command was typed in, as `python -m` has it
    outcome: list[object] = []

    def load() -> None:
        try:
            outcome.append(import_module(module, __package__))
        except BaseException as error:  # SystemExit in somebody's module is no reason to end
            outcome.append(error)

    worker = threading.Thread(target=load, daemon=True, name=f"import {module}")
    worker.start()
    worker.join(timeout)
    if not outcome:
        raise EngineFault(spec, f"did not finish importing {module!r} within {timeout:g} s (--import-timeout)")
    if isinstance(outcome[0], ModuleNotFoundError) and outcome[0].name in (module, module.split(".")[0]):
        raise InputError(f"engine {spec!r}: no module {outcome[0].name!r}", mend="install it, or run where it is found")
    if isinstance(outcome[0], InputError):
        raise outcome[0]
    if isinstance(outcome[0], BaseException):
        error = outcome[0]
        raise EngineFault(spec, f"raised {type(error).__name__} on import: {error}") from error
    return outcome[0]
