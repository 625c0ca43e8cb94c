import pandas as pd
import pytest
from probe_kind import Probe

from mcover import McoverError
from reproduction.rows import by_key, make_row, read_csv, trial_hash, trial_id, write_csv
from reproduction.store import Store

ROWS = [
    make_row(Probe("a"), 0, {"value": 0.1}, "", 1.5),
    make_row(Probe("a"), 1, {}, 'diverged, "badly"\nat once', 0.5),
    make_row(Probe("b", shift=0.1), 0, {"value": 1 / 3, "other": 1e-300}, "", 2.0),
]


def test_rows_survive_the_store_and_csv(tmp_path):
    with Store(tmp_path / "new" / "rows.db") as store:
        for row in ROWS:
            store.add(row)
    with Store(tmp_path / "new" / "rows.db") as store:
        assert by_key(store.rows()) == by_key(ROWS)
        assert store.rows("probe") == store.rows()
        assert store.rows("other") == []
        frame = store.frame()
    assert write_csv(ROWS, tmp_path / "rows.csv") == 3
    assert by_key(read_csv(tmp_path / "rows.csv")) == by_key(ROWS)
    plain = pd.read_csv(tmp_path / "rows.csv")
    for table in (frame, plain):
        assert sorted(table["value"].dropna()) == pytest.approx([0.1, 1 / 3])
        assert set(table["revision"]) == {2}
        assert set(table["trial"]) == {row.trial_id for row in ROWS}


def test_a_row_replaces_that_of_the_same_trial_and_seed(tmp_path):
    with Store(tmp_path / "rows.db") as store:
        for value in (1.0, 2.0):
            store.add(make_row(Probe("a"), 0, {"value": value}, "", 0.0))
        assert [row.outcome for row in store.rows()] == [{"value": 2.0}]


def test_equal_trials_have_the_same_id():
    assert trial_id(Probe("a", shift=2)) == trial_id(Probe("a", shift=2.0))
    assert trial_id(Probe("a", shift=2.0)) != trial_id(Probe("a", shift=2.5))
    assert trial_id(Probe("a")) == trial_hash("probe", {"name": "a"})


def test_an_outcome_that_is_not_finite_is_a_failure():
    row = make_row(Probe("a"), 0, {"value": float("nan")}, "", 0.0)
    assert (row.status, row.outcome) == ("failed", {})
    assert "value = nan" in row.message


def test_a_damaged_file_is_refused_and_not_changed(tmp_path):
    path = tmp_path / "rows.db"
    with Store(path) as store:
        for seed in range(200):
            store.add(make_row(Probe("a"), seed, {"value": 1.0}, "", 0.0))
    whole = path.read_bytes()
    for damaged in (
        whole[:4096] + b"\xff" * 4096 + whole[8192:],
        whole[: len(whole) // 2],
        b"x" * 999,
    ):
        path.write_bytes(damaged)
        with pytest.raises(McoverError, match="damaged or is not a store"):
            Store(path)
        assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    ("text", "says"),
    [("a,b\n1,2\n", "starts with trial"), ("", "empty file"), (None, "line 3"), ("cut", "columns")],
)
def test_other_csv_files_are_refused(tmp_path, text, says):
    path = tmp_path / "rows.csv"
    write_csv(ROWS[::2], path)
    lines = path.read_text().splitlines()
    if text is None:
        text = "\n".join([*lines[:2], lines[2].replace(",2,done", ",two,done")])
    elif text == "cut":
        text = "\n".join([lines[0], lines[1].rpartition(",")[0]])
    path.write_text(text)
    with pytest.raises(McoverError, match=says):
        read_csv(path)
