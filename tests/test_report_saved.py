"""A result that was saved is read back as it was, or not at all; and holds what the pictures need."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reported import SAVED, every_verdict, saved

from gander.conformance.compare import Tally
from gander.conformance.results import Finding, Report
from gander.conformance.tenths import ONE, tenths
from gander.errors import InputError
from gander.reports import as_data, read_result, report_as_json, write_result


def without_texts(report: Report) -> Report:
    """What a saved result leaves out: the texts that the engine was given."""

    def bare(finding: Finding) -> Finding:
        return replace(finding, given=None)

    models = tuple(
        replace(m, checks=tuple(replace(c, findings=tuple(map(bare, c.findings))) for c in m.checks))
        for m in report.models
    )
    return replace(report, models=models)


def test_it_is_read_back_as_it_was(tmp_path: Path) -> None:
    """Infinities, missing taps, a diagnosis and all."""
    report = every_verdict()
    write_result(report, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == without_texts(report)


def test_a_run_saves_what_it_prints_as_json(gander: Callable, tmp_path: Path) -> None:
    """With its seed, what it ran on, and the errors of every tap in both views."""
    file = tmp_path / "result.json"
    only = ("--only", "layer.isolated", "--only", "layer.cumulative", "--seed", "3")
    typed = gander("check", "-m", "golden:narrow", *only, "--out", file, "--json")
    assert (typed.status, typed.out) == (0, file.read_text())
    report = read_result(file)
    assert (report.seed, report.command) == (3, "gander check --engine optimized --seed 3")
    assert report.environment.keys() == {"python", "platform", "numpy", "torch"}
    (model,) = report.models
    assert "path.split" in model.applicable
    for check in model.checks:
        assert len(check.errors) * 4 == check.compared  # four ways to cut the tokens
        assert max(each.worst for each in check.errors) == check.worst == max(check.paths.values())
        of_heads = next(each for each in check.errors if each.where == "blocks.0.att.wkv")
        assert of_heads.shape == (130, 5)
        assert tenths(np.array(of_heads.worst)) == bytes([max(of_heads.tenths)])


def spoiled(change: Callable[[dict], None]) -> str:
    data = json.loads(SAVED["green"].read_text())
    change(data)
    return json.dumps(data)


def check_of(data: dict, id: str) -> dict:
    return next(check for check in data["models"][0]["checks"] if check["id"] == id)


def of_check(id: str, **changed: object) -> str:
    return spoiled(lambda data: check_of(data, id).update(changed))


def of_errors(**changed: object) -> str:
    return spoiled(lambda data: check_of(data, "layer.isolated")["errors"][0].update(changed))


WHOLE = SAVED["green"].read_text()
REFUSED = {
    "nothing": ("", "is not JSON"),
    "truncated": (WHOLE[: len(WHOLE) // 2], "is not JSON"),
    "binary": ("\0\1\2", "is not JSON"),
    "deep": ("[" * 100_000, "is not JSON"),
    "a list": ("[]", "is no saved result"),
    "foreign": ('{"schema": 1}', "is no saved result"),
    "later": ('{"schema": "gander.result/9"}', "has the schema 'gander.result/9'"),
    "empty": ('{"schema": "gander.result/1"}', "required field missing"),
    "no models": (spoiled(lambda data: data.pop("models")), "required field missing @ the result.models"),
    "other models": (spoiled(lambda data: data.update(models=3)), "the result.models"),
    "no check": (spoiled(lambda data: data["models"][0]["checks"].append(None)), "the result.models[0].checks[35]"),
    "a check less": (spoiled(lambda data: data["models"][0]["checks"].pop()), "the result.compared"),
    "another verdict": (spoiled(lambda data: data.update(status="FAIL")), "says 'FAIL', but its figures give 'PASS'"),
    "another figure": (of_check("op.gate", compared=1), "the result"),
    "a number for a word": (spoiled(lambda data: data.update(engine=7)), "the result.engine"),
    "a word for a number": (spoiled(lambda data: data.update(seed="7")), "the result.seed"),
    "something else": (spoiled(lambda data: data.update(more=1)), "has 'more'"),
    "another shape": (of_errors(shape=[3]), "the result.models[0].checks[18].errors[0]"),
    "no bytes": (of_errors(tenths="eJx="), "the result.models[0].checks[18].errors[0]"),
    "no base64": (of_errors(tenths="ä"), "the result.models[0].checks[18].errors[0].tenths"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_no_saved_result_is_refused(why: str, gander: Callable, tmp_path: Path) -> None:
    """Truncated, foreign, or written in by hand: a message, never a traceback."""
    text, said = REFUSED[why]
    (tmp_path / "result.json").write_text(text)
    typed = gander("report", tmp_path / "result.json")
    assert (typed.status, typed.out) == (2, "")
    assert said in typed.err
    assert "Traceback" not in typed.err


FIGURES = ("status", "exit", "compared", "expected", "xfail", "xpass", "not_applicable", "models", "environment")


@pytest.mark.parametrize("place", FIGURES)
@pytest.mark.parametrize("value", [None, True, 4, "PASS", [], [{}]])
def test_a_figure_that_was_changed_is_noticed(place: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(as_data(every_verdict()) | {place: value}))
    with pytest.raises(InputError, match="the result"):
        read_result(tmp_path / "result.json")


def test_a_missing_file_is_told(gander: Callable, tmp_path: Path) -> None:
    assert "cannot read" in gander("report", tmp_path / "none.json").err


def test_a_folder_that_is_not_there_is_told_at_once(gander: Callable, tmp_path: Path) -> None:
    typed = gander("check", "-m", "golden:narrow", "--only", "load", "--out", tmp_path / "no" / "result.json")
    assert typed.status == 2
    assert "no folder" in typed.err


@given(st.lists(st.floats(0, 1e30), min_size=1))
def test_no_error_beyond_its_bound_looks_as_if_within(ratios: list[float]) -> None:
    """And a byte is at most a tenth of a decade above what it stands for."""
    for ratio, code in zip(ratios, tenths(np.array(ratios)), strict=True):
        assert (ratio > 1) == (code > ONE)
        if 1e-12 < ratio < 1e12:
            assert ratio <= 10 ** ((code - ONE) / 10) * (1 + 1e-9) < ratio * 10**0.1 * (1 + 1e-6)
    assert tenths(np.array([0.0, np.inf])) == bytes([0, 255])


def test_what_is_kept_of_a_tap_is_the_worst_of_its_paths() -> None:
    tally = Tally(rows={})
    want, bound = np.zeros((3, 2)), np.full(3, 1.0)
    tally.tensor("emb", np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.1]]), want, bound, path="prefill")
    tally.tensor("emb", np.array([[0.0, 2.0], [0.1, 0.0], [0.0, np.nan]]), want, bound, path="step")
    tally.tensor("mid", None, want, bound, path="prefill")
    tally.tensor("out", np.zeros(5), want, bound, path="prefill")
    emb, mid, out = tally.errors
    assert (emb.where, emb.worst, emb.shape, emb.missing) == ("emb", np.inf, (3,), 0)
    assert emb.tenths == tenths(np.array([2.0, 0.5, np.inf]))
    assert (mid.worst, mid.shape, mid.tenths, mid.missing) == (0.0, (), b"", 1)
    assert (out.worst, out.shape) == (np.inf, ())  # of a shape that cannot be compared
    assert tally.paths == {"prefill": np.inf, "step": np.inf}


def test_a_check_that_does_not_ask_keeps_nothing_of_its_rows() -> None:
    tally = Tally()
    tally.tensor("logits", np.zeros((3, 2)), np.zeros((3, 2)), 1.0, path="prefill")
    assert tally.errors == ()


def test_a_certificate_is_made_of_the_same_evidence(gander: Callable, tmp_path: Path) -> None:
    from gander.conformance.certificate import certify, discrepancies

    certificate = json.loads(json.dumps(certify(as_data(saved("green")))))
    assert certificate["level"] == "L3"
    assert not discrepancies(certificate)
    assert json.loads(report_as_json(saved("green"))) == certificate["evidence"]
