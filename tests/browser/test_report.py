"""The report as people see it: in headless Chromium, opened from disk."""

import re
import shutil

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from mcover.lab.studies import Inline, Store, find_study, run
from mcover.lab.studies.report import write_report

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
STUDIES = ("table-1", "loading", "costs")
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    with Store(folder / "s.sqlite") as store:
        for name in STUDIES:
            run(find_study(name).plan("smoke"), store, Inline())
        return write_report(store.rows(), folder / "report.html")


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    assert path is not None, "no chromium here; 'make test-browser' installs it"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(params=["light", "dark"])
def scheme(request):
    return request.param


@pytest.fixture
def page(browser, report, scheme):
    """The page, which must ask for nothing and complain about nothing."""
    context = browser.new_context(viewport=WIDE, color_scheme=scheme)
    asked, complaints = [], []

    def watch(route):
        asked.append(route.request.url)
        if route.request.url == report.as_uri():
            route.continue_()
        else:
            route.abort()

    context.route("**/*", watch)
    opened = context.new_page()
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(report.as_uri())
    yield opened
    context.close()
    assert [url for url in asked if url != report.as_uri()] == []
    assert complaints == []


def background(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def is_dark(page: Page) -> bool:
    return sum(map(int, re.findall(r"\d+", background(page))[:3])) < 3 * 128


def test_tables_and_figures_are_there(page):
    for name in STUDIES:
        section = page.locator(f"section#{name}")
        expect(section.locator("svg.plot").first).to_be_visible()
        expect(section.locator("table").first).to_be_visible()
        expect(section.locator("code", has_text=f"mcover study run {name}")).to_be_visible()
    points = page.locator("section#loading .point")
    assert points.count() == 10
    box = page.locator("section#loading svg.plot").first.bounding_box()
    for place in (point.bounding_box() for point in points.all()[:4]):
        assert box["x"] <= place["x"] + place["width"] / 2 <= box["x"] + box["width"]
        assert box["y"] <= place["y"] + place["height"] / 2 <= box["y"] + box["height"]
    expect(page.get_by_text("Not run yet")).to_be_visible()


def test_hover_shows_value_interval_and_n(page):
    tip = page.locator("#tip")
    expect(tip).to_be_hidden()
    point = page.locator("section#loading .point").first
    point.hover()
    expect(tip).to_be_visible()
    expect(tip).to_contain_text(
        re.compile(r"vanilla\s+load α = P/N 1.2\s+0\.\d{4} \[0\.\d{4}, 0\.\d{4}\], n = 2")
    )
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= WIDE["width"]
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()


def test_the_keyboard_reaches_everything(page):
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    plot = page.locator("section#loading svg.plot").first
    plot.locator(".point").first.focus()
    expect(page.locator("#tip")).to_contain_text("vanilla")
    page.keyboard.press("ArrowRight")
    expect(plot.locator(".point").nth(1)).to_be_focused()
    expect(page.locator("#tip")).to_contain_text("n = 2")
    page.keyboard.press("End")
    expect(plot.locator(".point").last).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()
    page.keyboard.press("Tab")
    assert page.evaluate(
        "document.activeElement.closest('svg') === null || "
        "!document.activeElement.closest('svg').isSameNode("
        "document.querySelector('section#loading svg.plot'))"
    )


def test_light_and_dark_follow_the_system_and_the_button(page, scheme):
    assert is_dark(page) == (scheme == "dark")
    button = page.locator("#theme")
    expect(button).to_have_attribute("aria-pressed", str(scheme == "dark").lower())
    button.focus()
    page.keyboard.press("Enter")
    assert is_dark(page) == (scheme == "light")
    expect(button).to_have_attribute("aria-pressed", str(scheme == "light").lower())
    page.reload()
    assert is_dark(page) == (scheme == "light")
    page.keyboard.press("Tab")
    button.focus()
    page.keyboard.press("Space")
    assert is_dark(page) == (scheme == "dark")


def test_text_is_legible_on_its_ground(page):
    """Contrast of at least 4.5 for text and 3 for the marks of lines, as WCAG asks."""
    measured = page.evaluate(
        """() => {
          const level = (text) => {
            const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => {
              const share = part / 255;
              return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
          };
          const ground = level(getComputedStyle(document.body).backgroundColor);
          const ratio = (text) => {
            const other = level(text);
            return (Math.max(ground, other) + 0.05) / (Math.min(ground, other) + 0.05);
          };
          const style = (part) => getComputedStyle(document.querySelector(part));
          return {
            text: ["body", "figcaption", "nav a", "td small"].map((p) => ratio(style(p).color)),
            marks: [0, 1, 2].map((n) => ratio(style(`.plot .line.s${n} path`).stroke)),
          };
        }"""
    )
    assert min(measured["text"]) >= 4.5
    assert min(measured["marks"]) >= 3


def test_a_narrow_screen_needs_no_sideways_scrolling(page):
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    for figure in page.locator("svg.plot").all():
        box = figure.bounding_box()
        assert box["x"] + box["width"] <= NARROW["width"]
    page.locator("section#loading .point").last.hover()
    box = page.locator("#tip").bounding_box()
    assert box["x"] + box["width"] <= NARROW["width"]


def test_on_a_phone_every_value_of_a_table_is_on_the_screen(page):
    page.set_viewport_size(NARROW)
    cells = page.locator("section#table-1 td:visible, section#table-1 tbody th:visible").all()
    assert len(cells) > 20
    for cell in cells:
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= NARROW["width"]
        assert cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth + 1")
    named = page.locator("section#table-1 td").first
    assert named.evaluate("cell => getComputedStyle(cell, '::before').content") not in (
        "none",
        '""',
    )


def test_print_is_light_and_unfolded(page):
    page.emulate_media(media="print")
    assert not is_dark(page)
    expect(page.locator("nav")).to_be_hidden()
    expect(page.locator("#theme")).to_be_hidden()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.pdf(format="A4").startswith(b"%PDF")
