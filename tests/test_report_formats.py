"""Every format is made of one saved result, and says what the result says."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import xmlschema
from reported import SAVED, errors, every_verdict, large, saved, with_check

from gander.cli.report import FORMATS
from gander.conformance import checks as _all_checks  # noqa: F401, which enters them into the registry
from gander.conformance.mutants import MUTANTS, TOKENIZERS
from gander.conformance.registry import CHECKS
from gander.conformance.results import Finding, Report
from gander.reports import as_data, read_result, write_result
from gander.reports.badge import as_badge
from gander.reports.changes import FACTOR, changes
from gander.reports.html import as_html
from gander.reports.junit import as_junit
from gander.reports.kills import kills
from gander.reports.markdown import as_markdown
from gander.reports.model_explorer import as_node_data

GREEN = saved("green")
SCHEMA = xmlschema.XMLSchema(Path(__file__).parent / "junit.xsd")


@pytest.mark.parametrize("form", FORMATS)
def test_each_is_made_by_the_command(form: str, gander: Callable, tmp_path: Path) -> None:
    """On stdout, and the same in a file."""
    file = tmp_path / "made"
    printed = gander("report", SAVED["fault"], "--to", form)
    written = gander("report", SAVED["fault"], "--to", form, "-o", file)
    assert (printed.status, written.status, written.out) == (0, 0, "")
    assert "blocks.0.att.norm" in printed.out or form == "badge"
    number = re.compile(r"anybadge_\d+")  # anybadge counts
    assert number.sub("", printed.out) == number.sub("", file.read_text())


def test_json_is_the_saved_result(gander: Callable) -> None:
    assert json.loads(gander("report", SAVED["green"], "--to", "json").out) == json.loads(SAVED["green"].read_text())


# JUnit


@pytest.mark.parametrize("report", [saved("green"), saved("fault"), every_verdict()], ids=["green", "fault", "every"])
def test_junit_is_valid(report: Report) -> None:
    SCHEMA.validate(as_junit(report))


@pytest.mark.parametrize(
    "wrong", ['<testcase time="1"/>', '<testcase name="a"><error/><failure/></testcase>', "<case/>"]
)
def test_the_schema_can_refuse(wrong: str) -> None:
    suite = f'<testsuites><testsuite name="a" tests="1" failures="0" errors="0">{wrong}</testsuite></testsuites>'
    assert not SCHEMA.is_valid(suite)


def test_junit_has_a_case_for_each_check_and_a_verdict_for_each_status() -> None:
    report = every_verdict()
    (suite,) = ElementTree.fromstring(as_junit(report))
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert {name: [verdict.tag for verdict in case] for name, case in cases.items()} == {
        "load.census": [],
        "layer.isolated": ["failure"],
        "path.split": ["error"],
        "path.batch": ["skipped"],
        "path.clone": ["skipped"],
        "path.reset": ["failure"],
    }
    counts = [suite.get(kind) for kind in ("tests", "failures", "errors", "skipped")]
    assert counts == ["6", "2", "1", "2"]
    failure = cases["layer.isolated"].find("failure")
    assert failure is not None and failure.text is not None
    assert "replay: gander check --replay .gander/replays/7f3a06c2.json" in failure.text
    assert "likely: GroupNorm eps 1e-5" in failure.text
    assert str(failure.get("message")).startswith("blocks.0.att.norm · token 12 · path split:5+3: max |Δ| 9.8e-02 <b>")
    about = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert (about["seed"], about["fingerprint"]) == ("7", "ab" * 32)


def test_junit_says_only_what_xml_can_say() -> None:
    """Whatever an engine's message holds."""
    hard = Finding("forward", "raised \x00\x1b[31m \ud800 \uffff ]]> ä")
    report = with_check(every_verdict(), "path.split", findings=(hard,))
    text = as_junit(report)
    SCHEMA.validate(text)
    assert "raised \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[31m" in text


# Markdown


def test_markdown_is_short_where_all_is_well() -> None:
    text = as_markdown(saved("green"))
    assert text.startswith("### ✅ gander: PASS · optimized float32\n")
    assert "| `golden:adversarial` | PASS | 35 | 0 | 0 | 0 | 3639/3639 |" in text
    assert "<details>" not in text
    assert len(text) < 500


def test_markdown_folds_each_failure_with_its_replay() -> None:
    text = as_markdown(every_verdict())
    folded = re.findall(r"<details><summary>(\S+) <b>(\S+)</b>", text)
    assert folded == [
        ("FAIL", "layer.isolated"),
        ("INCOMPLETE", "path.split"),
        ("XFAIL", "path.clone"),
        ("XPASS", "path.reset"),
    ]
    assert text.count("<details>") == text.count("</details>")
    assert "```sh\ngander check --replay .gander/replays/7f3a06c2.json\n```" in text
    assert "Right: `(y − mean) / √(var + 64e-5)`" in text
    assert "does not offer 'batch'" in text
    # What an engine says ends no code and opens no tag.
    (line,) = (line for line in text.splitlines() if line.startswith("- `blocks.0.att.norm"))
    assert re.fullmatch(r"- `[^`]*`: `[^`]*`", line)


# Badge


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (saved("green"), "L3 float32"),
        (saved("fault"), "FAIL float32"),
        (with_check(saved("green"), "op.gate", compared=1), "INCOMPLETE float32"),
        (replace(GREEN, models=(replace(GREEN.models[0], checks=GREEN.models[0].checks[-3:]),)), "PASS float32"),
    ],
    ids=["level", "failure", "incomplete", "of one group"],
)
def test_the_badge_says_the_level_or_the_verdict(report: Report, said: str) -> None:
    svg = ElementTree.fromstring(as_badge(report))
    assert said in "".join(svg.itertext())


# Model Explorer


def test_node_data_has_a_value_for_each_tap_and_a_colour_on_either_side_of_the_bound() -> None:
    graphs = json.loads(as_node_data(every_verdict()))
    (graph,) = graphs.values()
    assert list(graphs) == ["golden:narrow isolated"]
    assert {name: node["value"] for name, node in graph["results"].items()} == {
        "emb": 0.1,
        "blocks.0.att.norm": 1e38,  # infinite
        "blocks.0.att.wkv": 0.9,
        "logits": 1e38,
    }  # and none for what is missing
    limits = [each["value"] for each in graph["thresholds"]]
    assert limits == sorted(limits) and 1 in limits and limits[-1] >= 1e38
    assert len({each["bgColor"] for each in graph["thresholds"]}) == len(limits)


def test_without_taps_there_is_no_node_data(gander: Callable, tmp_path: Path) -> None:
    write_result(with_check(every_verdict(), "layer.isolated", errors=()), tmp_path / "result.json")
    typed = gander("report", tmp_path / "result.json", "--to", "model-explorer")
    assert typed.status == 2
    assert "gander check --only layer --out RESULT.json" in typed.err


# HTML


def test_the_page_asks_for_nothing() -> None:
    page, asked = as_html(saved("fault")), []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list) -> None:
            asked.extend(value for name, value in attributes if name in ("src", "href", "srcset", "action", "data"))

    Reader().feed(page)
    assert asked == ["data:,"]  # the icon
    assert "default-src 'none'" in page
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_the_page_says_what_the_result_says() -> None:
    page = as_html(every_verdict())
    text = re.sub(r"<[^>]+>", " ", page.split("<main>")[1].split("</main>")[0])
    for wanted in (
        "blocks.0.att.norm · token 12 · path split:5+3",
        "(y − mean) / √(var + 64e-5)",
        "gander check --replay .gander/replays/7f3a06c2.json",
        "known failure: our issue &lt;12&gt;",
        "the engine does not offer &#39;batch&#39;",
        "missing: 2",
        "ab" * 32,
        "cd" * 32,
    ):
        assert wanted in text
    assert "<b>`|`</b>" not in page  # of an engine's message


@pytest.mark.parametrize("made", [lambda report: json.dumps(as_data(report), indent=2), as_html], ids=["saved", "page"])
def test_a_large_result_is_not_too_large(made: Callable[[Report], str]) -> None:
    """32 layers, 32 heads, 512 tokens."""
    assert len(made(large()).encode()) < 10e6


def test_the_kills_are_of_the_checks_and_faults_that_there_are() -> None:
    """tests/test_docs.py compares them with docs/kill-matrix.md, which `gander mutants score --page` writes."""
    assert set(kills().checks) - {"tokenizer check"} == CHECKS.keys()
    assert kills().faults.keys() == {mutant.id for mutant in (*MUTANTS, *TOKENIZERS) if not mutant.same}
    assert all(any(kills().signs(check).values()) for check in kills().checks)


# Two results


def test_a_run_is_as_good_as_itself(gander: Callable) -> None:
    typed = gander("report", SAVED["green"], SAVED["green"])
    assert typed.status == 0
    assert typed.out.split() == ["NOT", "WORSE", "0", "worse,", "0", "better,", "0", "moved", "within", "the", "bound"]


def test_a_fault_makes_it_worse_and_its_mending_better(gander: Callable) -> None:
    worse, better = (
        gander("report", *(SAVED[name] for name in pair)) for pair in (("green", "fault"), ("fault", "green"))
    )
    assert (worse.status, better.status) == (1, 0)
    assert "WORSE  golden:adversarial · layer.isolated\n      was PASS, is FAIL\n" in worse.out
    assert re.search(r"^ +blocks.0.att.norm: error ÷ bound 0\.\d+, is \d{4,}$", worse.out, re.MULTILINE)
    assert "BETTER  golden:adversarial · layer.isolated\n      was FAIL, is PASS\n" in better.out
    assert worse.out.splitlines()[-1].startswith("WORSE")
    assert better.out.splitlines()[-1].startswith("NOT WORSE")


def test_every_change_is_in_the_json(gander: Callable) -> None:
    found = json.loads(gander("report", SAVED["green"], SAVED["fault"], "--to", "json").out)
    assert found["worse"] is True
    assert {"model": "golden:adversarial", "check": "path.split", "tap": "", "before": "PASS", "after": "FAIL",
            "better": False, "within": False} in found["changes"]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (0.5, 0.9, []),
        (0.9, 1.1, [(False, False)]),
        (1.1, 0.9, [(True, False)]),
        (0.1, 0.1 * FACTOR, []),
        (0.1, 0.11 * FACTOR, [(False, True)]),
        (10.0, 11.0 * FACTOR, [(False, False)]),
        (10.0, 11.0, []),
        (np.inf, np.inf, []),
        (np.inf, 0.1, [(True, False)]),
    ],
)
def test_a_tap_has_changed_past_its_bound_or_by_a_factor(before: float, after: float, found: list) -> None:
    one, other = (
        with_check(every_verdict(), "layer.isolated", errors=(errors("emb", np.array([ratio])),))
        for ratio in (before, after)
    )
    moved = changes(one, other).found
    assert [(change.better, change.within) for change in moved] == found


def test_what_only_one_of_them_has_is_told() -> None:
    green, hybrid = saved("green"), saved("hybrid")
    apart = changes(green, hybrid)
    assert [line.split()[:3] for line in apart.alone] == [
        ["only", "before:", "golden:adversarial"],
        ["only", "after:", "golden:hybrid"],
    ]
    assert any(line.startswith("engine: optimized float32 before, optimized float32 moba") for line in apart.apart)
    assert not apart.found
    model = green.models[0]
    fewer = replace(green, models=(replace(model, checks=model.checks[1:]),))
    assert changes(green, fewer).alone == ("golden:adversarial: only before: load.census",)


def test_models_are_the_same_by_fingerprint() -> None:
    green = saved("green")
    renamed = replace(green, models=(replace(green.models[0], model="elsewhere/model.pth"),))
    assert not changes(green, renamed).alone
    other = replace(green, models=(replace(green.models[0], fingerprint="00" * 32),))
    assert len(changes(green, other).alone) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [(("green", "green", "green"), "3 results"), (("green", "fault", "--to", "html"), "--to html is of one result")],
)
def test_what_cannot_be_made_is_told(words: tuple[str, ...], said: str, gander: Callable) -> None:
    typed = gander("report", *(SAVED.get(word, word) for word in words))
    assert typed.status == 2
    assert said in typed.err


def test_the_saved_results_are_of_this_schema() -> None:
    assert {read_result(file).version for file in SAVED.values()} == {"0.1.0"}
