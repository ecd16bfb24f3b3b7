"""The report as plain data, for JSON: everything that the other reports show, and every finding. And read back."""

import json
import math
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cattrs import Converter, transform_error
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from ..conformance.results import CheckResult, Finding, ModelReport, Report, Status, replay
from ..errors import InputError
from ..files import output, read_object

__all__ = ["SCHEMA", "as_data", "read_result", "report_as_json", "write_result"]

SCHEMA = "gander.result/1"
MADE_BY = "a file that gander check --out wrote"
LARGEST = 1 << 26  # bytes of one tap's errors: what claims more was not written by gander

SECONDS = override(unstruct_hook=lambda seconds: round(seconds, 3))
# How an entry is called in the file, if not as in the result; what is inside of others comes first.
NAMES: Mapping[type, dict[str, Any]] = {
    Finding: {"given": override(omit=True)},  # a text for each of hundreds, which the replay file has
    CheckResult: {"worst": override(rename="of_bound"), "replay": override(rename="kept"), "seconds": SECONDS},
    Report: {"version": override(rename="gander"), "seconds": SECONDS},
}


def _converter() -> Converter:
    converter = Converter()
    # JSON has no infinity.
    converter.register_unstructure_hook(float, lambda x: x if math.isfinite(x) else None)
    converter.register_structure_hook(float, lambda x, _: math.inf if x is None else float(x))
    converter.register_unstructure_hook(bytes, lambda x: b64encode(zlib.compress(x, 9)).decode())
    converter.register_structure_hook(bytes, lambda x, _: _unpacked(x))
    for kind, names in NAMES.items():
        converter.register_unstructure_hook(kind, make_dict_unstructure_fn(kind, converter, **names))
        converter.register_structure_hook(kind, make_dict_structure_fn(kind, converter, **names))
    return converter


def _unpacked(text: str) -> bytes:
    return zlib.decompressobj().decompress(b64decode(text, validate=True), LARGEST)


CONVERTER = _converter()


def as_data(report: Report) -> dict[str, Any]:
    """A report as dictionaries, lists, strings and numbers; and what follows from them, for who reads the file."""
    data = CONVERTER.unstructure(report)
    models = [
        {
            **data_of,
            "status": model.status,
            "checks": [_check(*pair, report, model) for pair in _checks(data_of, model)],
        }
        for data_of, model in zip(data.pop("models"), report.models, strict=True)
    ]
    return {
        "schema": SCHEMA,
        **data,
        "status": report.status,
        "exit": report.status.exit_code,
        "compared": report.compared,
        "expected": report.expected,
        "xfail": report.count(Status.XFAIL),
        "xpass": report.count(Status.XPASS),
        "not_applicable": report.count(Status.NOT_APPLICABLE),
        "models": models,
    }


def _checks(data: Mapping[str, Any], model: ModelReport) -> list[tuple[dict[str, Any], CheckResult]]:
    return list(zip(data["checks"], model.checks, strict=True))


def _check(data: Mapping[str, Any], check: CheckResult, report: Report, model: ModelReport) -> dict[str, Any]:
    return {**data, "status": check.status, "replay": replay(report, model, check)}


def report_as_json(report: Report) -> str:
    """The same as text."""
    return json.dumps(as_data(report), indent=2, ensure_ascii=False)


def write_result(report: Report, path: Path) -> None:
    """Save it, whole or not at all."""
    with output(path) as partial:
        partial.write_text(report_as_json(report) + "\n", encoding="utf-8")


def read_result(path: Path) -> Report:
    """A report that was saved. InputError says what is wrong with a file that holds none, or not the one it was."""
    data = read_object(path, SCHEMA, what="saved result", made_by=MADE_BY)
    try:
        report = CONVERTER.structure(data, Report)
        written = json.loads(report_as_json(report))
    except Exception as error:  # of whatever kind a file that was not written by gander leads to
        wrong = transform_error(error, path="the result")[0]
        raise InputError(f"{path}: {wrong}", expected=f"the whole of {MADE_BY}, as it was written") from error
    if place := _parted(data, written, "the result"):
        raise InputError(f"{path}: {place}", expected=f"the whole of {MADE_BY}, as it was written")
    return report


def _parted(got: object, want: object, place: str) -> str:
    """Where what is in the file parts from what follows from its figures; nothing, if it does not."""
    if isinstance(got, dict) and isinstance(want, dict) and got.keys() == want.keys():
        # A tap's errors were unpacked, and another machine may pack the same bytes otherwise.
        parted = (_parted(got[key], want[key], f"{place}.{key}") for key in want if key != "tenths")
    elif isinstance(got, dict) and isinstance(want, dict):
        lacks, has = sorted(want.keys() - got.keys()), sorted(got.keys() - want.keys())
        return f"{place} lacks {lacks[0]!r}" if lacks else f"{place} has {has[0]!r}, which is none of its entries"
    elif isinstance(got, list) and isinstance(want, list) and len(got) == len(want):
        parted = (_parted(*pair, f"{place}[{i}]") for i, pair in enumerate(zip(got, want, strict=True)))
    elif type(got) is type(want) and got == want:
        return ""
    else:
        return f"{place} says {str(got)[:40]!r}, but its figures give {str(want)[:40]!r}"
    return next(filter(None, parted), "")
