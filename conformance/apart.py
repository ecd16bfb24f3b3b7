"""`gander check` as independent cases, each check of each model one: who runs it opens the model and the engine."""

import hashlib
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

from cattrs.preconf.json import make_converter
from hypothesis.configuration import set_hypothesis_home_dir

from .. import __version__
from ..checkpoint import Checkpoint
from ..golden import GoldenSet, open_model, read_manifest
from ..golden.manifest import MANIFEST, sha256
from .adapters.factory import engine_factory
from .campaign import How, Result, run_cases
from .checks import LOAD_ENGINE
from .context import golden_of
from .engine import Engine
from .environment import environment
from .mode import Mode
from .registry import CHECKS, Check
from .results import CheckResult, ModelReport, Report
from .runner import askable, run, with_not_run
from .until import up_to

__all__ = ["Asked", "run_apart"]

CONVERTER = make_converter()


@dataclass(frozen=True)
class Asked:
    """What `gander check` is asked, but for models and checks."""

    engine: str
    dtype: str | None
    mode: Mode
    seed: int
    golden: Path  # the folder of stored traces
    import_timeout: float
    timeout: float
    until: str | None

    @property
    def make(self) -> Callable[[], Engine]:
        """What makes the engine."""
        return engine_factory(
            self.engine,
            dtype=self.dtype,
            mode=self.mode,
            import_timeout=self.import_timeout,
            timeout=self.timeout,
            until=self.until,
        )


def run_apart(
    asked: Asked,
    models: Sequence[tuple[str, Checkpoint, GoldenSet | None]],
    checks: Sequence[Check],
    *,
    command: str,
    how: How,
    progress: Callable[[str], None] = lambda message: None,
) -> Report:
    """The report of `run`, whoever runs the checks."""
    began = time.perf_counter()
    cases: list[list[str]] = []  # of each model
    for model, checkpoint, golden in models:
        chosen = askable(checkpoint, asked.mode, checks, golden=golden, first=not any(cases))
        cases.append([f"{check.id} {model}" for check in chosen])
    pieces = [[case] for case in dict.fromkeys(case for of_model in cases for case in of_model)]
    if not pieces:  # which it says better
        return run(asked.make, models, checks, command=command, mode=asked.mode, seed=asked.seed)
    of = {
        "command": command,
        "models": ", ".join(checkpoint.fingerprint() for _, checkpoint, _ in models),
        "stored traces": sha256(asked.golden / MANIFEST),
        "engine": _made_of(asked.engine),
    }
    found: dict[str, Result] = {}
    stopped = False
    try:
        for case, result in run_cases(partial(_checked, asked), pieces, how, of=of):
            found[case] = result
            progress(f"{len(found)} of {len(pieces)} · {case}")
    except KeyboardInterrupt:
        if not found:  # there is nothing to report yet
            raise
        stopped = True
    reports: list[ModelReport] = []
    for (model, checkpoint, golden), of_model in zip(models, cases, strict=True):
        if of_model:
            every = askable(checkpoint, asked.mode, list(CHECKS.values()), golden=golden, first=not reports)
            parts = [CONVERTER.structure(found[case]["report"], ModelReport) for case in of_model if case in found]
            results = _in_order([result for part in parts for result in part.checks], checks)
            if stopped:
                results = with_not_run(results, [check for check in checks if f"{check.id} {model}" in of_model])
            of_every = tuple(check.id for check in every)
            reports.append(ModelReport(model, checkpoint.fingerprint(), results, of_every))
    engine, dtype = next(iter(found.values()))["engine"]
    return Report(
        engine,
        dtype,
        str(asked.mode),
        __version__,
        command,
        tuple(reports),
        time.perf_counter() - began,
        asked.seed,
        stopped=stopped,
        environment=environment(),
    )


def _in_order(results: Sequence[CheckResult], checks: Sequence[Check]) -> tuple[CheckResult, ...]:
    """In the order of the checks, with what was found on the way from opening to closing once."""
    by_id = {result.id: result for result in results}
    asked = [check.id for check in checks]
    order = dict.fromkeys([*asked, "load.close"] if LOAD_ENGINE in asked else [LOAD_ENGINE, *asked, "load.close"])
    return tuple(by_id[id] for id in order if id in by_id)


def _made_of(engine: str) -> str:
    """SHA-256 of the files that an engine's name leads to: its module or package, or those on a program's line."""
    files: list[Path] = []
    if engine.startswith("cmd:"):
        files = [Path(word) for word in shlex.split(engine.removeprefix("cmd:"))]
    elif engine.startswith("py:"):
        if "" not in sys.path:
            sys.path.insert(0, "")  # as foreign.py has it, which imports the module later
        found = find_spec(engine.split(":")[1].partition(".")[0])
        for folder in (found.submodule_search_locations or ()) if found else ():
            files += sorted(Path(folder).rglob("*.py"))
        files += [Path(found.origin)] if found and found.origin else []
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes() if file.is_file() else b"")
    return digest.hexdigest()


def _checked(asked: Asked, cases: Sequence[str]) -> dict[str, Result]:
    """In whatever process."""
    set_hypothesis_home_dir(Path(tempfile.gettempdir(), "gander-hypothesis"))
    return {case: _one(asked, *case.split(" ", 1)) for case in cases}


def _one(asked: Asked, id: str, model: str) -> Result:
    checks = [CHECKS[id]] if asked.until is None else up_to(asked.until, [CHECKS[id]])
    opened = [(model, *_opened(model, asked.golden, asked.mode))]
    report = run(asked.make, opened, checks, command="", mode=asked.mode, seed=asked.seed)
    if report.stopped:  # a case is done or not
        raise KeyboardInterrupt
    of_model = CONVERTER.unstructure(report.models[0])
    return {"engine": [report.engine, report.dtype], "report": of_model}


@lru_cache(maxsize=1)  # several cases of one model come one after the other
def _opened(model: str, golden: Path, mode: Mode) -> tuple[Checkpoint, GoldenSet | None]:
    checkpoint = open_model(model)
    return checkpoint, golden_of(read_manifest(golden), checkpoint, mode)
