"""Runs the checks on an engine, model after model, and never stops at the first fault."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from threadpoolctl import threadpool_limits

from .. import __version__
from ..checkpoint import Checkpoint
from ..errors import InputError
from ..golden import GoldenSet
from .adapters import ANSWER_TIMEOUT, IMPORT_TIMEOUT
from .cases import Case, compare_case, needs, reduced
from .checks import LOAD_ENGINE
from .compare import Tally
from .context import Context
from .engine import Engine
from .environment import environment
from .guard import Absent, EngineFault, Guard
from .mode import PLAIN, Mode
from .registry import CHECKS, Check
from .results import CheckResult, ModelReport, Report

__all__ = [
    "ask",
    "askable",
    "cannot_start",
    "command_words",
    "context_of",
    "one_thread_if_small",
    "opened",
    "run",
    "run_case",
    "threads_for",
    "with_not_run",
]

Progress = Callable[[str], None]

# Parameters below which matrices are so small that a second thread costs more than it gives: on a busy machine, 20 ×.
SMALL = 10_000_000


def run(
    open_engine: Callable[[], Engine],
    models: Sequence[tuple[str, Checkpoint, GoldenSet | None]],
    checks: Sequence[Check],
    *,
    command: str,
    mode: Mode = PLAIN,
    seed: int = 0,
    progress: Progress = lambda message: None,
) -> Report:
    """Check a fresh engine on each of `models`: its name, its checkpoint, and its stored traces.

    `open_engine` makes it for `mode`, which is what the reference is run in. Ctrl-C ends it early: what was not asked
    by then is INCOMPLETE.
    """
    began = time.perf_counter()
    reports: list[ModelReport] = []
    engine: Any = None
    stopped = False
    for model, checkpoint, golden in models:
        applicable = askable(checkpoint, mode, golden=golden, first=not reports)
        chosen = [check for check in checks if check.id in applicable]
        if not chosen:
            continue
        results: list[CheckResult] = []
        try:
            if not stopped:
                engine = opened(open_engine)
                named = partial(_named, progress, model)
                context = context_of(engine, checkpoint, mode, open_engine, golden=golden, seed=seed, progress=named)
                with one_thread_if_small(context):
                    for result in _check_model(context, chosen):
                        results.append(result)
        except KeyboardInterrupt:
            if engine is None:  # there is nothing to report yet
                raise
            stopped = True
        reports.append(ModelReport(model, checkpoint.fingerprint(), with_not_run(results, chosen), applicable))
    if not reports:
        raise InputError(
            "none of these checks can be asked of these models",
            expected="for golden.*, a model with stored traces; for int8.*, --quantize; "
            "for path.refuse, --attention capped:full=refuse",
            mend="gander golden make, then gander check --golden DIR",
        )
    seconds = time.perf_counter() - began
    return Report(
        engine.name,
        engine.dtype,
        str(mode),
        __version__,
        command,
        tuple(reports),
        seconds,
        seed,
        stopped=stopped,
        environment=environment(),
    )


def with_not_run(results: Sequence[CheckResult], checks: Sequence[Check]) -> tuple[CheckResult, ...]:
    """The results, and of the checks that have none, as after Ctrl-C, that they were not run."""
    asked = {result.id for result in results}
    left = [check.id for check in checks if check.id not in asked]
    return (*results, *(CheckResult(id, 0, 0, 0.0, (), 0.0, "not run: stopped") for id in left))


def run_case(
    open_engine: Callable[[], Engine],
    case: Case,
    source: Checkpoint,
    *,
    id: str,
    file: str,
    mode: Mode = PLAIN,
    seed: int = 0,
) -> Report:
    """Run one case on a fresh engine, as the check called `id`. `file` is the replay file that it is from.

    `source` is the case's model before it is cut; its fingerprint is the report's.
    """
    began = time.perf_counter()
    engine = opened(open_engine)
    context = context_of(engine, reduced(source, case.model, engine.dtype), mode, open_engine, seed=seed)
    check = Check(
        id, "a failure that was kept", "", partial(compare_case, case=case), needs(case), lambda context: True
    )
    with one_thread_if_small(context):
        results = [replace(result, replay=file) for result in _check_model(context, [check])]
    report = ModelReport(file, source.fingerprint(), tuple(results))
    seconds = time.perf_counter() - began
    return Report(engine.name, engine.dtype, str(mode), __version__, "", (report,), seconds)


def command_words(
    engine: str,
    dtype: str | None,
    mode: Mode,
    seed: int,
    *,
    import_timeout: float = IMPORT_TIMEOUT,
    timeout: float = ANSWER_TIMEOUT,
) -> list[str]:
    """What is typed to check an engine, but for models, checks, and where traces are."""
    words = ["gander", "check", "--engine", engine]
    words += ["--dtype", dtype] if dtype else []
    words += mode.words
    words += ["--seed", str(seed)] if seed else []
    words += ["--import-timeout", f"{import_timeout:g}"] if import_timeout != IMPORT_TIMEOUT else []
    return words + (["--timeout", f"{timeout:g}"] if timeout != ANSWER_TIMEOUT else [])


def context_of(
    engine: Any,
    checkpoint: Checkpoint,
    mode: Mode,
    another: Callable[[], Engine],
    *,
    golden: GoldenSet | None = None,
    seed: int = 0,
    progress: Progress = lambda message: None,
) -> Context:
    """An engine, with nothing loaded yet, and the model that it is to be checked on."""
    guard = Guard(engine, checkpoint.config.vocab)
    capabilities = frozenset(engine.capabilities)
    return Context(guard, engine.dtype, capabilities, checkpoint, mode, golden, seed, progress, another)


def opened(open_engine: Callable[[], Engine]) -> Any:
    """An engine, or what stands for one that cannot be made."""
    try:
        return open_engine()
    except EngineFault as fault:
        return Absent(fault)


def askable(checkpoint: Checkpoint, mode: Mode, *, golden: GoldenSet | None, first: bool) -> tuple[str, ...]:
    """The checks that can be asked of this model in this mode, whatever the engine. `first`: of the models that are
    checked together."""
    nobody = EngineFault("engine", "is not asked yet")

    def none() -> Engine:
        raise nobody

    context = context_of(Absent(nobody), checkpoint, mode, none, golden=golden)
    asked = [check for check in CHECKS.values() if check.when(context)]
    # A formula alone knows no model: once is enough.
    return tuple(check.id for check in asked if first or "apply" not in check.needs)


def one_thread_if_small(context: Context) -> AbstractContextManager[object]:
    """One thread for a model that is too small for a second."""
    return threadpool_limits(1 if _is_small(context.checkpoint) else None)


def threads_for(checkpoint: Checkpoint) -> int:
    """The same for an engine with threads of its own: how many it takes unless it is told."""
    return 1 if _is_small(checkpoint) else os.cpu_count() or 1


def _is_small(checkpoint: Checkpoint) -> bool:
    return checkpoint.parameters < SMALL


def _named(progress: Progress, model: str, text: str) -> None:
    progress(f"{model} · {text}")


def _check_model(context: Context, checks: Sequence[Check]) -> Iterator[CheckResult]:
    """Every check; but only why there is nothing to check, if the engine does not take the weights or cannot answer."""
    blocked = cannot_start(context)
    if blocked is not None:
        checks = checks if CHECKS[LOAD_ENGINE] in checks else [CHECKS[LOAD_ENGINE], *checks]
    for check in checks:
        context.progress(check.id)
        yield ask(check, context, blocked)
    if _lacking(context):  # nothing was loaded
        return
    began = time.perf_counter()
    try:
        context.engine.close()
    except EngineFault as fault:
        yield _result("load.close", Tally(), began, fault)


def _lacking(context: Context) -> frozenset[str]:
    """What the model needs and the engine does not offer."""
    return context.required - context.capabilities


def cannot_start(context: Context) -> CheckResult | None:
    """Loads the model. Why there is nothing to check, if so: the engine lacks what the model needs, or does not take
    it, or does not answer."""
    tally, began = Tally(), time.perf_counter()
    if lacking := _lacking(context):
        return _result(LOAD_ENGINE, tally, began, lacks=lacking)
    try:
        context.engine.load(context.checkpoint)
        context.engine.forward([0], context.engine.initial_state())
    except EngineFault as fault:
        return _result(LOAD_ENGINE, tally, began, fault)
    return None


def ask(check: Check, context: Context, blocked: CheckResult | None) -> CheckResult:
    """One check; whatever the engine does is a finding of it. If the engine is `blocked`, there is nothing to ask."""
    tally, began = Tally(), time.perf_counter()
    if blocked is not None and check.id != "load.census":
        return (
            blocked if check.id == LOAD_ENGINE else _result(check.id, tally, began, note=f"not run: see {LOAD_ENGINE}")
        )
    needs = check.needs
    if context.mode.quantize and check.id.startswith(("layer.", "path.")):
        needs |= {"taps"}  # which have the engine's codes
    if lacking := needs - context.capabilities:
        return _result(check.id, tally, began, lacks=lacking)
    inner = context.progress
    context.progress = lambda detail: inner(f"{check.id} · {detail}")
    try:
        return _result(check.id, tally, began, note=check.run(context, tally) or "")
    except EngineFault as fault:
        return _result(check.id, tally, began, fault)
    finally:
        context.progress = inner


def _result(
    id: str,
    tally: Tally,
    began: float,
    fault: EngineFault | None = None,
    note: str = "",
    lacks: Collection[str] = (),
) -> CheckResult:
    if fault is not None:
        tally.fault(fault.where, fault.message)
    return CheckResult(
        id,
        tally.compared,
        tally.expected,
        tally.worst,
        tuple(tally.findings),
        time.perf_counter() - began,
        note,
        lacks=tuple(sorted(lacks)),
        paths=tally.paths,
        errors=tally.errors,
    )
