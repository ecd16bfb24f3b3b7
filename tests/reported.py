"""Results for the tests of reports: three that were saved, and one made to hold every verdict."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from gander.conformance.results import (
    Cause,
    CheckResult,
    Errors,
    Fault,
    Finding,
    ModelReport,
    Ranked,
    Report,
)
from gander.conformance.tenths import tenths
from gander.reports import read_result

# Of the fast engine, of it with another epsilon in GroupNorm, and of it on the hybrid: what `gander check --out FILE`
# saved, the findings of a check cut to forty.
SAVED = {name: Path(__file__).parent / "results" / f"{name}.json" for name in ("green", "fault", "hybrid")}


def saved(name: str) -> Report:
    return read_result(SAVED[name])


def errors(where: str, ratios: np.ndarray) -> Errors:
    return Errors(where, float(ratios.max()), ratios.shape, tenths(ratios), 0)


def _missing(where: str, path: str) -> Finding:
    return Finding(where, "was not given by the engine", path, missing=True)


def every_verdict() -> Report:
    """A check of each, with what is hard to write in other formats."""
    hard = Finding("blocks.0.att.norm", "max |Δ| 9.8e-02 <b>`|`</b> &", "split:5+3", 12, "isolated: its inputs agree")
    cause = Cause(
        "blocks.0.att.norm",
        12,
        None,
        True,
        (Fault("group_norm.eps_1e-5", "GroupNorm eps 1e-5", "(y − mean) / √(var + 64e-5)", "a <port>"),),
        ("group_norm.eps_1e-6",),
        (Ranked(("group_norm.eps_1e-5",), 0.999, 2.0), Ranked(("wkv7.a", "decay.b"), -3.0, float("inf"))),
    )
    shown = (
        errors("emb", np.full(4, 0.1)),
        errors("blocks.0.att.norm", np.array([0.2, 0.5, 7.0, np.inf])),
        errors("blocks.0.att.wkv", np.linspace(0, 0.9, 8).reshape(4, 2)),
        Errors("blocks.0.mid", 0.0, (), b"", 1),
        Errors("logits", float("inf"), (), b"", 0),
    )
    infinite = float("inf")
    isolated = CheckResult(
        "layer.isolated", 4, 5, infinite, (hard, _missing("blocks.0.mid", "prefill")), 1.0, "4 tokens"
    )
    checks = (
        CheckResult("load.census", 3, 3, 0.0, (), 0.5),
        replace(
            isolated,
            likely="GroupNorm eps 1e-5 (explains 99.9 %)",
            replay=".gander/replays/7f3a06c2.json",
            paths={"prefill": infinite},
            errors=shown,
            cause=cause,
        ),
        CheckResult("path.split", 2, 3, 0.5, (_missing("logits", "step"),), 0.1, paths={"prefill": 0.5, "step": 0.25}),
        CheckResult("path.batch", 0, 0, 0.0, (), 0.0, lacks=("batch", "state")),
        CheckResult("path.clone", 2, 2, 9.0, (Finding("logits", "max |Δ| 1"),), 0.1, xfail="our issue <12>"),
        CheckResult("path.reset", 2, 2, 0.1, (), 0.1, xfail="issue 13"),
    )
    model = ModelReport("golden:narrow", "ab" * 32, checks, tuple(check.id for check in checks))
    return Report(
        "mine",
        "float32",
        "INT8",
        "0.1.0",
        "gander check --engine mine",
        (model,),
        2.0,
        7,
        "cd" * 32,
        {"python": "3.11"},
    )


def with_check(report: Report, id: str, **changed: object) -> Report:
    """The report, with something else in a check of its first model."""
    model = report.models[0]
    checks = tuple(replace(check, **changed) if check.id == id else check for check in model.checks)
    return replace(report, models=(replace(model, checks=checks), *report.models[1:]))


def large(layers: int = 32, tokens: int = 512, heads: int = 32) -> Report:
    """Of a model as large as they come, with the errors that an honest engine has: about a tenth of the bound."""
    from gander.traces.taps import taps

    random = np.random.default_rng(0)

    def drawn(axes: tuple[str, ...]) -> np.ndarray:
        size = (tokens, heads) if "H" in axes else (tokens,)
        return 10 ** random.normal(-1, 0.15, size)

    checks = [
        CheckResult(id, 1, 1, 0.9, (), 60.0, errors=tuple(errors(tap.name, drawn(tap.axes)) for tap in taps(layers)))
        for id in ("layer.isolated", "layer.cumulative")
    ]
    model = ModelReport("model.pth", "ef" * 32, tuple(checks))
    return Report("mine", "float32", "", "0.1.0", "gander check", (model,), 120.0)
