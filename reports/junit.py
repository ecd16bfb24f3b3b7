"""The report as JUnit XML, which CI servers read: a test suite for each model, a test case for each check."""

import re

from junitparser import Error, Failure, Skipped
from junitparser.xunit2 import JUnitXml, TestCase, TestSuite

from ..conformance.results import CheckResult, ModelReport, Report, Status
from .words import lacking, place, repeat, said, title

__all__ = ["as_junit"]

FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(report: Report) -> str:
    """FAIL and XPASS are failures, INCOMPLETE is an error, N/A and XFAIL are skipped."""
    whole = JUnitXml("gander")
    for model in report.models:
        suite = TestSuite(_plain(f"{title(report)} · {model.model}"))
        about = {
            "gander": report.version,
            "model": model.model,
            "fingerprint": model.fingerprint,
            "command": report.command,
            "seed": str(report.seed),
            "golden": report.golden,
            **report.environment,
        }
        for name, value in about.items():
            suite.add_property(name, _plain(value))
        for check in model.checks:
            suite.add_testcase(_case(report, model, check))
        whole.add_testsuite(suite)
    whole.update_statistics()
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{whole.tostring().decode("utf-8")}'


def _case(report: Report, model: ModelReport, check: CheckResult) -> TestCase:
    case = TestCase(check.id, _plain(f"gander.{model.model}"), round(check.seconds, 3))
    if check.status in (Status.FAIL, Status.INCOMPLETE):
        kind = Failure if check.status is Status.FAIL else Error
        result = kind(_plain(_headline(check)), check.status)
        result.text = _plain(_text(report, model, check))
        case.result = [result]
    elif check.status is Status.XPASS:
        message = f"passes, but is listed as a known failure: {check.xfail}"
        case.result = [Failure(_plain(message), check.status)]
    elif check.status is Status.XFAIL:
        case.result = [Skipped(_plain(f"known failure: {check.xfail}"), check.status)]
    elif check.status is Status.NOT_APPLICABLE:
        case.result = [Skipped(_plain(f"the engine does not offer {lacking(check.lacks)}"), check.status)]
    return case


def _headline(check: CheckResult) -> str:
    if not check.findings:
        return check.note or f"compared {check.compared}/{check.expected} tensors"
    return f"{place(check.findings[0])}: {said(check.findings[0])}"


def _text(report: Report, model: ModelReport, check: CheckResult) -> str:
    lines = [f"{place(finding)}: {said(finding)}" for finding in check.findings]
    lines += [f"likely: {check.likely}"] if check.likely else []
    command = repeat(report, model, check)
    return "\n".join(lines + ([f"replay: {command}"] if command else []))


def _plain(text: str) -> str:
    """Without what XML cannot say: an engine's message may hold anything."""
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
