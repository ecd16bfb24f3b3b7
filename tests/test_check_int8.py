"""`gander check --quantize`: the right engine passes, and each wrong one is found and named by its check."""

import json
from collections.abc import Callable

import pytest
import torch
from made import model, save


@pytest.fixture
def check(gander: Callable) -> Callable:
    """`gander check --quantize --json` of a class of tests/misquantising.py; the checks by id, and the exit status."""

    def run(engine: str, *only: str, model: str = "golden:adversarial") -> tuple[dict, int]:
        options = [word for id in only for word in ("--only", id)]
        typed = gander("check", "--quantize", "-m", model, "-e", engine, "--json", "--brief", *options)
        assert typed.err == ""
        return {check["id"]: check for check in json.loads(typed.out)["models"][0]["checks"]}, typed.status

    return run


@pytest.mark.parametrize("engine", ["optimized", "reference", "py:misquantising:Slow", "py:misquantising:ScaleOne"])
def test_a_right_engine_passes(check: Callable, engine: str) -> None:
    checks, status = check(engine, "int8")
    assert status == 0, [finding for c in checks.values() for finding in c["findings"]]
    assert list(checks) == ["int8.codes", "int8.sums", "int8.projections", "int8.cost"]
    note = checks["int8.cost"]["note"]
    assert "300 forced tokens: KL 1." in note and "top-1" in note and "perplexity" in note


# Class, the check that finds it, where, what is said, and whose codes or products they are.
FAULTY = [
    ("HalfAway", "int8.codes", "quantise_rows: codes", "should be", "codes of rounding half away from zero"),
    ("HalfAway", "int8.sums", "int8_linear: sums", "should be", ""),
    ("HalfAway", "int8.sums", "int8_linear: y", "max |Δ|", "product of rounding half away from zero"),
    ("Truncates", "int8.codes", "quantise_rows: codes", "should be", "codes of rounding toward zero"),
    ("Reciprocal", "int8.codes", "quantise_rows: codes", "should be", "codes of multiplying by 1 / scale"),
    ("PerTensor", "int8.codes", "quantise_rows: codes", "should be", "codes of one scale for all rows"),
    (
        "PerTensor",
        "int8.projections",
        "blocks.0.att.r",
        "max |Δ|",
        "product of one scale for all rows (of the weights)",
    ),
    ("PerTensor", "int8.cost", "logits", "mean KL", ""),
    ("PerColumn", "int8.codes", "quantise_rows: codes", "should be", "codes of a scale for each column"),
    ("SharedActivationScale", "int8.codes", "quantise_vector: codes", "should be", "codes of one scale for all rows"),
    ("SharedActivationScale", "int8.projections", "blocks.0.att.r", "max |Δ|", "one scale for all rows (of the act"),
    ("SharedActivationScale", "int8.cost", "logits", "mean KL", ""),
    ("MinusOneTwentyEight", "int8.codes", "quantise_rows: codes", "should be", "codes of the scale max / 128"),
    ("SevenBits", "int8.cost", "logits", "mean KL", ""),
    ("NoGuard", "int8.codes", "quantise_rows: codes", "nan, but should be 0", ""),
    ("FloatActivations", "int8.sums", "int8_linear: y", "max |Δ|", "product of activations that are not quantised"),
    ("FloatActivations", "int8.projections", "blocks.0.att.r", "max |Δ|", "activations that are not quantised"),
    ("NotQuantised", "int8.projections", "blocks.0.att.r", "max |Δ|", "product of matrices that are not quantised"),
    ("SumsOf16Bits", "int8.sums", "int8_linear: sums", "should be", ""),
    ("SumsOfFloat32", "int8.sums", "int8_linear: sums", "should be 66048255", ""),
    ("SwallowsNan", "int8.sums", "int8_linear: y", "should be NaN for the token that holds one", ""),
    ("QuantisesLora", "int8.projections", "blocks.0.att.w", "is made with quantised matrices", ""),
    ("QuantisesEmbedding", "int8.projections", "emb", "is made with quantised matrices", ""),
    ("CodesAsText", "int8.codes", "quantise_rows: codes", "should be an array of integers of shape", ""),
]


@pytest.mark.parametrize("fault", FAULTY, ids=[f"{row[0]}-{row[1]}" for row in FAULTY])
def test_fault_is_named(check: Callable, fault: tuple[str, str, str, str, str]) -> None:
    name, id, where, message, hint = fault
    checks, status = check(f"py:misquantising:{name}", id)
    assert status == 1
    findings = [finding for finding in checks[id]["findings"] if finding["where"] == where]
    assert findings, checks[id]["findings"]
    assert message in findings[0]["message"]
    assert hint in findings[0]["hint"]


def test_what_is_right_is_not_blamed(check: Callable) -> None:
    """Only LoRA pairs are wrong, so their four taps are all that is named."""
    checks, _ = check("py:misquantising:QuantisesLora", "int8.codes", "int8.sums", "int8.projections")
    blamed = {finding["where"].split(".", 2)[2] for finding in checks["int8.projections"]["findings"]}
    assert blamed == {"att.w", "att.a", "att.g", "att.v_mix"}
    assert checks["int8.codes"]["status"] == checks["int8.sums"]["status"] == "PASS"


def test_what_is_not_given_is_incomplete(check: Callable) -> None:
    checks, status = check("py:misquantising:GivesNoSums", "int8.sums")
    assert status == 2
    assert {finding["where"] for finding in checks["int8.sums"]["findings"]} == {"int8_linear: sums"}
    checks, status = check("py:misquantising:NoInt8", "int8")
    assert status == 2
    assert checks["int8.codes"]["status"] == "INCOMPLETE"


def test_a_tap_that_some_calls_do_not_show_is_incomplete(check: Callable) -> None:
    """Alone, behind a call that shows it (7 + 5 tokens), and in every way to cut 6 tokens."""
    ids = ("path.length", "path.clone", "path.split")
    checks, status = check("py:misquantising:ShowsLess", *ids, model="golden:narrow")
    assert status == 2
    for id in ids:
        findings = checks[id]["findings"]
        assert {finding["where"] for finding in findings} == {"blocks.0.att.xk"}
        assert all("was not given" in finding["message"] for finding in findings)


def test_int8_is_checked_when_asked_for_alone(gander: Callable) -> None:
    """An engine that is not quantised has nothing to show."""
    typed = gander("check", "-m", "golden:narrow", "--only", "int8.codes", "--only", "load.engine", "--json")
    assert [check["id"] for check in json.loads(typed.out)["models"][0]["checks"]] == ["load.engine"]
    typed = gander("check", "-m", "golden:narrow", "--only", "int8")
    assert typed.status == 2
    assert "for int8.*, --quantize" in typed.err


def test_weights_of_nan_are_refused(gander: Callable, tmp_path) -> None:
    tensors = dict(model().tensors)
    name = "blocks.1.ffn.key.weight"
    tensors[name] = tensors[name].clone()
    tensors[name][5, 3] = torch.nan
    typed = gander("check", "--quantize", "-m", save(tmp_path, tensors))
    assert typed.status == 2
    assert name in typed.err and "1 NaN" in typed.err
    assert "Traceback" not in typed.err
