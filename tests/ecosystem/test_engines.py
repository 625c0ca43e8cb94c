"""Engines on real clusters of this machine: separate processes, real kills."""

import gc
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from reproduction.engines import make_engine
from reproduction.engines.cluster import run_prepared
from reproduction.rows import Row
from reproduction.runner import ATTEMPTS, EngineError
from reproduction.studies import Plan, Processes, Store, find_study, run
from reproduction.study import Cell, Choosing

import mcover
import probe_kind
from interrupting import interruptible
from mcover import McoverError
from mcover.cli import main

TESTS, SOURCE = Path(probe_kind.__file__).parent, Path(mcover.__file__).parents[1]
ENGINES = ("dask", "ray", "slurm")
MARK = "MCOVER_TEST_CLUSTER"
HIDDEN = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")
STORE = "out/studies.sqlite"
PATIENCE = 90.0
BIN = Path(sys.executable).parent

# Where Ray is, sockets of its own stay open; what it warns of is its own business.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning:ray"),
    pytest.mark.xdist_group("clusters"),  # two Rays on one machine get in each other's way
]


@pytest.fixture(autouse=True, scope="module")
def _workers_find_the_probe():
    """Whatever is started here finds mcover and the probe, and is found again by its mark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(probe_kind.KINDS, "probe", probe_kind.KIND)
        patch.setenv("PYTHONPATH", os.pathsep.join((str(SOURCE), str(TESTS))))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "token")  # a token of this test, not that of a home folder
        patch.setenv("RAY_AUTH_TOKEN", uuid4().hex)
        yield


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mark(monkeypatch):
    """Processes that a test starts carry it; those that are left are ended."""
    with _marked() as (name, _):
        monkeypatch.setenv(MARK, name)
        yield name


@contextmanager
def _marked():
    name = f"{os.getpid()}-{time.monotonic_ns()}"
    try:
        yield name, os.environ | {MARK: name}
    finally:
        for process in _alive(name):
            process.kill()
        _wait_until_gone(name)


def _wait_until_gone(name: str) -> None:
    end = time.monotonic() + PATIENCE
    while left := _alive(name):
        assert time.monotonic() < end, [process.cmdline() for process in left]
        time.sleep(0.05)


def _alive(name: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == name and process.pid != os.getpid()
            # Python's own helper stays with the process that runs the tests.
            tracker = "resource_tracker" in " ".join(process.cmdline())
            if ours and not tracker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def dask_address():
    """A scheduler and two workers with their nannies, each a process."""
    with _marked() as (_, env), tempfile.TemporaryDirectory() as folder:
        address = f"tcp://127.0.0.1:{_free_port()}"
        quiet = {"env": env, "cwd": folder, "stderr": subprocess.DEVNULL}
        scheduler = [BIN / "dask", "scheduler", "--host", address, *HIDDEN]
        subprocess.Popen(scheduler, **quiet)
        subprocess.Popen(_dask_worker(address, "--nworkers", "2"), **quiet)
        _wait_for(lambda: _dask(address, lambda client: len(client.nthreads()) == 2))
        yield address


def _dask_worker(address, *more):
    return [BIN / "dask", "worker", address, "--nthreads", "1", *HIDDEN, *more]


def _dask(address, ask):
    from distributed import Client

    try:
        with Client(address, timeout=2, set_as_default=False) as client:
            return ask(client)
    except OSError:
        return None


@pytest.fixture(scope="module")
def ray_address():
    """A head node with two CPUs: two workers, each a process."""
    folder = tempfile.mkdtemp(prefix="ray")  # short: it holds sockets
    with _marked() as (_, env):
        address = f"127.0.0.1:{(port := _free_port())}"
        options = f"--head --block --port {port} --node-ip-address 127.0.0.1 --num-cpus 2"
        options += f" --include-dashboard false --temp-dir {folder}"
        with (Path(folder) / "said").open("w") as said:
            subprocess.Popen([BIN / "ray", "start", *options.split()], env=env, stdout=said)
        _wait_for(lambda: "runtime started" in (Path(folder) / "said").read_text())
        yield address
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def where(request):
    """The address of a cluster that runs; submitit's own stand-in for Slurm."""
    of = {"dask": "dask_address", "ray": "ray_address"}
    return request.getfixturevalue(of[request.param]) if request.param in of else "local"


def on_clusters(test):
    cases = [pytest.param(name, name, id=name) for name in ENGINES]
    return pytest.mark.parametrize(("name", "where"), cases, indirect=["where"])(test)


def plan(*cells: Cell) -> Plan:
    return Plan(cells, Choosing())


def rows_of(store: Store) -> list[dict]:
    """All that does not depend on the clock."""
    found = []
    for row in map(asdict, store.rows()):
        times = [name for name in row["outcome"] if name.endswith("seconds")]
        row["outcome"] = {n: v.hex() for n, v in row["outcome"].items() if n not in times}
        found.append({n: v for n, v in row.items() if n not in ("seconds", "finished")})
    return found


def computed(log: Path) -> Counter[int]:
    """How often each seed was started."""
    return Counter(int(line.split()[1]) for line in log.read_text().splitlines())


ILL = {"refuse": [1], "crash": [2], "leave": [3], "nan": [4]}


def perceptrons() -> tuple[Cell, ...]:
    return find_study("covers").plan("smoke").cells


@pytest.fixture(scope="module")
def plain_rows(tmp_path_factory):
    """What a plain local run gives: trials of perceptrons, of a network, ill-behaved ones."""
    networks = [cell for cell in find_study("low-data").plan("smoke").cells if not cell.choices]
    cells = (*perceptrons(), replace(networks[0], trials=1), probe_kind.cell("p", 5, **ILL))
    with Store(tmp_path_factory.mktemp("plain") / "s.sqlite") as store:
        run(plan(*cells), store, Processes(1))
        return cells, rows_of(store)


@pytest.mark.parametrize(
    ("name", "where", "workers"),
    [("dask", "dask", 1), ("dask", "dask", 2), ("ray", "ray", 2), ("slurm", "slurm", 2)],
    indirect=["where"],
)
def test_rows_are_those_of_a_plain_run_bit_for_bit(name, where, workers, plain_rows):
    cells, expected = plain_rows
    if name == "slurm":  # where each trial is a process that imports everything
        cells = (cells[0], cells[-1])
        expected = [row for row in expected if row["config"] in plan(*cells).configs()]
    with Store("s.sqlite") as store:
        ran = run(plan(*cells), store, make_engine(name, workers, where))
        assert rows_of(store) == expected
    assert ran.failed == len(ILL)


def test_a_search_runs_on_the_same_engines(dask_address, tmp_path):
    pytest.importorskip("optuna")
    words = "tune perceptron --n 21 --alpha 4 --schedule linear:0.4:0.01:0.02 mcover --bank 2"
    words += " --seeds 2 --test-seeds 3 --trials 1 --workers"
    found = []
    for where in ("0", f"2 --engine dask --address {dask_address}"):
        output = tmp_path / f"tune{len(found)}"
        main([*f"{words} {where}".split(), "--output", str(output)])
        outcomes = json.loads(output.with_suffix(".json").read_text())["test"]["outcomes"]
        found.append(
            {
                of: {n: v for n, v in one.items() if n != "core_seconds"}
                for of, one in outcomes.items()
            }
        )
    assert found[0] == found[1]
    assert found[0]


@on_clusters
def test_a_worker_killed_in_mid_trial_costs_nothing(name, where, tmp_path):
    log, killed = tmp_path / "log", set()

    def kill(share: float, text: str) -> None:
        workers = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        if workers and not killed:
            killed.add(int(workers[-1][1]))
            os.kill(int(workers[-1][2]), signal.SIGKILL)

    with Store("s.sqlite") as store:
        cell = probe_kind.cell(trials=4, sleep=1.5, log=str(log))
        ran = run(plan(cell), store, make_engine(name, 2, where), kill)
        assert (ran.new, ran.failed) == (4, 0)
        assert [row.outcome["value"] for row in store.rows()] == list(range(4))
    (seed,) = killed
    assert computed(log)[seed] == 2


@on_clusters
def test_trials_that_kill_their_workers_fail_at_the_limit_and_blame_no_others(
    name, where, tmp_path, mark
):
    log, deadly = tmp_path / "log", [1, 2]
    with Store("s.sqlite") as store:
        cell = probe_kind.cell(trials=5, die=deadly, log=str(log), sleep=0.2)
        # A Dask of our own has no limit of its own before ours.
        ran = run(plan(cell), store, make_engine(name, 2, None if name == "dask" else where))
        failed = {row.seed: row.message for row in store.rows() if row.status == "failed"}
    assert (ran.new, sorted(failed)) == (5, deadly)
    assert all(f"its process ended {ATTEMPTS} times" in message for message in failed.values())
    starts = computed(log)
    assert {seed: starts[seed] for seed in deadly} == dict.fromkeys(deadly, ATTEMPTS)
    _wait_until_gone(mark)


def test_ctrl_c_is_heeded_where_python_loses_it():
    """A KeyboardInterrupt in a callback of the garbage collector is dropped; Dask has such ones."""
    engine = make_engine("slurm", 2, "local")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert engine.workers == 2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            _ = engine.workers
        assert engine.workers == 2

        def collecting(phase: str, info: dict) -> None:
            signal.raise_signal(signal.SIGINT)

        gc.callbacks.append(collecting)
        try:
            gc.collect()  # nothing is raised there, where it would only be printed
        finally:
            gc.callbacks.remove(collecting)
        with pytest.raises(KeyboardInterrupt):
            _ = engine.workers
        engine.shutdown()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        engine.shutdown()
        signal.signal(signal.SIGINT, before)


@on_clusters
def test_a_driver_killed_and_started_again_goes_on_where_it_was(name, where, tmp_path):
    path = tmp_path / "s.sqlite"
    words = (str(path), "6", "2", "0.3", name, where)
    arguments = [sys.executable, str(TESTS / "running_probe.py"), *words]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_for(lambda: len(_rows(path)) >= 2)
        finally:
            process.kill()
    before = len(_rows(path))
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert int(done.stdout) == 6 - before
    assert [row.outcome["value"] for row in _rows(path)] == list(range(6))
    starts = computed(path.with_suffix(".log"))
    assert starts.total() - len(starts) <= 2  # what was in flight


def _endless(name: str, where: str | None = None) -> list[str]:
    words = f"study run covers --scale smoke --trials 5000 --engine {name} --workers 2"
    words += f" --address {where}" if where else ""
    return [sys.executable, "-m", "mcover", *words.split()]


def _interrupt_at(count: int, arguments: list[str], folder: Path) -> str:
    """Ctrl-C, as a terminal sends it, to the whole group, once there are so many rows."""
    with interruptible(arguments, folder, group=True) as process:
        _wait_for(lambda: len(_rows(folder / STORE)) >= count or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate()
    assert process.returncode == 130, said
    assert "what is finished is kept" in said
    assert "Traceback" not in said
    return said


@on_clusters
def test_ctrl_c_ends_with_130_and_leaves_a_cluster_that_was_there(name, where, tmp_path, mark):
    _interrupt_at(2, _endless(name, where), tmp_path)
    _wait_until_gone(mark)  # the jobs of submitit too
    if name == "dask":
        assert _dask(where, lambda client: len(client.nthreads())) == 2
        _wait_for(lambda: _dask(where, lambda client: not any(client.processing().values())))
    if name == "ray":
        with Store("s.sqlite") as store:
            assert run(plan(probe_kind.cell()), store, make_engine(name, 2, where)).new == 3


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_nothing_of_a_cluster_of_its_own_outlives_a_driver(name, tmp_path, mark):
    """Killed, it takes its cluster along; started again it goes on; so it does with Ctrl-C."""
    path = tmp_path / STORE
    with subprocess.Popen(_endless(name), stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(lambda: len(_rows(path)) >= 6)
            assert len(_alive(mark)) >= 3  # the driver and two workers
        finally:
            process.kill()
    _wait_until_gone(mark)
    before = _rows(path)
    said = _interrupt_at(len(before) + 4, _endless(name), tmp_path)
    assert "structured routing" in said
    assert set(map(str, before)) < set(map(str, _rows(path)))
    _wait_until_gone(mark)


def _other_version(folder: Path) -> str:
    """The package as another release, by the path to it."""
    shutil.copytree(SOURCE / "mcover", folder / "mcover", ignore=shutil.ignore_patterns("__py*"))
    init = folder / "mcover/__init__.py"
    text, count = re.subn(r'__version__ = "[^"]+"', '__version__ = "99.1"', init.read_text())
    assert count == 1
    init.write_text(text)
    return os.pathsep.join((str(folder), str(TESTS)))


REFUSED = rf"was refused: it has mcover 99\.1, (.|\n)*has mcover {re.escape(mcover.__version__)}"


def test_a_worker_of_dask_with_another_version_is_refused(dask_address, tmp_path, mark):
    """Before any work if it is there at the start, else with the first trial that it is given."""
    env = os.environ | {"PYTHONPATH": _other_version(tmp_path / "other")}
    with Store("s.sqlite") as store:

        def enter(share: float, text: str) -> None:
            if not _alive(mark):
                quiet = {"env": env, "stderr": subprocess.DEVNULL}
                subprocess.Popen(_dask_worker(dask_address, "--no-nanny"), **quiet)

        cell = probe_kind.cell(trials=1000, sleep=0.2)
        with pytest.raises(EngineError, match=REFUSED):
            run(plan(cell), store, make_engine("dask", 3, dask_address), enter)
        kept = len(store.rows())
        assert kept > 0
        with pytest.raises(EngineError, match=REFUSED):
            run(plan(cell), store, make_engine("dask", 3, dask_address))
        assert len(store.rows()) == kept


@pytest.mark.parametrize("name", ["ray", "slurm"])
def test_a_worker_with_another_version_is_refused(name, tmp_path, mark, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", _other_version(tmp_path / "other"))
    engine = make_engine(name, 1, "local" if name == "slurm" else None)
    with Store("s.sqlite") as store, pytest.raises(EngineError, match=REFUSED):
        run(plan(probe_kind.cell()), store, engine)
    _wait_until_gone(mark)


@pytest.mark.parametrize(("threads", "workers", "message"), [
    (2, 1, "it has 2 threads, and a trial needs a process of its own"),
    (1, 0, "has no worker; start some with 'dask worker"),
])  # fmt: skip
def test_a_dask_that_cannot_run_trials_is_refused(threads, workers, message):
    from distributed import LocalCluster

    more = {"n_workers": workers, "threads_per_worker": threads, "processes": False}
    at = {"protocol": "tcp", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(**at, **more) as cluster,
        Store("s.sqlite") as store,
        pytest.raises(EngineError, match=message),
    ):
        run(plan(probe_kind.cell()), store, make_engine("dask", None, cluster.scheduler_address))


def test_a_worker_that_lacks_what_trials_need_says_so_instead_of_failing_them():
    assert run_prepared(probe_kind.Probe("p", unprepared="no data there"), 0) == "no data there"
    assert run_prepared(probe_kind.Probe("p"), 3).outcome["value"] == 3


@pytest.mark.parametrize(("words", "message"), [
    (("dask", 0), "workers is 0"),
    (("local", 2, "tcp://127.0.0.1:1"), "engine local has none"),
    (("slurm", 2, "head.node:1"), "Slurm has none"),
    (("slurm", 2), "needs sbatch"),
    (("cloud",), "engine is 'cloud'"),
])  # fmt: skip
def test_mistakes_are_named_before_any_work(words, message, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(McoverError, match=message):
        make_engine(*words)


@pytest.mark.parametrize(("name", "package"), [
    ("dask", "distributed"), ("ray", "ray"), ("slurm", "submitit"),
])  # fmt: skip
def test_a_package_that_is_missing_is_named_before_any_work(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(McoverError, match=rf"needs {package}: pip install 'mcover\[{name}\]'"):
        make_engine(name)


@pytest.mark.parametrize(("name", "scheme"), [("dask", "tcp://"), ("ray", "")])
def test_a_cluster_that_is_not_there_is_named(name, scheme, monkeypatch):
    monkeypatch.setattr("reproduction.engines.dask._CONNECT_SECONDS", 2)
    engine = make_engine(name, 2, f"{scheme}127.0.0.1:{_free_port()}")
    with Store("s.sqlite") as store, pytest.raises(EngineError, match="cannot be reached"):
        run(plan(probe_kind.cell()), store, engine)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with Store(path, create=False) as store:
        return store.rows()


def _wait_for(happened, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)
