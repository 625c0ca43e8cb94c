import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from mcover import McoverError
from mcover.lab.studies.cells import Job, canonical, config_hash, config_of
from mcover.lab.studies.kinds import PlainTrial
from mcover.lab.studies.rows import make_row, origin
from mcover.lab.studies.store import Store


def job(seed: int = 0, **settings: object) -> Job:
    trial = PlainTrial("probe", settings)
    return Job(trial, config_of(trial), seed)


def row(seed: int = 0, value: float = 0.5, **settings: object):
    return make_row(job(seed, **settings), {"value": value}, "", 1.25)


def test_equal_settings_are_one_config_however_they_are_written():
    assert config_hash("a", {"x": 2, "y": [1.0, None]}) == config_hash(
        "a", {"y": (1, None), "x": 2.0}
    )
    assert config_hash("a", {"x": 2}) != config_hash("b", {"x": 2})
    assert config_hash("a", {"x": 2}) != config_hash("a", {"x": 2.5})


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), object()])
def test_settings_that_json_cannot_hold_are_refused(odd):
    with pytest.raises(McoverError, match="JSON"):
        canonical({"x": odd})


def test_a_row_comes_back_as_it_was_put(tmp_path):
    given = row(3, 1 / 3, sigma=1.5, name="σ")
    with Store(tmp_path / "s.sqlite") as store:
        assert store.put([given]) == 1
    with Store(tmp_path / "s.sqlite") as store:
        assert store.rows() == [given]
        assert store.rows([given.config]) == [given]
        assert store.rows(["other"]) == []
    assert given.origin == origin()
    assert {"mcover", "code", "python", "numpy"} <= set(given.origin)


def test_a_trial_is_never_stored_twice(tmp_path):
    with Store(tmp_path / "s.sqlite") as store, Store(tmp_path / "s.sqlite") as other:
        assert store.put([row(0, 0.1)]) == 1
        assert other.put([row(0, 0.2), row(1, 0.3)]) == 1
        assert [one.outcome["value"] for one in store.rows()] == [0.1, 0.3]


def test_rows_are_kept_all_or_none(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        with pytest.raises(McoverError, match="settings belong to config"):
            store.put([row(0), replace(row(1), config="f" * 20)])
        assert store.rows() == []


def test_the_file_is_a_write_ahead_log_with_its_own_mark(tmp_path):
    with Store(tmp_path / "s.sqlite"):
        plain = sqlite3.connect(tmp_path / "s.sqlite")
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert plain.execute("PRAGMA application_id").fetchone() == (0x6D636F76,)
        plain.close()
    assert [path.name for path in tmp_path.iterdir()] == ["s.sqlite"]


def test_claims_keep_others_away_until_they_are_given_up(tmp_path):
    path = tmp_path / "s.sqlite"
    first, second = Store(path), Store(path)
    assert first.claim(job(0)) == "ours"
    assert first.claim(job(0)) == "ours"
    assert second.claim(job(0)) == "taken"
    assert second.claim(job(1)) == "ours"
    first.release([job(0).key])
    assert second.claim(job(0)) == "ours"
    second.put([row(0)])
    assert first.claim(job(0)) == "done"
    second.close()
    assert first.claim(job(1)) == "ours"
    first.close()


def test_claims_of_dead_processes_and_of_old_times_do_not_hold(tmp_path, monkeypatch):
    path = tmp_path / "s.sqlite"
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    with Store(path) as store, Store(path) as other:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: gone.pid)
            assert other.claim(job(0)) == "ours"
        assert store.claim(job(0)) == "ours"

        with monkeypatch.context() as patch:
            patch.setattr("mcover.lab.studies.store.LEASE_SECONDS", -1.0)
            assert other.claim(job(1)) == "ours"
        assert store.claim(job(1)) == "ours"

        with monkeypatch.context() as patch:
            patch.setattr("mcover.lab.studies.store.LEASE_SECONDS", -1.0)
            assert other.claim(job(2)) == "ours"
        other.renew()
        assert store.claim(job(2)) == "taken"


def test_many_writers_at_once_lose_nothing(tmp_path):
    path = tmp_path / "s.sqlite"

    def write(number: int) -> None:
        with Store(path) as store:
            for seed in range(10):
                store.put([row(seed, number), row(100 * number + seed + 10, number)])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Store(path) as store:
        assert len(store.rows()) == 10 + 4 * 10


def _text(path):
    path.write_text("method,error\nours,0.1\n" * 50)


def _empty(path):
    path.touch()


def _foreign(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE trials (config, seed)")
    connection.commit()
    connection.close()


def _newer(path):
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def _other_tables(path):
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE trials ADD COLUMN more")
    connection.close()


def _cut(path):
    _filled(path)
    path.write_bytes(path.read_bytes()[:-3000])


def _garbled(path):
    _filled(path)
    whole = bytearray(path.read_bytes())
    for start in range(4096, len(whole), 4096):
        whole[start : start + 64] = os.urandom(64)
    path.write_bytes(bytes(whole))


def _filled(path):
    with Store(path) as store:
        store.put([row(seed, name="x" * 200) for seed in range(60)])


@pytest.mark.parametrize("make", [_text, _empty, _foreign, _newer, _other_tables, _cut, _garbled])
def test_a_foreign_or_damaged_file_is_refused_and_left_as_it_was(make, tmp_path):
    path = tmp_path / "s.sqlite"
    make(path)
    before = path.read_bytes()
    for create in (True, False):
        with pytest.raises(McoverError, match="left as it is"):
            Store(path, create=create)
    assert path.read_bytes() == before


def test_a_store_that_cannot_be_written_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("mcover.lab.studies.store._BUSY_SECONDS", 0.05)
    with Store(tmp_path / "s.sqlite") as store:
        store.put([row(0)])
        other = sqlite3.connect(tmp_path / "s.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(McoverError, match="cannot be written: database is locked"):
            store.put([row(1)])
        assert [one.seed for one in store.rows()] == [0]
        other.execute("ROLLBACK")
        other.close()
        store.put([row(1)])


def test_reading_writes_nothing(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.put([row(0)])
    before = (tmp_path / "s.sqlite").read_bytes()
    with Store(tmp_path / "s.sqlite", create=False) as store:
        assert len(store.rows()) == 1
    assert (tmp_path / "s.sqlite").read_bytes() == before


def test_a_store_is_not_made_by_looking_for_one(tmp_path):
    with pytest.raises(McoverError, match="mcover study run"):
        Store(tmp_path / "s.sqlite", create=False)
    assert list(tmp_path.iterdir()) == []


def test_failed_rows_can_be_forgotten_and_done_ones_cannot(tmp_path):
    failed = make_row(job(1), {}, "diverged", 1.0)
    with Store(tmp_path / "s.sqlite") as store:
        store.put([row(0), failed])
        assert [one.message for one in store.rows()] == ["", "diverged"]
        assert store.forget_failed([failed.config]) == 1
        assert [one.seed for one in store.rows()] == [0]


def test_outcomes_that_are_not_finite_are_failures():
    odd = make_row(job(0), {"value": float("nan"), "other": 1.0}, "", 1.0)
    assert odd.status == "failed"
    assert "value = nan" in odd.message
    assert odd.outcome == {}
