import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import probe_kind
from mcover import McoverError
from mcover.cli import main
from mcover.lab.studies import STUDIES, Inline, Plan, Store, find_study, run
from mcover.lab.studies.report import write_report
from mcover.lab.studies.study import Cell, Study

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Checks that tags close in order, and gathers what a page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.fetched, self.ids, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "action", "data", "poster", "srcset"):
                self.fetched.append(value)
            if name == "id":
                self.ids.append(value)

    def handle_startendtag(self, tag, attributes):
        assert tag in VOID

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("store") / "s.sqlite") as store:
        for name in ("covers", "table-1", "costs", "low-data"):
            run(find_study(name).plan("smoke"), store, Inline())
        return store.rows()


def test_the_page_is_whole_and_asks_for_nothing(rows, tmp_path):
    text = write_report(rows, tmp_path / "new" / "report.html").read_text()
    page = Page(text)
    assert {*page.fetched} - {"data:,"} == {link for link in page.fetched if link.startswith("#")}
    assert all(link[1:] in page.ids for link in page.fetched if link.startswith("#"))
    assert len(page.ids) == len(set(page.ids))
    outside = re.sub(r"<!DOCTYPE html>|arXiv:[\d.]+", "", text)
    assert "://" not in outside
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|WebSocket|import\(", outside)
    assert "default-src 'none'" in text


def test_the_page_says_what_ran_and_how(rows, tmp_path):
    text = write_report(rows, tmp_path / "report.html").read_text()
    for name in ("covers", "table-1", "costs", "low-data"):
        assert f"mcover study run {name} --scale smoke" in text
    assert "Not run yet" in text
    assert "mcover study run loading" in text
    assert text.count('class="point') > 10
    assert "structured routing − uniform routing" in text
    assert "p, Holm" in text
    assert "O(PS)" in text
    assert f"numpy {rows[0].origin['numpy']}" in text
    assert f"{len(rows)} trials in the store" in text


def test_the_page_shows_candidates_where_a_study_has_them(rows, tmp_path):
    text = write_report(rows, tmp_path / "report.html").read_text()
    text = re.sub(r"<(td|th) [^>]*>", r"<\1>", text)
    sections = dict(re.findall(r'(?s)<section id="(.*?)"(.*?)</section', text))
    assert [name for name, body in sections.items() if "Chosen on held-out" in body] == ["low-data"]
    tries = {
        row.settings["dropout"]: row.outcome["error"]
        for row in rows
        if "validation" in row.settings
    }
    marked = []
    for rate, error in tries.items():
        line = f"dropout</th><td>{rate}</td><td>{error:.4f}<small> [–]</small></td><td>1</td>"
        assert line in sections["low-data"]
        marked += [error] if f"{line}<td>✓</td>" in sections["low-data"] else []
    assert marked == [min(tries.values())]


def test_every_point_says_its_value_interval_and_n(rows, tmp_path):
    text = write_report(rows, tmp_path / "report.html").read_text()
    tips = re.findall(r'data-tip="([^"]*)"', text)
    assert tips
    number = r"−?[\d.,e-]+"
    for tip in tips:
        assert re.search(rf"{number} \[({number}, {number}|–)\], n = \d+", tip), tip
    assert tips == re.findall(r'aria-label="([^"]*)" data-tip', text)
    assert text.count('class="point"') == len(tips)


def test_names_and_versions_cannot_break_out_of_the_page(rows, tmp_path, monkeypatch):
    nasty = '<script>alert("x")</script>&'
    cells = {
        scale: tuple(
            Cell(cell.trial, nasty + cell.series, nasty, cell.x, cell.trials)
            for cell in find_study("covers").at(scale)
        )
        for scale in ("smoke", "quick", "paper")
    }
    study = Study("covers", nasty, nasty, nasty, cells, picture="lines", x_label=nasty)
    monkeypatch.setitem(STUDIES, "covers", study)
    bad = [replace(row, origin={"mcover": nasty}) for row in rows]
    text = write_report(bad, tmp_path / "report.html").read_text()
    assert "<script>alert" not in text
    Page(text)


def test_one_scale_alone_can_be_shown(rows, tmp_path):
    text = write_report(rows, tmp_path / "report.html", scale="paper").read_text()
    assert 'class="point' not in text
    assert "Not run yet" in text


def test_a_study_is_shown_at_the_largest_scale_that_is_half_done(tmp_path, monkeypatch):
    monkeypatch.setitem(probe_kind.KINDS, "probe", probe_kind.KIND)
    cells = {
        "smoke": (probe_kind.cell("a", 2, validation=0),),
        "quick": (probe_kind.cell("a", 4, validation=1),),
        "paper": (probe_kind.cell("a", 8, validation=2),),
    }
    monkeypatch.setitem(
        STUDIES, "covers", Study("covers", "t", "s", "a", cells, picture="outcomes")
    )

    def shown(**trials: int) -> str:
        with Store(tmp_path / f"{trials}.sqlite") as store:
            for scale, count in trials.items():
                plan = Plan(STUDIES["covers"].at(scale, count))
                run(plan, store, Inline())
            text = write_report(store.rows(), tmp_path / "report.html").read_text()
        return re.search(r"mcover study run covers --scale (\w+)", text)[1]

    assert shown(smoke=2, quick=4, paper=4) == "paper"
    assert shown(smoke=2, quick=2, paper=3) == "quick"
    assert shown(quick=1, paper=1) == "quick"
    assert shown(paper=1) == "paper"


def test_the_verb_writes_the_page_and_needs_rows(tmp_path, monkeypatch, capsys, rows):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["report"])
    assert "there is no store" in capsys.readouterr().err
    with Store("out/studies.sqlite") as store:
        pass
    with pytest.raises(SystemExit):
        main(["report"])
    assert "no trials yet" in capsys.readouterr().err
    with Store("out/studies.sqlite") as store:
        store.put(rows)
    main(["report"])
    assert "out/report.html" in capsys.readouterr().out
    assert (tmp_path / "out/report.html").exists()


def test_drawings_take_their_colours_from_the_page_and_bring_no_style_of_their_own(rows, tmp_path):
    text = write_report(rows, tmp_path / "report.html").read_text()
    drawings = re.findall(r"(?s)<svg.*?</svg>", text)
    assert len(drawings) > 6
    for drawing in drawings:
        assert "<style" not in drawing
        assert "<metadata" not in drawing
        assert not re.search(r"#[0-9a-f]{6}\b(?![\w-])", drawing)
        assert set(re.findall(r'#([\w-]+)[")]', drawing)) <= set(
            re.findall(r'id="([\w-]+)"', drawing)
        )


def test_the_same_rows_make_the_same_drawings(rows, tmp_path):
    pages = [write_report(rows, tmp_path / f"{n}.html", "smoke").read_text() for n in range(2)]
    assert len({re.sub("Page made [^w]*", "", page) for page in pages}) == 1


def test_it_says_how_far_it_is_and_refuses_a_folder_before_it_starts(rows, tmp_path):
    said = []
    write_report(rows, tmp_path / "report.html", progress=lambda share, text: said.append(share))
    assert said == sorted(said)
    assert len(said) == len(STUDIES)
    said.clear()
    with pytest.raises(McoverError, match="path of a file"):
        write_report(rows, tmp_path, progress=lambda share, text: said.append(share))
    assert said == []
