import csv

import pytest
from reproduction.rows import make_row, read_csv, write_csv
from reproduction.studies import Inline, Plan, Store, run

import probe_kind
from mcover import McoverError


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setitem(probe_kind.KINDS, "probe", probe_kind.KIND)
    cells = (
        probe_kind.cell("a, with a comma", 3, shift=1 / 3),
        probe_kind.cell('b "quoted"', 3, refuse=[1]),
    )
    with Store(tmp_path / "s.sqlite") as store:
        run(Plan(cells), store, Inline())
        return store.rows()


def test_what_is_exported_comes_back_row_by_row(rows, tmp_path):
    path = tmp_path / "new" / "rows.csv"
    assert write_csv(rows, path) == 6
    again = read_csv(path)
    assert sorted(again, key=lambda row: row.key) == sorted(rows, key=lambda row: row.key)
    with Store(tmp_path / "other.sqlite") as store:
        assert store.put(again) == 6
        assert store.put(again) == 0
        assert store.rows() == rows
        write_csv(store.rows(), tmp_path / "twice.csv")
    assert (tmp_path / "twice.csv").read_bytes() == path.read_bytes()


def test_settings_are_written_once(rows, tmp_path):
    write_csv(rows, tmp_path / "rows.csv")
    text = (tmp_path / "rows.csv").read_text()
    assert text.count("quoted") == 1
    assert text.count("numpy") == 1
    assert len(text.splitlines()) == 7


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("config,kind", "kind,config", "not a table of trials"),
        ("outcome.value", "value", "not a table of trials"),
        ("outcome.value", "outcome.solved", "not a table of trials"),
        (",done,", ",perhaps,", "line 2.*perhaps"),
        (",done,", ",done,,", "line 2.*columns"),
        ("0.333", "0.444", "line 2.*belong to"),
        ("a, with", "x, with", "line 2.*belong to"),
        (",1.3333333333333333", ",inf", "not finite"),
        (",1.3333333333333333", ",1.7e308", "too large"),
        (",1.3333333333333333", ",", "line 3.*without its outcome value"),
        ("no trial 1 today", "no\x1b[2Jtrial", "control characters"),
        ("no trial 1 today", "no\rtrial", "line"),
        (",failed,", ",done,", "without its outcome"),
        ('""shift"":', '""deep"":' + "[" * 5000 + "1" + "]" * 5000 + ',""shift"":', "nested"),
        ("probe", "=cmd|'/c calc'!A1", "no name of a kind"),
        ("outcome.value", "outcome.=1+1", "no name of an outcome"),
        (",1.333", ",one", "line 3.*one"),
        ('""mcover"":""', '""mcover"":[1],""other"":""', "origin is not text"),
    ],
)
def test_foreign_columns_and_altered_rows_are_refused(rows, old, new, message, tmp_path):
    path = tmp_path / "rows.csv"
    write_csv(rows, path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(McoverError, match=message):
        read_csv(path)


def test_other_files_are_refused(tmp_path):
    for content in (b"", b"\xff\xfe\x00binary", b"method,error\nours,0.1\n"):
        path = tmp_path / "other.csv"
        path.write_bytes(content)
        with pytest.raises(McoverError):
            read_csv(path)


def test_the_same_trial_twice_is_an_error_that_shows_both(rows, tmp_path):
    path = tmp_path / "rows.csv"
    write_csv(rows, path)
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join([*lines, last, last]) + "\n")
    assert len(read_csv(path)) == 6
    path.write_text("\n".join([*lines, last, last.replace(",2.0", ",7.0")]) + "\n")
    with pytest.raises(McoverError, match=r"(?s)value = 2.*value = 7"):
        read_csv(path)


@pytest.mark.parametrize("message", ["=1+1", "+1", "-1", "@sum", "'quoted", "\t=1", "plain"])
def test_messages_are_no_formulas_in_a_spreadsheet(message, tmp_path):
    failed = make_row(probe_kind.Probe("p"), 0, {}, message, 1.0)
    write_csv([failed], tmp_path / "rows.csv")
    text = (tmp_path / "rows.csv").read_text()
    assert not any(
        cell.startswith(tuple("=+-@\t")) for cell in next(csv.reader([text.split("\n")[1]]))
    )
    assert read_csv(tmp_path / "rows.csv") == [failed]


def test_messages_of_trials_are_made_printable():
    odd = make_row(probe_kind.Probe("p"), 0, {}, "red \x1b[31m\r\ud800 \u202e", 1.0)
    assert odd.message == "red \\x1b[31m\\r\\ud800 \\u202e"


def test_a_folder_is_no_table(tmp_path):
    with pytest.raises(McoverError, match="not a file"):
        read_csv(tmp_path)
