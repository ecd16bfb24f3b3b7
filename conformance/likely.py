"""After a run that failed: the known fault that explains what the engine shows, for each model."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..checkpoint import Checkpoint
from ..errors import InputError
from ..golden import GoldenSet
from .diagnosis import Diagnosis, diagnose
from .engine import Engine
from .guard import EngineFault
from .kept import origin
from .mode import Mode
from .mutants import MUTANTS
from .results import Cause, Fault, ModelReport, Ranked, Report, Status
from .runner import context_of, one_thread_if_small
from .tracing import trace

__all__ = ["said", "with_likely"]

SHOWN = 5  # of the ranking


def with_likely(
    report: Report,
    models: Sequence[tuple[str, Checkpoint, GoldenSet | None]],
    open_engine: Callable[[], Engine],
    *,
    mode: Mode,
    seed: int,
    progress: Callable[[str], None] = lambda message: None,
) -> Report:
    """The report, in which the first failure of each model has its diagnosis. A large model's would take minutes: that
    is left to `gander diagnose`."""
    reports, opened = [], {name: (checkpoint, golden) for name, checkpoint, golden in models}
    for each in report.models:
        first = next((check for check in each.checks if check.status is Status.FAIL), None)
        try:
            found = first and _diagnosis(each, *opened[each.model], open_engine, mode, seed, progress)
        except (EngineFault, InputError):  # which is what failed
            found = None
        checks = (
            replace(check, likely=said(found), cause=_cause(found)) if check is first and found else check
            for check in each.checks
        )
        reports.append(replace(each, checks=tuple(checks)))
    return replace(report, models=tuple(reports))


def _diagnosis(
    model: ModelReport,
    checkpoint: Checkpoint,
    golden: GoldenSet | None,
    open_engine: Callable[[], Engine],
    mode: Mode,
    seed: int,
    progress: Callable[[str], None],
) -> Diagnosis | None:
    """Of the text on which a check failed, or else of the layer checks' in three calls."""
    context = context_of(open_engine(), checkpoint, mode, open_engine, golden=golden, seed=seed)
    if context.large:
        return None
    tokens = context.layer_tokens
    half = len(tokens) // 2
    text, parts, start = tokens, [half, 1, len(tokens) - half - 1], "zero"
    for check in model.checks:
        case = check.findings and origin(context, model, check, check.findings[0])
        if check.status is Status.FAIL and case and not case.start.startswith("finer"):
            text, parts, start = case.tokens, list(case.parts), case.start
            break

    def tell(detail: str) -> None:
        progress(f"{model.model} · looking for the fault · {detail}")

    with one_thread_if_small(context):
        shown = trace(open_engine(), checkpoint, text, tuple(parts), start, mode)
        found = diagnose(shown, checkpoint, MUTANTS, progress=tell)
    return None if found.agrees else found


def said(diagnosis: Diagnosis) -> str:
    """The verdict in a line."""
    if diagnosis.found is None:
        return f"none of the known faults (first wrong: {diagnosis.where})"
    faults = "; and ".join(mutant.fault for mutant in diagnosis.found.mutants)
    alike = f"; or one of {len(diagnosis.alike)} others that look the same here" if diagnosis.alike else ""
    return f"{faults} (explains {min(100 * diagnosis.found.explains, 99.9):.1f} % of the difference{alike})"


def _cause(diagnosis: Diagnosis) -> Cause:
    """The verdict and its evidence, as plain data."""
    found = diagnosis.found
    return Cause(
        diagnosis.where,
        diagnosis.token,
        diagnosis.head,
        diagnosis.alone,
        tuple(Fault(each.id, each.fault, each.right, each.seen) for each in (found.mutants if found else ())),
        tuple(mutant.id for mutant in diagnosis.alike),
        tuple(
            Ranked(tuple(mutant.id for mutant in each.mutants), each.explains, each.left)
            for each in diagnosis.ranking[:SHOWN]
        ),
    )
