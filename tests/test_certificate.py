"""A certificate says what its evidence says, and nothing that was not tested."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gander.conformance.levels import highest, reached

CHECKS = ("load.census", "load.engine", "op.gate", "layer.isolated", "path.start", "path.split")


def check(id: str, status: str = "PASS", **more: object) -> dict:
    figures = {"compared": 3, "expected": 3, "of_bound": 0.5, "findings": []}
    return {"id": id, "status": status, **figures, **more}


def evidence(*checks: dict, applicable: tuple[str, ...] = CHECKS, dtype: str = "float32", mode: str = "") -> dict:
    return {"dtype": dtype, "mode": mode, "models": [{"applicable": applicable, "checks": list(checks)}]}


ALL = [check(id) for id in CHECKS]


def without(id: str) -> list[dict]:
    return [each for each in ALL if each["id"] != id]


def test_every_level_stands_on_the_one_below() -> None:
    assert list(reached(evidence(*ALL)).values()) == [*["reached"] * 4, "not tested"]
    assert highest(reached(evidence(*ALL))) == "L3"
    assert highest(reached(evidence(*without("op.gate")))) == "L0"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_level_4(dtype: str) -> None:
    assert highest(reached(evidence(*ALL, dtype=dtype))) == "L4"


def test_int8_takes_its_own_checks() -> None:
    asked = (*CHECKS, "int8.codes")
    assert reached(evidence(*ALL, applicable=asked, mode="INT8"))["L4"] == "not tested"
    assert reached(evidence(*ALL, check("int8.codes"), applicable=asked, mode="INT8"))["L4"] == "reached"


@pytest.mark.parametrize(
    ("spoiled", "verdict"),
    [
        ({"status": "N/A", "compared": 0, "expected": 0}, "not tested"),
        ({"status": "INCOMPLETE", "compared": 2}, "not tested"),
        ({"compared": 2}, "not tested"),  # the word says PASS, the figures do not
        ({"compared": 0, "expected": 0}, "not tested"),
        ({"of_bound": 1.5}, "not tested"),
        ({"of_bound": None}, "not tested"),
        ({"findings": [{"missing": True}]}, "not tested"),
        ({"findings": [{"missing": False}]}, "failed"),
        ({"status": "FAIL"}, "failed"),
        ({"status": "XFAIL"}, "failed"),
    ],
)
def test_nothing_untested_is_certified(spoiled: dict, verdict: str) -> None:
    levels = reached(evidence(*without("op.gate"), check("op.gate", **spoiled)))
    assert (levels["L1"], highest(levels)) == (verdict, "L0")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the reference itself, on its formulas."""
    import subprocess
    import sys

    file = tmp_path_factory.mktemp("certificate") / "out.json"
    typed = ["check", "-e", "reference", "-m", "golden:narrow", "--only", "load", "--only", "op", "--certificate", file]
    subprocess.run([sys.executable, "-m", "gander", *map(str, typed)], check=True, capture_output=True)
    return file


def test_it_names_what_was_run_and_can_be_recomputed(certificate: Path, gander: Callable, tmp_path: Path) -> None:
    content = json.loads(certificate.read_text())
    assert (content["engine"], content["dtype"], content["level"]) == ("reference", "float64", "L1")
    assert content["levels"]["L2"]["verdict"] == "not tested"
    assert content["command"] == "gander check --engine reference"
    assert {"python", "platform", "numpy", "torch"} == content["environment"].keys()
    typed = gander("verify-certificate", certificate, "--badge", tmp_path / "badge.svg")
    assert typed.status == 0
    assert "level L1" in typed.out
    assert "<svg" in (tmp_path / "badge.svg").read_text()


@pytest.mark.parametrize("key", ["level", "engine", "compared", "sha256", "golden", "checks"])
def test_what_does_not_follow_from_the_evidence_is_told(
    certificate: Path, gander: Callable, tmp_path: Path, key: str
) -> None:
    (tmp_path / "forged.json").write_text(json.dumps(json.loads(certificate.read_text()) | {key: "L4"}))
    typed = gander("verify-certificate", tmp_path / "forged.json", "--badge", tmp_path / "badge.svg")
    assert typed.status == 1
    assert f"{key}: says 'L4'" in " ".join(typed.out.split())
    assert not (tmp_path / "badge.svg").exists()


def test_evidence_that_was_touched_has_another_hash(certificate: Path, gander: Callable, tmp_path: Path) -> None:
    content = json.loads(certificate.read_text())
    content["evidence"]["models"][0]["checks"][3]["compared"] += 1
    (tmp_path / "forged.json").write_text(json.dumps(content))
    typed = gander("verify-certificate", tmp_path / "forged.json")
    assert typed.status == 1
    assert "sha256: says" in typed.out


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 9, "evidence": {}, "sha256": ""}', "\0"])
def test_what_is_no_certificate_is_refused(text: str, gander: Callable, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(text)
    typed = gander("verify-certificate", tmp_path / "file.json")
    assert typed.status == 2
    assert "error: " in typed.err and "Traceback" not in typed.err


def test_evidence_of_nothing_is_told(gander: Callable, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{"schema": 1, "evidence": {}, "sha256": "", "mode": "", "engine": "x"}')
    typed = gander("verify-certificate", tmp_path / "file.json")
    assert typed.status == 1
    assert "the evidence is not that of a run" in typed.out


def test_a_folder_that_is_not_there_is_told_at_once(gander: Callable, tmp_path: Path) -> None:
    typed = gander("check", "-m", "golden:narrow", "--only", "load", "--certificate", tmp_path / "no" / "out.json")
    assert typed.status == 2
    assert "no folder" in typed.err


def test_part_of_a_model_gets_none(gander: Callable, tmp_path: Path) -> None:
    typed = gander("check", "-m", "golden:narrow", "--until", "emb", "--certificate", tmp_path / "out.json")
    assert typed.status == 2
    assert "a port on its way gets no certificate" in typed.err
