"""`gander check` as independent cases, each check of each model one: who runs it opens the model and the engine."""

import hashlib
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from .results import ModelReport, Report
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
    reports: list[ModelReport] = []  # without results yet
    for model, checkpoint, golden in models:
        applicable = askable(checkpoint, asked.mode, golden=golden, first=not reports)
        if any(check.id in applicable for check in checks):
            reports.append(ModelReport(model, checkpoint.fingerprint(), (), applicable))
    cases = {
        f"{check.id} {report.model}": None for report in reports for check in checks if check.id in report.applicable
    }
    pieces = [[case] for case in cases]
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
    engine, dtype = next(iter(found.values()))["engine"]
    return Report(
        engine,
        dtype,
        str(asked.mode),
        __version__,
        command,
        tuple(_joined(report, checks, found) for report in reports),
        time.perf_counter() - began,
        asked.seed,
        stopped=stopped,
        environment=environment(),
    )


def _joined(report: ModelReport, checks: Sequence[Check], found: Mapping[str, Result]) -> ModelReport:
    """The report with the results of its cases, in the order of the checks; what was found on the way from opening to
    closing stands in it once."""
    chosen = [check for check in checks if check.id in report.applicable]
    ids = [check.id for check in chosen]
    done = [found[case] for id in ids if (case := f"{id} {report.model}") in found]
    parts = [CONVERTER.structure(result["report"], ModelReport) for result in done]
    by_id = {result.id: result for part in parts for result in part.checks}
    order = dict.fromkeys([*ids, "load.close"] if LOAD_ENGINE in ids else [LOAD_ENGINE, *ids, "load.close"])
    return replace(report, checks=with_not_run([by_id[id] for id in order if id in by_id], chosen))


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
