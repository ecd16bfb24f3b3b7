"""The HTML report in a real browser: Chromium, without a window and without a network.

The pictures of the docs come from here. One that is there is left as it is: delete it, and it is made anew.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Error, Locator, Page, sync_playwright
from reported import every_verdict, large, saved

from gander.conformance.results import Report
from gander.reports.html import as_html

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDE, PHONE = {"width": 1280, "height": 1000}, {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        try:
            root = ["--no-sandbox"] if os.geteuid() == 0 else []
            opened = playwright.chromium.launch(executable_path=program, args=root)
        except Error as missing:
            pytest.skip(
                f"no Chromium to open the page in (apt-get install chromium): {missing.message.splitlines()[0]}"
            )
        yield opened
        opened.close()


class Opened(NamedTuple):
    page: Page
    said: list[str]  # on the console
    asked: list[str]  # of the network


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """A report's page; at the end, that it asked for nothing and complained of nothing."""
    pages: list[Opened] = []

    def open_page(report: Report, address: str = "", *, scheme: str = "light", size: dict[str, int] = WIDE) -> Opened:
        file = tmp_path / f"report{len(pages)}.html"
        file.write_text(as_html(report), encoding="utf-8")
        page = browser.new_page(viewport=size, color_scheme=scheme)
        opened = Opened(page, [], [])
        page.on("console", lambda message: opened.said.append(message.text))
        page.on("pageerror", lambda error: opened.said.append(str(error)))
        page.on("request", lambda request: opened.asked.append(request.url))
        pages.append(opened)
        page.goto(file.as_uri() + address)
        if any(each.errors for model in report.models for each in model.checks):
            page.wait_for_function("() => document.body.dataset.drawn")
        return opened

    yield open_page
    for opened in pages:
        assert opened.said == []
        assert [url for url in opened.asked if not url.startswith(("file:", "data:"))] == []
        opened.page.close()


def drawn(page: Page) -> None:
    """Until what was chosen is drawn."""
    page.wait_for_function("() => document.body.dataset.drawn === location.hash")


def cell(page: Page, tap: str) -> Locator:
    return page.locator(f'section:not([hidden]) [data-figure=map] path[aria-label^="{tap}: "]').first


SHOTS = {"green": saved("green"), "fault": saved("fault"), "hybrid": saved("hybrid")}


@pytest.mark.parametrize("name", SHOTS)
def test_it_opens_and_is_photographed(name: str, opened: Callable[..., Opened], tmp_path: Path) -> None:
    report = SHOTS[name]
    page = opened(report).page
    assert page.locator("h1").inner_text().split()[1] == report.status
    (isolated,) = (check for check in report.models[0].checks if check.id == "layer.isolated")
    # A mark for each tap, but for the four that are drawn over others: hatches, crosses, the chosen one, the legend.
    assert page.locator("[data-figure=map] .layer_0_marks path").count() == len(isolated.errors)
    picture = page.screenshot(clip={"x": 0, "y": 0, "width": 1280, "height": 1250}, full_page=True)
    assert len(picture) > 50_000
    if not (IMAGES / f"report-{name}.png").exists():
        (IMAGES / f"report-{name}.png").write_bytes(picture)


def test_a_cell_says_its_figure_and_is_chosen(opened: Callable[..., Opened]) -> None:
    page = opened(saved("fault")).page
    wrong = cell(page, "blocks.2.att.norm")
    wrong.hover(force=True)  # on the × that is drawn over it
    tooltip = page.locator("#vg-tooltip-element.visible")
    assert "blocks.2.att.norm" in tooltip.inner_text() and "error ÷ bound" in tooltip.inner_text()
    wrong.click(force=True)
    page.wait_for_function("() => location.hash.includes('blocks.2.att.norm')")
    assert page.locator("[data-name]").inner_text() == "blocks.2.att.norm"
    assert "beyond it at 130 of 130 tokens, first at 0" in page.locator("[data-status]").inner_text()


def test_what_is_beyond_its_bound_has_a_mark_and_not_only_a_colour(opened: Callable[..., Opened]) -> None:
    page = opened(saved("fault")).page
    (isolated,) = (check for check in saved("fault").models[0].checks if check.id == "layer.isolated")
    beyond = [each for each in isolated.errors if each.worst > 1]
    assert page.locator("[data-figure=map] text", has_text="×").count() == len(beyond) > 0
    assert page.locator("[data-figure=map] path[fill='url(#hatch)']").count() == 0


def test_what_is_missing_is_hatched_and_counted(opened: Callable[..., Opened]) -> None:
    page = opened(every_verdict()).page
    assert page.locator("[data-figure=map] path[fill='url(#hatch)']").count() == 1
    assert "missing: 2" in page.locator(".legend").inner_text()


def test_the_address_leads_to_a_cell(opened: Callable[..., Opened]) -> None:
    """What someone sends to someone else."""
    page = opened(saved("fault"), "#golden%3Aadversarial/cumulative/blocks.1.att.wkv/17").page
    drawn(page)
    assert page.locator("[data-name]").inner_text() == "blocks.1.att.wkv"
    assert page.locator(".switch input:checked").input_value() == "cumulative"
    assert "token 17: " in page.locator("[data-status]").inner_text()
    page.evaluate("location.hash = '#golden%3Aadversarial/isolated/emb/3'")
    page.wait_for_function("() => document.querySelector('[data-name]').textContent === 'emb'")


def test_an_address_of_nothing_does_no_harm(opened: Callable[..., Opened]) -> None:
    page = opened(saved("green"), "#golden%3Anone/x/y/z").page
    assert page.locator("[data-name]").inner_text().startswith("blocks.")


def test_the_switch_and_the_keys(opened: Callable[..., Opened]) -> None:
    """All that the mouse does, the keyboard does."""
    page = opened(saved("green"), "#golden%3Aadversarial/isolated/blocks.1.att.r/5").page
    drawn(page)
    page.locator("[data-figure=map]").focus()
    for key, tap in (("ArrowDown", "blocks.1.att.w"), ("ArrowRight", "blocks.2.att.w"), ("ArrowUp", "blocks.2.att.r")):
        page.keyboard.press(key)
        page.wait_for_function("tap => location.hash.includes(tap + '/')", arg=tap)
    page.locator("[data-figure=tokens]").focus()
    before = int(page.evaluate("location.hash.split('/').pop()"))
    page.keyboard.press("ArrowLeft" if before else "ArrowRight")
    page.wait_for_function("token => location.hash.endsWith('/' + token)", arg=before - 1 if before else 1)
    page.locator(".switch input[value=isolated]").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('/cumulative/')")
    assert page.locator("[data-figure=map]").get_attribute("role") == "application"


def test_checks_are_filtered(opened: Callable[..., Opened]) -> None:
    page = opened(every_verdict()).page
    rows, count = page.locator(".checks tbody tr:visible"), page.locator("[data-count]")
    assert (rows.count(), count.inner_text()) == (6, "6 of 6 checks")
    page.locator("[data-unpassed]").check()
    assert (rows.count(), count.inner_text()) == (5, "5 of 6 checks")
    page.locator("[data-filter]").fill("path xfail")
    assert [row.locator("td").first.inner_text() for row in rows.all()] == ["path.clone"]


def test_a_replay_is_copied(opened: Callable[..., Opened]) -> None:
    page = opened(every_verdict()).page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.locator(".failure [data-copy]").first
    assert button.get_attribute("data-copy") == "gander check --replay .gander/replays/7f3a06c2.json"
    button.click()
    page.wait_for_function("() => document.querySelector('.failure [data-copy]').textContent === 'copied'")
    assert page.evaluate("navigator.clipboard.readText()") == "gander check --replay .gander/replays/7f3a06c2.json"


def test_models_are_in_tabs(opened: Callable[..., Opened]) -> None:
    green, hybrid = saved("green"), saved("hybrid")
    page = opened(replace(green, models=green.models + hybrid.models)).page
    tab = page.get_by_role("tab", name="golden:hybrid")
    assert page.locator("section.model:visible h2").inner_text().startswith("golden:adversarial")
    tab.click()
    page.wait_for_function("() => location.hash.startsWith('#golden%3Ahybrid')")
    assert page.locator("section.model:visible h2").inner_text().startswith("golden:hybrid")
    assert tab.get_attribute("aria-selected") == "true"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_ink_and_paper_are_far_apart(scheme: str, opened: Callable[..., Opened]) -> None:
    """Contrast of text, verdicts and notes with the page, in both schemes: 4.5 is WCAG's AA."""
    page = opened(every_verdict(), scheme=scheme).page
    colours = page.evaluate("""() => {
        const probe = document.body.appendChild(document.createElement('i'));
        const names = ['paper', 'panel', 'ink', 'soft', 'pass', 'fail', 'open', 'link'];
        return Object.fromEntries(names.map(name => {
            probe.style.color = `var(--${name})`;
            return [name, getComputedStyle(probe).color.match(/\\d+/g).map(Number)];
        }));
    }""")

    def luminance(colour: list[int]) -> float:
        parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    for ground in ("paper", "panel"):
        for name in ("ink", "soft", "pass", "fail", "open", "link"):
            low, high = sorted(luminance(colours[each]) for each in (ground, name))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ground, name)


@pytest.mark.parametrize("report", [saved("fault"), large(4, 64, 4)], ids=["fault", "honest"])
def test_a_phone_shows_it_without_scrolling_sideways(report: Report, opened: Callable[..., Opened]) -> None:
    page = opened(report, size=PHONE).page
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_large_model_is_drawn_and_chosen_from(opened: Callable[..., Opened]) -> None:
    """32 layers, 32 heads, 512 tokens: 16384 cells of one tap."""
    page = opened(large(), "#model.pth/isolated/blocks.31.att.wkv/511").page
    drawn(page)
    assert page.locator("[data-figure=map] .layer_0_marks path").count() == 32 * 27 + 3
    assert page.locator("[data-figure=tokens] canvas").count() == 1
    assert "token 511: 0." in page.locator("[data-status]").inner_text()


def test_a_result_without_taps_has_no_figures(opened: Callable[..., Opened]) -> None:
    report = every_verdict()
    checks = tuple(replace(check, errors=()) for check in report.models[0].checks)
    page = opened(replace(report, models=(replace(report.models[0], checks=checks),))).page
    assert page.locator("[data-figure]").count() == 0
    assert page.locator(".checks tbody tr").count() == 6
