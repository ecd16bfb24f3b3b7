"""After a run that failed: what failed first on each model is made small, and kept as a replay file."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .. import __version__
from ..checkpoint import Checkpoint
from ..golden import GoldenSet
from ..traces import op_of, parse_path
from .cases import Case, Model, source_of
from .context import Context
from .engine import Engine
from .guard import EngineFault
from .mode import Mode
from .replay import Replay, write_replay
from .results import CheckResult, Finding, ModelReport, Report, Status
from .runner import context_of, run_case
from .shrink import first_wrong, shrink

__all__ = ["FOLDER", "SECONDS", "origin", "with_replays"]

FOLDER = Path(".gander", "replays")  # in the folder where the command was typed

# The longest that is searched for a model's replay, to the end of the run that is on. A run of a large model
# (context.LARGE) takes seconds.
SECONDS = {False: 20.0, True: 120.0}

# What the layer and golden checks compare, as a case says it. The path checks compare the final state and the logits.
COMPARED = {
    "layer.isolated": "isolated",
    "layer.cumulative": "cumulative",
    "golden.taps": "cumulative",
    "golden.logits": "logits",
    "golden.state": "final",
}


def with_replays(
    report: Report,
    models: Sequence[tuple[str, Checkpoint, GoldenSet | None]],
    open_engine: Callable[[], Engine],
    *,
    engine: str,
    dtype: str | None,
    mode: Mode,
    seed: int,
    folder: Path = FOLDER,
    progress: Callable[[str], None] = lambda message: None,
) -> tuple[Report, str]:
    """The report with replay files, one a model; and why one could not be written, if so.

    `engine` and `dtype` are as they were asked for: with `mode` and `seed`, what makes the engine again.
    """
    trouble, reports = "", []
    opened = {name: (checkpoint, golden) for name, checkpoint, golden in models}
    for model in report.models:
        reports.append(model)
        if not any(check.status is Status.FAIL for check in model.checks):
            continue
        try:
            checkpoint, golden = opened[model.model]
            context = context_of(open_engine(), checkpoint, mode, open_engine, golden=golden, seed=seed)
        except EngineFault:  # which is what failed
            continue
        kept = _first_shrunk(context, model, progress)
        if kept is None:
            continue
        check, case, finding = kept
        fingerprint = _source(context, model, case).fingerprint()
        replay = Replay(
            engine, dtype, mode, seed, case, fingerprint, check.id, finding.where, finding.message, __version__
        )
        try:
            path = write_replay(replay, folder)
        except OSError as error:
            trouble = f"no replay file was written: {folder}: {error.strerror}"
            continue
        checks = (replace(each, replay=str(path)) if each is check else each for each in model.checks)
        reports[-1] = replace(model, checks=tuple(checks))
    return replace(report, models=tuple(reports)), trouble


def _first_shrunk(
    context: Context, model: ModelReport, progress: Callable[[str], None]
) -> tuple[CheckResult, Case, Finding] | None:
    """The first check whose failure is one of a whole run and shows in a run of its own, the small case, and its
    finding on a fresh engine, as a replay has it."""
    limit = SECONDS[context.large]
    end = time.perf_counter() + limit
    for check in model.checks:
        finding = first_wrong(check.findings)
        case = finding and origin(context, model, check, finding)
        if check.status is not Status.FAIL or not finding or not case:
            continue
        progress(f"{model.model} · {check.id} fails: making it small, {limit:g} s at most")
        op = op_of(finding.where)
        case = shrink(context, case, op, lambda: end - time.perf_counter())
        if case is None:
            continue
        source = _source(context, model, case)
        again = run_case(context.another, case, source, id=check.id, file="", mode=context.mode, seed=context.seed)
        shown = first_wrong([each for result in again.models[0].checks for each in result.findings])
        if shown is not None and op_of(shown.where) == op:
            return check, case, shown
    return None


def _source(context: Context, model: ModelReport, case: Case) -> Checkpoint:
    return context.checkpoint if case.model.source == model.model else source_of(case.model)


def origin(context: Context, model: ModelReport, check: CheckResult, finding: Finding) -> Case | None:
    """What the engine was given when the finding was made; None where that was no plain run of a text."""
    whole = Model(model.model, finer=check.id == "layer.weights")
    compare = COMPARED.get(check.id, "final")
    if finding.given:
        chunk = int(finding.path.removeprefix("chunk:")) if check.id == "path.chunk" else None
        return Case(whole, finding.given.tokens, finding.given.parts, finding.given.start, compare, chunk)
    if check.id in ("layer.isolated", "layer.cumulative") and finding.path:
        tokens = context.layer_tokens
        return Case(whole, tokens, parse_path(finding.path, len(tokens)), compare=compare)
    for trace in context.golden.traces if context.golden and check.id in COMPARED else ():
        if trace.file == finding.path:
            return Case(whole, trace.tokens, parse_path(trace.path, len(trace.tokens)), trace.start, compare)
    return None
