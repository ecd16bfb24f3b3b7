"""Somebody's module, named on the command line: imported with all that may go wrong."""

import sys
import threading
from importlib import import_module

from ..errors import InputError
from .adapters import IMPORT_TIMEOUT
from .guard import EngineFault

__all__ = ["import_foreign", "named"]


def named(what: str, spec: str, written: str) -> tuple[str, str]:
    """The module and the name in it that `py:MODULE:NAME` means. InputError says that it is to be `written` so."""
    module, separator, name = spec.removeprefix("py:").partition(":")
    if not separator or not module or not name:
        raise InputError(f"{what} {spec!r} is not complete", expected=written)
    return module, name


def import_foreign(
    what: str,
    spec: str,
    module: str,
    *,
    package: str | None = None,
    mend: str = "install it, or run where it is found",
    timeout: float = IMPORT_TIMEOUT,
    longer: str = "",
) -> object:
    """The module behind `spec`, absolute or relative to `package`.

    One that is not there is an InputError, with what mends it. One that raises or never returns is an EngineFault: it
    is imported in a thread, so as to be named instead of waited for; `longer` says how to wait longer.
    """
    if spec.startswith("py:") and "" not in sys.path:
        sys.path.insert(0, "")  # the folder the command was typed in, as `python -m` has it
    outcome: list[object] = []

    def load() -> None:
        try:
            outcome.append(import_module(module, package))
        except BaseException as error:  # SystemExit in somebody's module is no reason to end
            outcome.append(error)

    worker = threading.Thread(target=load, daemon=True, name=f"import {module}")
    worker.start()
    worker.join(timeout)
    if not outcome:
        raise EngineFault(spec, f"did not finish importing {module!r} within {timeout:g} s{longer}")
    if isinstance(outcome[0], ModuleNotFoundError) and outcome[0].name in (module, module.split(".")[0]):
        raise InputError(f"{what} {spec!r}: no module {outcome[0].name!r}", mend=mend)
    if isinstance(outcome[0], InputError):
        raise outcome[0]
    if isinstance(outcome[0], BaseException):
        error = outcome[0]
        raise EngineFault(spec, f"raised {type(error).__name__} on import: {error}") from error
    return outcome[0]
