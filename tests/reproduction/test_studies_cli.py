import os
import re
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from reproduction.store import Store

from interrupting import interruptible
from mcover.cli import main


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def study(words: str) -> None:
    main(["study", *words.split()])


def test_the_default_store_is_filled_shown_exported_and_imported(tmp_path, capsys):
    study("run covers --scale smoke --workers 0")
    printed = capsys.readouterr().out
    assert "structured routing − uniform routing" in printed
    assert "6 of 6 trials" in printed
    assert (tmp_path / "out/figures/covers.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out/figures/covers.pdf").read_bytes().startswith(b"%PDF")

    study("list")
    assert "6/6" in capsys.readouterr().out
    study("show covers --scale smoke --figures here")
    assert "structured routing at 3" in capsys.readouterr().out
    assert (tmp_path / "here/covers.png").exists()

    study("show covers --scale smoke --markdown")
    assert "| line | covers M | ε_g of the mean | solved | n |" in capsys.readouterr().out

    study("show covers --scale smoke --outcome proposals --markdown")
    shown = re.search(r"structured routing \| 3 \| ([\d,]+) \[.*\| 2 \|", capsys.readouterr().out)
    with Store("out/studies.sqlite") as store:
        rows = store.rows()
    ring = [row.outcome["proposals"] for row in rows if "method" not in row.settings]  # the default
    assert int(shown[1].replace(",", "")) == round(sum(ring) / len(ring))
    with pytest.raises(SystemExit):
        study("show covers --scale smoke --outcome colour")
    assert "no trial keeps 'colour'; write one of collapsed_energy" in capsys.readouterr().err

    study("export covers --csv rows.csv")
    study("import --csv rows.csv --store other.sqlite")
    study("import --csv rows.csv --store other.sqlite")
    printed = capsys.readouterr().out
    assert "6 trials written" in printed
    assert "6 trials imported, 0 were there" in printed
    assert "0 trials imported, 6 were there" in printed
    with Store("other.sqlite") as other, Store("out/studies.sqlite") as store:
        assert other.rows() == store.rows()
    study("run covers --scale smoke --workers 0 --trials 3 --store other.sqlite")
    assert "9 of 9 trials" in capsys.readouterr().out


def test_candidates_are_shown_in_words_and_as_markdown(capsys):
    study("run low-data --scale smoke --workers 0")
    study("run covers --scale smoke --workers 0")
    capsys.readouterr()
    with Store("out/studies.sqlite") as store:
        tries = {
            row.settings["dropout"]: row.outcome["error"]
            for row in store.rows()
            if "validation" in row.settings
        }
    for form in ("", " --markdown"):
        study(f"show low-data --scale smoke{form}")
        printed = capsys.readouterr().out
        assert printed.count("Chosen on held-out data") == printed.count("✓") == 1
        for rate, error in tries.items():
            assert re.search(rf"dropout +[|│] +{rate} [|│] +{error:.4f}", printed)
        study(f"show covers --scale smoke{form}")
        assert "held-out" not in capsys.readouterr().out
    least = f"{min(tries.values()):.4f}"
    assert f" | {least} [–] | 1 | ✓ |" in printed


def test_show_before_anything_ran_says_so_and_makes_no_file(tmp_path, capsys):
    study("show table-1")
    printed = capsys.readouterr().out
    assert "no trial of it" in printed
    assert "perceptron: M-cover M=3" in printed
    study("list")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run nothing", "no study 'nothing'"),
        ("export covers --csv x.csv", "there is no store"),
        ("import --csv missing.csv", "missing.csv"),
        ("run covers --scale smoke --trials 0", "at least 1"),
        ("run covers --scale smoke --workers -1", "at least 1"),
        ("run covers --scale smoke --figures taken/here", "cannot write"),
        ("show covers --figures taken/here", "cannot write"),
        ("export covers --csv .", "path of a file"),
        ("import --csv .", "is not a file"),
    ],
)
def test_mistakes_end_with_a_message_before_any_work(words, message, tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(SystemExit) as stop:
        study(words)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("mcover study: ")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_foreign_store_is_refused_by_every_verb(tmp_path, capsys):
    path = tmp_path / "theirs.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    for verb in ("run covers --scale smoke", "list", "show covers", "export covers --csv x.csv"):
        with pytest.raises(SystemExit):
            study(f"{verb} --store {path}")
        assert "another program" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_ctrl_c_says_that_rows_are_kept(tmp_path):
    words = "study run covers --scale smoke --trials 5000 --workers 1"
    path = tmp_path / "out/studies.sqlite"
    with interruptible([sys.executable, "-m", "mcover", *words.split()], tmp_path) as process:
        while not _has_rows(path) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        rest = process.communicate()[0]
    assert process.returncode == 130, rest
    assert "what is finished is kept" in rest
    assert "structured routing" in rest
    assert _has_rows(path)


def _has_rows(path):
    if not path.exists():
        return False
    with Store(path, create=False) as store:
        return len(store.rows()) > 1


def test_run_and_show_have_the_same_scale_and_show_names_those_with_rows(capsys):
    from mcover.cli.study import Run, Show

    assert Run("covers").scale == Show("covers").scale
    study("run covers --scale smoke --workers 0")
    capsys.readouterr()
    study("show covers")
    printed = capsys.readouterr().out
    assert "no trial of it at scale quick" in printed
    assert "--scale smoke has 6" in printed
    study("show covers --scale smoke")
    assert "--scale smoke has 6" in capsys.readouterr().out


def test_one_trial_has_no_interval(capsys):
    study("run covers --scale smoke --trials 1 --workers 0")
    printed = capsys.readouterr().out
    assert "[–]" in printed
    assert not re.search(r"(0\.\d{4})\s*\[\1, \1\]", printed)


def test_a_terminal_that_knows_ascii_only_gets_all_of_it(tmp_path):
    words = "study run covers --scale smoke --workers 0"
    done = subprocess.run(
        [sys.executable, "-m", "mcover", *words.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"6 of 6 trials" in done.stdout
    assert (tmp_path / "out/figures/covers.pdf").exists()


def test_rows_of_a_damaged_store_are_shown_with_a_warning(tmp_path, capsys):
    study("run covers --scale smoke --workers 0")
    path = tmp_path / "out/studies.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("UPDATE trials SET row = replace(row, 'done', 'dome') WHERE seed = 1")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    capsys.readouterr()
    study("show covers --scale smoke")
    printed = capsys.readouterr()
    assert printed.err.count("is damaged: row") == 3
    assert "3 of 6 trials" in printed.out
    study("export covers --csv rows.csv")
    study("import --csv rows.csv --store whole.sqlite")
    assert "3 trials imported" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        study("run covers --scale smoke --workers 0")
    assert "left as it is" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_an_interrupted_report_exits_with_130_and_leaves_the_old_page(tmp_path, monkeypatch):
    study("run covers --scale smoke --workers 0")
    main(["report"])
    before = (tmp_path / "out/report.html").read_bytes()

    def stop(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("reproduction.studies.report.panel_figure", stop)
    with pytest.raises(SystemExit) as ended:
        main(["report"])
    assert ended.value.code == 130
    assert (tmp_path / "out/report.html").read_bytes() == before
