"""A suite in someone's own tests: one call, of which pytest makes one test a check (cli/pytest_plugin.py)."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .. import __version__
from ..golden import open_model, read_manifest
from ..traces import parse_attention
from . import DEFAULT_MODELS
from .adapters.factory import engine_factory
from .context import Context, golden_of
from .engine import Engine
from .guard import EngineFault
from .mode import Mode
from .registry import CHECKS, Check, select
from .results import CheckResult, ModelReport, Report
from .runner import ask, askable, cannot_start, command_words, context_of, one_thread_if_small, opened
from .xfail import Known, require_matches

__all__ = ["Conformance", "Opened", "run_conformance"]


@dataclass(frozen=True)
class Conformance:
    """Which engine, on which models, and what of it is asked."""

    engine: str | Callable[[], Engine]
    models: tuple[str, ...]
    checks: tuple[Check, ...]
    xfail: tuple[Known, ...]
    dtype: str | None
    mode: Mode
    seed: int

    def make(self) -> Engine:
        """The engine, with nothing loaded."""
        if callable(self.engine):
            return self.engine()
        return engine_factory(self.engine, dtype=self.dtype, mode=self.mode)()

    @property
    def command(self) -> str:
        """What repeats it, but for --model and --only; empty if only these tests can make the engine."""
        if callable(self.engine):
            return ""
        return shlex.join(command_words(self.engine, self.dtype, self.mode, self.seed))


def run_conformance(
    engine: str | Callable[[], Engine],
    *,
    models: Sequence[str] = DEFAULT_MODELS,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    xfail: Mapping[str, str] | None = None,
    dtype: str | None = None,
    attention: str = "dense",
    quantize: bool = False,
    seed: int = 0,
) -> Conformance:
    """`test_port = run_conformance("py:my_port:Engine")` in a test file: one test for each check of `gander check`.

    `engine` is what `--engine` takes, or a function (a class) that makes the engine. `xfail` has reasons by check,
    group or glob; a known failure that passes fails the run.
    """
    checks = select(only, skip, CHECKS)
    known = tuple(Known(pattern, reason, "xfail") for pattern, reason in (xfail or {}).items())
    require_matches(known, [check.id for check in checks])
    mode = Mode(parse_attention(attention), quantize)
    return Conformance(engine, tuple(models), tuple(checks), known, dtype, mode, seed)


class Opened:
    """One model of a suite, and the engine on it once a check is asked."""

    def __init__(self, suite: Conformance, model: str) -> None:
        self.suite, self.model = suite, model
        self.checkpoint = open_model(model)
        self._golden = golden_of(read_manifest(), self.checkpoint, suite.mode)
        first = model == suite.models[0]
        applicable = askable(self.checkpoint, suite.mode, golden=self._golden, first=first)
        self.checks = [check for check in suite.checks if check.id in applicable]

    @cached_property
    def begun(self) -> tuple[Any, Context, CheckResult | None]:
        """The engine; with the model loaded, or why it cannot be asked anything."""
        suite = self.suite
        engine = opened(suite.make)
        context = context_of(engine, self.checkpoint, suite.mode, suite.make, golden=self._golden, seed=suite.seed)
        with one_thread_if_small(context):
            return engine, context, cannot_start(context)

    def ask(self, check: Check) -> Report:
        """One check, as a report of its own. The first one makes the engine."""
        began, (engine, context, blocked) = time.perf_counter(), self.begun
        with one_thread_if_small(context):
            result = ask(check, context, blocked)
        of_model = ModelReport(self.model, self.checkpoint.fingerprint(), (result,))
        seconds, mode = time.perf_counter() - began, str(self.suite.mode)
        return Report(engine.name, engine.dtype, mode, __version__, self.suite.command, (of_model,), seconds)

    def close(self) -> None:
        """Give back what was loaded, if anything was."""
        if "begun" in vars(self):
            _, context, blocked = self.begun
            if blocked is None:
                with suppress(EngineFault):
                    context.engine.close()
