"""From what a user calls an engine to the engine."""

import inspect
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from ...errors import InputError, nearest
from ..engine import CAPABILITIES, Engine
from ..foreign import import_foreign, named
from ..guard import EngineFault
from ..mode import PLAIN, Mode
from ..tolerances import UNIT_ROUNDOFF
from . import ANSWER_TIMEOUT, ENGINES, IMPORT_TIMEOUT, OTHERS

__all__ = ["engine_factory"]


def engine_factory(
    spec: str,
    *,
    dtype: str | None = None,
    mode: Mode = PLAIN,
    import_timeout: float = IMPORT_TIMEOUT,
    timeout: float = ANSWER_TIMEOUT,
    until: str | None = None,
) -> Callable[[], Engine]:
    """A function that makes the engine `spec` names: one of ENGINES, `py:module:Class`, or `cmd:program arguments`.

    A class gets the keywords `dtype`, `attention` and `quantize` where they are asked for, and no others. A program is
    told them, has `timeout` seconds for each answer, and is not asked for taps behind `until`.

    A spec that names nothing is the user's mistake (InputError); a module that hangs, raises or holds no engine is the
    engine's (EngineFault), and so is what a program does once it runs.
    """
    if spec.startswith("cmd:"):
        return partial(_program, spec, dtype, mode, timeout, until)
    if spec.startswith("py:"):
        module, name = named("engine", spec, "py:MODULE:CLASS, e.g. py:my_port.engine:Engine")
    elif spec in ENGINES:
        module, name = ENGINES[spec][0], "Engine"
    else:
        raise InputError(f"no engine {spec!r}", expected=f"{nearest(spec, ENGINES)}, or {OTHERS}")

    def make() -> Engine:
        imported = import_foreign(
            "engine", spec, module, package=__package__, timeout=import_timeout, longer=" (--import-timeout)"
        )
        found = getattr(imported, name, None)
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
        return _complete(spec, engine)

    return make


def _program(spec: str, dtype: str | None, mode: Mode, timeout: float, until: str | None) -> Engine:
    """A program as an engine, started."""
    from .command import Engine as Command

    try:
        engine = Command(
            spec, dtype=dtype, attention=mode.attention, quantize=mode.quantize, timeout=timeout, until=until
        )
    except EngineFault as fault:
        raise EngineFault(spec, str(fault)) from fault
    return _complete(spec, engine)


def _complete(spec: str, engine: Any) -> Engine:
    """The engine, if it has the verbs and is what it says in words that are known."""
    lacking = [verb for verb in ("name", "dtype", "capabilities", "load", "initial_state", "forward", "close")
               if not hasattr(engine, verb)]  # fmt: skip
    if lacking:
        raise EngineFault(spec, f"is no engine: it lacks {', '.join(lacking)} (see gander/conformance/engine.py)")
    if engine.dtype not in UNIT_ROUNDOFF:
        raise EngineFault(spec, f"has an unknown dtype {engine.dtype!r}: {nearest(str(engine.dtype), UNIT_ROUNDOFF)}")
    unknown = sorted(set(engine.capabilities) - set(CAPABILITIES))
    if unknown:
        raise EngineFault(spec, f"claims an unknown capability {unknown[0]!r}: {nearest(unknown[0], CAPABILITIES)}")
    complete: Engine = engine
    return complete


def _takes(spec: str, engine: Any, options: Collection[str]) -> None:
    """An InputError where the engine's class has no such keyword; one that cannot be asked is tried."""
    try:
        known = inspect.signature(engine).parameters
    except (TypeError, ValueError):
        return
    for option in options:
        if option not in known and not any(each.kind is each.VAR_KEYWORD for each in known.values()):
            raise InputError(f"engine {spec!r} has no choice of {option}", expected=f"a class that takes {option}=…")
