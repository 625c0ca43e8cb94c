import pytest

from reproduction import pages
from reproduction.__main__ import main
from reproduction.rows import read_csv
from reproduction.store import Store
from reproduction.studies import STUDIES


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_list_names_all_studies_and_their_committed_rows(capsys):
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in STUDIES)
    league = said[said.index("\nleague ") :].split("\n")[2]
    assert "paper 353/353" in league


def test_run_then_show_and_write_the_rows(tmp_path, capsys):
    assert main(["run", "covers", "--workers", "0"]) == 0
    assert "6 new rows" in capsys.readouterr().out
    assert main(["run", "covers", "--workers", "0"]) == 0
    assert "0 new rows" in capsys.readouterr().out
    figure = ["--output", "covers.png", "--csv", "rows.csv", "--markdown"]
    assert main(["show", "covers", *figure]) == 0
    said = capsys.readouterr().out
    assert "6 of 6 rows" in said
    assert "| --- |" in said
    assert (tmp_path / "covers.png").read_bytes().startswith(b"\x89PNG")
    with Store("out/rows.db") as store:
        assert len(read_csv("rows.csv")) == len(store.rows()) == 6
    assert main(["show", "covers", "--rows", "rows.csv", "--markdown"]) == 0
    capsys.readouterr()
    assert main(["show", "covers", "--outcome", "proposals"]) == 0
    assert "proposals, mean [95 % interval]" in capsys.readouterr().out


def test_committed_rows_are_not_computed_again(capsys):
    assert main(["run", "covers", "--scale", "paper", "--workers", "0"]) == 0
    assert "0 new rows" in capsys.readouterr().out


def test_mistakes_are_reported_without_a_traceback(capsys):
    assert main(["run", "table-7"]) == 1
    assert "table-1" in capsys.readouterr().err
    assert main(["run", "covers", "--only", "banana", "--workers", "0"]) == 1
    assert "its labels are" in capsys.readouterr().err


def test_pages_that_differ_from_the_rows_are_an_error(tmp_path, monkeypatch, capsys):
    stale = tmp_path / "league.md"
    monkeypatch.setattr(pages, "render_pages", lambda: {stale: "text"})
    assert main(["pages", "--check"]) == 1
    assert "league.md" in capsys.readouterr().err
    stale.write_text("text", encoding="utf-8")
    assert main(["pages", "--check"]) == 0
