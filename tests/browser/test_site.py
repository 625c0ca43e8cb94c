"""The built documentation site in headless Chromium: each page, wide and on a phone."""

import io
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from playwright.sync_api import sync_playwright

import mcover

SITE = Path(os.environ.get("MCOVER_SITE", "out/docs")).resolve()
PAGES = sorted(
    path.relative_to(SITE).as_posix()
    for path in SITE.rglob("*.html")
    if path.name not in {"genindex.html", "py-modindex.html", "search.html"}
    and "_modules" not in path.parts
)
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

# Elements of the main text beyond the right edge of the window, where no ancestor scrolls sideways.
CUT_OFF = """() => {
  const width = document.documentElement.clientWidth;
  const scrolls = (node) => {
    for (let one = node; one && one !== document.body; one = one.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(one).overflowX)) return true;
    }
    return false;
  };
  return [...document.querySelectorAll("article *")]
    .filter((one) => one.checkVisibility() && one.getBoundingClientRect().right > width + 1)
    .filter((one) => !scrolls(one))
    .map((one) => one.outerHTML.slice(0, 120));
}"""
# Pictures that scroll sideways, numbers of equations that are outside of the column or over their
# formula: none is allowed. (Wide tables, code and formulas scroll.)
SCROLLED = """() => {
  const box = (one) => one.getBoundingClientRect();
  const pictures = [...document.querySelectorAll("article .drawn, article .drawn svg")]
    .filter((one) => box(one).right > box(document.querySelector("article")).right + 1
                     || one.scrollWidth > one.clientWidth + 1);
  const numbers = [...document.querySelectorAll("article .eqno")].filter((one) => {
    const formula = one.previousElementSibling;
    const beside = box(one).left >= box(formula).right - 1;
    const below = box(one).top >= box(formula).bottom - 1;
    return box(one).right > document.documentElement.clientWidth + 1 || !(beside || below);
  });
  return [...pictures, ...numbers].map((one) => one.outerHTML.slice(0, 120));
}"""
MISSING_PICTURES = """() => [...document.querySelectorAll("article img")]
  .filter((one) => !(one.complete && one.naturalWidth > 0)).map((one) => one.src)"""


def test_the_site_is_built():
    assert "index.html" in PAGES, f"no site in {SITE}; run make docs first"
    assert len(PAGES) > 30


@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium")
    assert path is not None, "chromium is missing; make test-browser installs it"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(params=["wide, light", "phone, dark"])
def page(browser, request):
    """A page that may only read files of the site; requests and errors fail the test."""
    size, scheme = request.param.split(", ")
    context = browser.new_context(viewport=WIDE if size == "wide" else PHONE, color_scheme=scheme)
    outside, errors = [], []

    def watch(route):
        if route.request.url.startswith(SITE.as_uri()):
            route.continue_()
        else:
            outside.append(route.request.url)
            route.abort()

    context.route("**/*", watch)
    opened = context.new_page()
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    yield opened
    context.close()
    assert outside == []
    assert errors == []


def test_the_checks_see_what_is_cut_off_or_missing(browser):
    opened = browser.new_page(viewport=PHONE)
    opened.set_content("<article><p style='width: 500px'>wide</p><img src='none.png'></article>")
    opened.wait_for_function("document.images[0].complete")
    assert opened.evaluate(CUT_OFF) == ['<p style="width: 500px">wide</p>']
    assert len(opened.evaluate(MISSING_PICTURES)) == 1
    opened.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole(page, name):
    page.goto((SITE / name).as_uri())
    # Pictures far down are loaded when they come near the window.
    page.evaluate("document.querySelectorAll('img').forEach((one) => { one.loading = 'eager'; })")
    page.wait_for_function(
        "[...document.querySelectorAll('article img')].every((one) => one.complete)"
    )
    assert page.evaluate(MISSING_PICTURES) == []
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate(SCROLLED) == []
    size = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert size[0] <= size[1], "the page scrolls sideways"


def test_plots_of_the_notebook_have_the_background_of_the_page(page):
    page.goto((SITE / "story.html").as_uri())
    plots = page.locator("article img")
    assert plots.count() > 0
    for number in range(plots.count()):
        plot = plots.nth(number)
        plot.scroll_into_view_if_needed()
        plot.evaluate("(one) => one.complete || one.decode()")
        pixels = imread(io.BytesIO(plot.screenshot()))[..., :3]
        behind = page.evaluate("getComputedStyle(document.body).backgroundColor")
        expected = np.array([int(value) for value in re.findall(r"\d+", behind)[:3]]) / 255
        np.testing.assert_allclose(pixels[5, 5], expected, atol=0.02)
        lightness = pixels.mean(
            -1
        )  # ink is far from the background: dark on light or light on dark
        assert np.abs(lightness - expected.mean()).max() > 0.6


@pytest.mark.parametrize(
    "name",
    [
        "tutorials/scikit_learn",
        "tutorials/hugging_face",
        "howto/lightning",
        "tutorials/own_model",
        "_modules/index",
    ],
)
def test_integrations_and_the_source_are_one_click_away(page, name):
    page.goto((SITE / "index.html").as_uri())
    link = page.locator(f"article a[href='{name}.html']").first
    assert link.is_visible()
    link.click()
    assert page.url.endswith(f"{name}.html")


def test_the_figure_of_routes_has_the_kernel_and_the_law_of_the_library(page):
    page.goto((SITE / "idea.html").as_uri())
    for covers, sigma, shift in [(1, 1.0, 0.0), (4, 0.5, 1.5), (5, 1.0, 2.0), (8, 8.0, 0.5)]:
        given = [covers, sigma, shift]
        kernel = np.array(page.evaluate("(given) => mcoverRoutes.kernel(...given)", given))
        expected = mcover.GaussianRing(sigma, shift).matrix(covers)
        np.testing.assert_allclose(kernel, expected, atol=1e-9)
        routes = page.evaluate(
            """(given) => {
              const kernel = mcoverRoutes.kernel(...given);
              const table = mcoverRoutes.permanents(kernel);
              let state = 1;  // Park and Miller's generator: the same draws in each run
              const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
              return Array.from({ length: 4000 }, () => mcoverRoutes.draw(kernel, table, random));
            }""",
            given,
        )
        marginals = mcover.permutations.marginals(kernel)
        seen = np.stack([(np.array(routes) == beta).mean(0) for beta in range(covers)], axis=1)
        error = np.sqrt(marginals * (1 - marginals) / 4000) + 1e-12
        assert np.abs(seen - marginals).max() <= 4.5 * error.max()
        assert np.all(np.sort(routes, axis=1) == np.arange(covers))


def test_the_figure_of_routes_follows_the_keyboard(page):
    page.goto((SITE / "idea.html").as_uri())
    status = page.locator(".routes-figure [role=status]")
    assert status.inner_text().startswith("Virtual model 1 of 5 reads its six weights from")
    page.focus("#routes-covers")
    page.keyboard.press("ArrowRight")
    assert "of 6 reads" in status.inner_text()
    page.focus("#routes-context")
    page.keyboard.press("End")
    assert status.inner_text().startswith("Virtual model 6 of 6")
    page.focus("#routes-sigma")
    page.keyboard.press("Home")  # narrow: a virtual model is one copy
    assert status.inner_text().endswith("copies 6, 6, 6, 6, 6, 6.")
