import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from reproduction.rows import canonical, config_hash, config_of, make_row, origin
from reproduction.store import Store

from mcover import McoverError
from probe_kind import Probe

TESTS = Path(__file__).parent


def key(seed: int = 0) -> tuple[str, int]:
    return config_of(Probe("p")), seed


def row(seed: int = 0, value: float = 0.5, name: str = "p", **settings: object):
    return make_row(Probe(name, **settings), seed, {"value": value}, "", 1.25)


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
    given = row(3, 1 / 3, shift=1.5, name="σ")
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
        with pytest.raises(McoverError, match="belong to"):
            store.put([row(0), replace(row(1), config="f" * 20)])
        assert store.rows() == []


def test_the_file_has_its_own_mark_and_ordinary_permissions(tmp_path):
    before = os.umask(0o022)
    try:
        Store(tmp_path / "s.sqlite").close()
    finally:
        os.umask(before)
    assert (tmp_path / "s.sqlite").stat().st_mode & 0o777 == 0o644
    with Store(tmp_path / "s.sqlite"):
        plain = sqlite3.connect(tmp_path / "s.sqlite")
        assert plain.execute("PRAGMA application_id").fetchone() == (0x6D636F76,)
        plain.close()
    assert [path.name for path in tmp_path.iterdir()] == ["s.sqlite"]


def test_claims_keep_others_away_until_they_are_given_up(tmp_path):
    path = tmp_path / "s.sqlite"
    first, second = Store(path), Store(path)
    assert first.claim(key(0)) == "ours"
    assert first.claim(key(0)) == "ours"
    assert second.claim(key(0)) == "taken"
    assert second.claim(key(1)) == "ours"
    first.release()
    assert second.claim(key(0)) == "ours"
    second.put([row(0)])
    assert first.claim(key(0)) == "done"
    second.close()
    assert first.claim(key(1)) == "ours"
    first.close()


def test_claims_of_dead_processes_and_of_old_times_do_not_hold(tmp_path, monkeypatch):
    path = tmp_path / "s.sqlite"
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    with Store(path) as store, Store(path) as other:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: gone.pid)
            assert other.claim(key(0)) == "ours"
        assert store.claim(key(0)) == "ours"

        with monkeypatch.context() as patch:
            patch.setattr("reproduction.store.LEASE_SECONDS", -1.0)
            assert other.claim(key(1)) == "ours"
        assert store.claim(key(1)) == "ours"

        with monkeypatch.context() as patch:
            patch.setattr("reproduction.store.LEASE_SECONDS", -1.0)
            assert other.claim(key(2)) == "ours"
        other.renew()
        assert store.claim(key(2)) == "taken"


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
    monkeypatch.setattr("reproduction.store._BUSY_SECONDS", 0.05)
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
    failed = make_row(Probe("p"), 1, {}, "diverged", 1.0)
    with Store(tmp_path / "s.sqlite") as store:
        store.put([row(0), failed])
        assert [one.message for one in store.rows()] == ["", "diverged"]
        assert store.forget_failed([failed.config]) == 1
        assert [one.seed for one in store.rows()] == [0]


def test_outcomes_that_are_not_finite_are_failures():
    odd = make_row(Probe("p"), 0, {"value": float("nan"), "other": 1.0}, "", 1.0)
    assert odd.status == "failed"
    assert "value = nan" in odd.message
    assert odd.outcome == {}


def test_claims_dated_far_in_the_future_do_not_hold(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store, Store(path) as other:
        assert other.claim(key(0)) == "ours"
        plain = sqlite3.connect(path)
        plain.execute("UPDATE claims SET until = until + 1e9")
        plain.commit()
        plain.close()
        assert store.claim(key(0)) == "ours"


def test_no_flipped_byte_is_accepted_with_changed_data(tmp_path):
    """Refused, or the damaged row is named and the others are as they were; never a raw error."""
    path = tmp_path / "s.sqlite"
    given = [row(seed, seed / 7, name="n" * 150 + str(seed % 3)) for seed in range(25)]
    with Store(path) as store:
        store.put(given)
        store.claim(key(0))
    whole = path.read_bytes()
    expected = {one.key: one for one in given}
    draw = random.Random(0)
    ends = {"refused": 0, "named": 0, "harmless": 0}
    for _ in range(800):
        flipped = bytearray(whole)
        flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        try:
            with Store(path, create=False) as store:
                found = {one.key: one for one in store.rows()}
                damage = store.damage
        except McoverError:
            ends["refused"] += 1
            continue
        assert found.items() <= expected.items()
        if damage:
            assert len(found) >= len(expected) - len(damage)
            with Store(path) as store, pytest.raises(McoverError, match="left as it is"):
                store.put([row(99)])
            assert path.read_bytes() == flipped
            ends["named"] += 1
        else:
            assert found == expected
            ends["harmless"] += 1
    assert ends["refused"] > 10
    assert ends["named"] > 200


def test_rows_that_vanish_are_noticed(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.put([row(seed) for seed in range(5)])
    plain = sqlite3.connect(path)
    plain.execute("DELETE FROM trials WHERE seed = 3")
    plain.commit()
    plain.close()
    with Store(path, create=False) as store:
        assert "missing" in store.damage[0]
        assert len(store.rows()) == 4


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_nothing_is_written_to_a_store_that_is_deleted_under_a_run(how, tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.put([row(0), row(1)])
        path.unlink()
        if how == "replaced":
            Store(path).close()
        with pytest.raises(McoverError, match="cannot be written"):
            store.put([row(2)])


def test_a_disk_that_is_full_at_creation_is_an_error_of_ours_and_leaves_nothing(tmp_path):
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "from reproduction.store import Store; Store('s.sqlite')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "McoverError: s.sqlite cannot be opened" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_a_store_in_a_read_only_folder_can_be_read():
    """Read by a user who may write nothing: the permissions of files do not bind root."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        path = Path(name) / "s.sqlite"
        with Store(path) as store:
            store.put([row(0)])
        Path(name).chmod(0o555)
        path.chmod(0o444)
        if is_root:
            os.seteuid(65534)
        try:
            with Store(path, create=False) as store:
                assert len(store.rows()) == 1
            with (
                Store(path) as store,
                pytest.raises(McoverError, match=r"cannot be written: .*readonly"),
            ):
                store.put([row(1)])
        finally:
            if is_root:
                os.seteuid(0)
            Path(name).chmod(0o755)


def test_a_pipe_or_a_folder_is_refused_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        for create in (True, False):
            with pytest.raises(McoverError, match="is not a file"):
                Store(tmp_path / name, create=create)


def test_behind_a_stopped_process_one_waits_once_and_is_told(tmp_path, monkeypatch):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.put([row(0)])
        code = f"""
import sqlite3, sys
held = sqlite3.connect({str(path)!r}, isolation_level=None)
held.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""
        holder = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        monkeypatch.setattr("reproduction.store._BUSY_SECONDS", 1.0)
        begin = time.monotonic()
        other = Store(path)
        with pytest.raises(McoverError, match="Ctrl-Z"):
            other.claim(key(5))
        other.close()
        assert time.monotonic() - begin < 4
        holder.kill()
        holder.communicate()


def test_conflicting_rows_are_refused_and_both_are_shown(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.put([row(0, 0.25)])
        same = replace(row(0, 0.25), seconds=9.0, finished="")
        assert store.put([same], strict=True) == 0
        with pytest.raises(McoverError, match=r"(?s)value = 0\.25.*value = 0\.75"):
            store.put([row(1), row(0, 0.75)], strict=True)
        assert [one.outcome["value"] for one in store.rows()] == [0.25]


def test_claims_of_a_stopped_process_do_not_hold(tmp_path):
    path = tmp_path / "s.sqlite"
    code = (
        "import sys; from reproduction.store import Store; store = Store(sys.argv[1]);"
        "store.claim((sys.argv[2], 0)); print('claimed', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(path), key(0)[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout.readline() == b"claimed\n"
    with Store(path) as store:
        assert store.claim(key(0)) == "taken"
        other.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        assert store.claim(key(0)) == "ours"
    other.kill()
    other.communicate()
