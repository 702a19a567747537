"""Tracking: a real MLflow, read back. What the journal has, MLflow gets, once; a server's trouble is never a run's."""

from __future__ import annotations

import gc
import json
import math
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock
import pytest
from command import pipeline, with_small_disk
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import RunError, UserError
from pipeline.runs import journal as journals
from pipeline.runs import lookup as runs_below
from pipeline.runs.journal import Journal
from pipeline.runs.records import read_metrics, read_status
from pipeline.runs.result import Metric, Result
from pipeline.spec import build
from pipeline.tracking import follow
from pipeline.tracking import record as records
from pipeline.tracking.follow import lock, send
from pipeline.tracking.forget import forget
from pipeline.tracking.names import legal_name
from pipeline.tracking.share import share
from pipeline.tracking.store import flatten
from pipeline.tracking.sync import sync as sync_here
from pipeline.tracking.tracker import Mlflow, Off, Tracker, start

SOURCE = str(Path(journals.__file__).parents[2])
LONG = 600.0  # trackers run when a core is idle: on a busy machine they take their time

CONFIG = {
    "_target_": "pipeline.experiment.Experiment",
    "seed": 7,
    "rate": 1e-3,
    "empty": "",
    "nothing": None,
    "model": {"_target_": "pipeline.models.mlp.Mlp", "widths": [64, 32], "note[0]": "x" * 9000},
    "tracking": {"uri": "http://me:secret@host:5000"},
}


@pytest.fixture(scope="session")
def warm_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as the tracker makes it, made once (2.6 s)."""
    from pipeline.tracking.store import open_store

    here = Path.cwd()
    path = tmp_path_factory.mktemp("warm") / "mlflow.db"
    open_store(f"sqlite:///{path}", "warm")
    os.chdir(here)
    return path


@pytest.fixture
def uri(warm_database: Path, tmp_path: Path) -> str:
    folder = tmp_path / "a place"
    folder.mkdir()
    shutil.copy(warm_database, folder / "mlflow.db")
    return f"sqlite:///{folder}/mlflow.db"


@pytest.fixture(scope="module")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(warm_database: Path, server_folder: Path) -> Iterator[str]:
    """A plain `mlflow server` (as `mlflow ui`), started in a folder with a mlflow.db, on loopback."""
    folder = server_folder
    shutil.copy(warm_database, folder / "mlflow.db")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"))
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(600)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=20):
            return True
    except OSError:
        return False


def wait_until(condition: Any, seconds: float = LONG) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


def client_of(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(uri)


def track(
    root: Path, uri: str | None, name: str = "run", experiment: str = "study", **settings: Any
) -> tuple[Journal, Tracker]:
    journal = Journal.begin(root, name, CONFIG)
    tracker = start(Mlflow(uri=uri, experiment=experiment, **settings), journal)
    assert tracker is not None
    return journal, tracker


def unfollowed(root: Path, uri: str) -> Journal:
    """A cell of a grid whose tracker does not run: it is sent where that is asked for."""
    journal = Journal.begin(root, "run", CONFIG)
    start(Mlflow(uri=uri, experiment="study"), journal, "grid")
    return journal


def cell_of(grid: Journal, uri: str, name: str) -> Journal:
    """A cell of a grid, as the grid's session begins one: the grid's tracker sends it."""
    journal = Journal.begin(grid.folder.parent, name, CONFIG)
    assert start(Mlflow(uri=uri, experiment="study"), journal, str(grid.folder)) is None
    with (grid.folder / records.CELLS).open("a") as file:
        file.write(f"{journal.folder}\n")
    return journal


def train(journal: Journal, steps: int = 50) -> None:
    """What a run does with its journal."""
    for step in range(steps):
        journal.log({"loss": 1.0 / (step + 1), "per_class[3]": float(step)}, step)
    journal.log({"loss": float("nan"), "grad": float("inf")}, steps)
    journal.artifact_path("figures/loss.svg").write_text("<svg/>")
    journal.write_receipt({"precision": {"effective": "fp32", "proved": True}, "seed": 7})
    metrics = (Metric("accuracy", 0.75), Metric("odd", float("nan")))
    journal.write_result(Result(metrics, table=(("accuracy", "0.75"), ("said", "a|b")), notes=("text",)))


def record_of(folder: Path) -> records.Record:
    record = records.read(folder)
    assert record is not None
    return record


def run_id_of(folder: Path) -> str:
    run_id = record_of(folder).run_id
    assert run_id is not None
    return run_id


def check(uri: str, run_id: str, journal: Journal, steps: int = 50) -> None:
    """Everything of `train` is in MLflow, once."""
    client = client_of(uri)
    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", journal.id)
    assert journal.status.ended is not None
    assert run.info.end_time == int(journal.status.ended * 1000)
    assert run.info.start_time == int(journal.status.started * 1000)
    params = run.data.params
    assert (params["seed"], params["rate"], params["nothing"], params["empty"]) == ("7", "0.001", "null", "")
    assert (params["model"], params["model.widths"]) == ("Mlp", "[64, 32]")
    assert params["model.note_0_"].startswith("xxx")
    assert len(params["model.note_0_"]) == 6000
    assert params["tracking.uri"] == "http://***@host:5000"
    tags = run.data.tags
    assert tags["receipt.precision.effective"] == "fp32"
    assert tags["receipt.precision.proved"] == "true"
    assert tags["pipeline.run"] == journal.id
    # With fewer dashes in the second line MLflow's page shows the letters, and no table.
    assert tags["mlflow.note.content"].splitlines()[1:] == ["| --- | --- |", "| accuracy | 0.75 |", "| said | a\\|b |"]
    losses = client.get_metric_history(run_id, "loss")
    assert [(point.step, point.value) for point in losses[:-1]] == [(step, 1.0 / (step + 1)) for step in range(steps)]
    assert math.isnan(losses[-1].value)
    assert losses[-1].step == steps
    assert [point.value for point in client.get_metric_history(run_id, "per_class_3_")] == list(range(steps))
    assert [point.value for point in client.get_metric_history(run_id, "grad")] == [sys.float_info.max]
    assert [point.value for point in client.get_metric_history(run_id, "result/accuracy")] == [0.75]
    assert math.isnan(client.get_metric_history(run_id, "result/odd")[0].value)
    names = {item.path for folder in ("", "figures") for item in client.list_artifacts(run_id, folder or None)}
    assert names == {"config.yaml", "receipt.json", "result.json", "figures", "figures/loss.svg"}


def sync(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.tracking", "sync", str(root), *options]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG, check=False)


def runs_of(uri: str) -> list[Any]:
    client = client_of(uri)
    experiment = client.get_experiment_by_name("study")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def points_of(uri: str, run_id: str) -> int:
    client = client_of(uri)
    names = client.get_run(run_id).data.metrics
    return sum(len(client.get_metric_history(run_id, name)) for name in names)


def test_a_run_is_in_mlflow_whole_and_live(uri: str, tmp_path: Path) -> None:
    journal, tracker = track(tmp_path / "runs", uri)
    assert tracker.process is not None
    assert os.getsid(tracker.process.pid) == tracker.process.pid  # out of reach of the terminal's Ctrl-C
    journal.log({"early": 1.0}, 0)
    wait_until(lambda: record_of(journal.folder).offset > 0)
    run = runs_of(uri)[0]
    assert run.info.status == "RUNNING"
    assert run.data.metrics == {"early": 1.0}
    assert os.getpriority(os.PRIO_PROCESS, tracker.process.pid) == 19
    train(journal)
    journal.finish("FINISHED")
    assert tracker.close(LONG) == f"synced as run {run.info.run_id}"
    check(uri, run.info.run_id, journal)
    assert run.info.artifact_uri.startswith((tmp_path / "a place" / "mlruns" / "study").as_uri())
    assert runs_below.find_run(tmp_path / "runs", run.info.run_id) == journal.folder
    assert tracker.process.wait(LONG) == 0
    assert (journal.folder / "tracking.log").read_text() == ""


def test_what_a_run_waits_for_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]  # seconds, which pass while it sleeps
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr("pipeline.tracking.tracker.time", clock)
    said: list[str] = []
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            assert Tracker(tmp_path, process).close(5, said.append) == "still syncing in the background"
        finally:
            process.kill()
    assert said == ["waiting for MLflow to have the run, up to 5 s (tracking.wait)"]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("again", ["same", "other"])
def test_what_a_run_that_goes_on_takes_back_is_no_longer_in_mlflow(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str, exact: bool
) -> None:
    """MLflow had the points of both, or those of the killed part alone."""
    monkeypatch.chdir(tmp_path)  # to open a store changes the folder
    from pipeline.tracking.store import Feed, open_store

    journal = unfollowed(tmp_path, uri)
    sizes = []
    for step in range(10):
        journal.log({"loss": float(step)}, step)
        journal.flush()
        sizes.append(journal.size)

    def advance() -> str:
        Feed(journal.folder, record_of(journal.folder), *open_store(uri, "study")).advance()
        return run_id_of(journal.folder)

    first = advance()
    journal.finish("KILLED")
    goes_on = Journal.reopen(journal.folder, sizes[4], exact=exact)
    start(Mlflow(uri=uri, experiment="study"), goes_on, "grid")
    if exact:  # nothing is cut off yet
        assert advance() == first
    for step in range(5, 15):
        goes_on.log({"loss": step + (0.5 if again == "other" else 0.0)}, step)
    goes_on.flush()
    last = advance()
    assert (last == first) == (exact and again == "same")
    had = [(one.step, one.value) for one in client_of(uri).get_metric_history(last, "loss")]
    assert had == [(one.step, one.metrics["loss"]) for one in read_metrics(journal.folder)]
    assert [one.info.run_id for one in runs_of(uri)] == [last]
    goes_on.finish("FINISHED")
    assert send(journal.folder) is None and send(journal.folder, again=True) is None
    assert run_id_of(journal.folder) == last and points_of(uri, last) == len(had)
    (journal.folder / "metrics.jsonl").rename(journal.folder / "elsewhere.jsonl")
    assert "No such file" in str(send(journal.folder, again=True))  # what cannot be read is not taken for another
    assert [one.info.run_id for one in runs_of(uri)] == [last]


def test_a_run_that_goes_on_is_running_in_mlflow(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # to open a store changes the folder
    from pipeline.tracking.store import Feed, open_store

    journal = unfollowed(tmp_path, uri)
    for state in ("KILLED", "FAILED"):
        journal.finish(state, f"it was {state}")
        assert send(journal.folder) is None
        found = client_of(uri).get_run(run_id_of(journal.folder))
        assert (found.info.status, found.data.tags["error"]) == (state, f"it was {state}")
        journal = Journal.reopen(journal.folder, journal.size)
        start(Mlflow(uri=uri, experiment="study"), journal, "grid")
        Feed(journal.folder, record_of(journal.folder), *open_store(uri, "study")).advance()
        found = client_of(uri).get_run(run_id_of(journal.folder))
        assert (found.info.status, found.data.tags.get("error")) == ("RUNNING", None)
    journal.finish("FINISHED")
    assert send(journal.folder) is None
    found = client_of(uri).get_run(run_id_of(journal.folder)).info
    assert journal.status.ended is not None
    assert (found.status, found.end_time) == ("FINISHED", int(journal.status.ended * 1000))


def test_a_run_that_was_stopped_and_then_finished_has_no_error_in_mlflow(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # to open a store changes the folder
    journal = unfollowed(tmp_path, uri)
    journal.finish("KILLED", "stopped by SIGTERM")
    assert send(journal.folder) is None
    tags = client_of(uri).get_run(run_id_of(journal.folder)).data.tags
    assert tags["error"] == "stopped by SIGTERM"
    goes_on = Journal.reopen(journal.folder, journal.size)
    start(Mlflow(uri=uri, experiment="study"), goes_on, "grid")
    goes_on.finish("FINISHED")
    assert send(journal.folder) is None
    run = client_of(uri).get_run(run_id_of(journal.folder))
    assert run.info.status == "FINISHED"
    assert "error" not in run.data.tags


def test_a_run_that_goes_on_while_its_end_is_sent_is_sent_to_its_next_end(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tracker of the first process writes last, and both ends are KILLED."""
    monkeypatch.chdir(tmp_path)  # to open a store changes the folder
    from pipeline.tracking.artifacts import upload

    journal, legs = Journal.begin(tmp_path, "run", CONFIG), list[Journal]()

    def resume_meanwhile(*arguments: Any) -> str | None:
        monkeypatch.setattr("pipeline.tracking.store.upload", upload)
        legs.append(Journal.reopen(journal.folder, journal.size))
        start(Mlflow(uri=uri, experiment="study"), legs[0], "grid")
        return upload(*arguments)

    start(Mlflow(uri=uri, experiment="study"), journal, "grid")  # a cell: nobody follows it
    journal.log({"loss": 1.0}, 0)
    journal.finish("KILLED", "the first end")
    monkeypatch.setattr("pipeline.tracking.store.upload", resume_meanwhile)
    assert send(journal.folder) is None
    legs[0].log({"loss": 0.5}, 1)
    legs[0].finish("KILLED", "the second end")
    assert send(journal.folder) is None
    run = client_of(uri).get_run(run_id_of(journal.folder))
    assert legs[0].status.ended is not None
    assert (run.info.status, run.info.end_time) == ("KILLED", int(legs[0].status.ended * 1000))
    assert (run.data.tags["error"], run.data.metrics["loss"]) == ("the second end", 0.5)


def test_entries_that_a_slow_server_made_after_all_do_not_stay(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request for a new entry was given up and sent once more, and the server answered all of them at last."""
    monkeypatch.chdir(tmp_path)  # to open a store changes the folder
    from pipeline.tracking.store import Feed, open_store

    journal = unfollowed(tmp_path, uri)
    feed = Feed(journal.folder, record_of(journal.folder), *open_store(uri, "study"))
    for _ in range(3):
        feed._create(None)  # whose answer nobody has heard
    train(journal)
    journal.finish("FINISHED")
    assert send(journal.folder) is None
    assert [run.info.run_id for run in runs_of(uri)] == [run_id_of(journal.folder)]
    check(uri, run_id_of(journal.folder), journal)


def test_start_loads_no_mlflow(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, hydra, pipeline.spec\n"
        "from pipeline.runs.journal import Journal\n"
        "journal = Journal.begin(pathlib.Path(sys.argv[1]), 'x', {})\n"
        "from pipeline.tracking.tracker import Mlflow, start\n"
        "tracker = start(Mlflow(uri='http://127.0.0.1:1'), journal)\n"
        "tracker.process.kill(); tracker.process.wait(); journal.finish('FINISHED')\n"
        "print([name for name in ('mlflow', 'sqlalchemy', 'psutil', 'filelock') if name in sys.modules])"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("whole", [True, False])
def test_only_a_database_that_lacks_tables_is_opened_under_the_lock(
    uri: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At their low share of a busy machine trackers held it for minutes, and others gave up."""
    from pipeline.tracking import store

    path = Path(uri.removeprefix("sqlite:///"))
    if not whole:  # as an older MLflow leaves it: opening it adds what has been new since
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("DROP TABLE tags")
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(store, "CREATE_SECONDS", 0.01)
    with filelock.FileLock(f"{path}.lock"), nullcontext() if whole else pytest.raises(filelock.Timeout):
        store.open_store(uri, "warm")


@pytest.mark.wide
def test_eight_runs_at_once_on_a_cold_database(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/new/mlflow.db"
    (tmp_path / "new").mkdir()
    (tmp_path / "new/mlflow.db.new").write_bytes(b"what an interrupted creation left")
    begun = [track(tmp_path / "runs", uri, f"run{number}") for number in range(8)]
    for journal, _ in begun:
        train(journal)
        journal.finish("FINISHED")
    for journal, tracker in begun:
        state = tracker.close(LONG)
        assert state.startswith("synced as run "), state
        check(uri, state.rpartition(" ")[2], journal)
    assert len(runs_of(uri)) == 8
    wait_until(lambda: all(tracker.process is None or tracker.process.poll() is not None for _, tracker in begun))
    assert {path.name for path in (tmp_path / "new").iterdir()} - {"mlflow.db-wal", "mlflow.db-shm"} == {
        "mlflow.db",
        "mlflow.db.lock",
        "mlruns",
    }


@pytest.mark.wide
def test_killed_run_is_killed_in_mlflow_too(uri: str, tmp_path: Path) -> None:
    script = (
        "import sys, time, pathlib\nfrom pipeline.runs.journal import Journal\n"
        "from pipeline.tracking.tracker import Mlflow, start\n"
        "journal = Journal.begin(pathlib.Path(sys.argv[1]), 'x', {})\n"
        "start(Mlflow(uri=sys.argv[2], experiment='study'), journal)\n"
        "journal.log({'a': 1.0}, 1)\nprint(journal.folder, flush=True)\ntime.sleep(100)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "runs"), uri]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().strip())
        run.send_signal(signal.SIGKILL)
    wait_until(lambda: record_of(folder).synced)
    status = read_status(folder)
    assert status is not None
    assert status.state == "KILLED"
    (found,) = runs_of(uri)
    assert found.info.status == "KILLED"
    assert found.data.metrics == {"a": 1.0}
    assert "ended without a message" in found.data.tags["error"]


@pytest.mark.wide
def test_server_down_then_sync_once(uri: str, server: str, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    down = f"http://127.0.0.1:{free_port()}"
    journal, tracker = track(root, down)
    train(journal)
    journal.finish("FINISHED")
    state = tracker.close(LONG)
    assert state.startswith(f"not reachable: {down}: Connection refused; the journal is complete; "), state
    assert f"`python -m pipeline.tracking sync {root}` sends it later" in state
    assert tracker.process is not None
    assert tracker.process.wait(LONG) == 1
    again = sync(root)
    assert again.returncode == 1
    assert f"{journal.id}: not sent: {down}: Connection refused" in again.stdout
    assert again.stderr == ""  # it is said once
    for target in (uri, server):  # two places, each from the beginning
        records.write(journal.folder, records.Record(uri=down, experiment="study"))
        done = sync(root, "--uri", target)
        run_id = run_id_of(journal.folder)
        assert (done.returncode, done.stdout) == (0, f"{journal.id}: synced as run {run_id}\n"), done.stderr
        check(target, run_id, journal)
    points, count = points_of(server, run_id), len(runs_of(server))
    assert sync(root).stdout == f"{root}: nothing to sync\n"
    # A tracker that died after sending and before noting it: everything is sent again, and nothing is added.
    for known in (None, run_id):
        records.write(journal.folder, records.Record(uri=server, experiment="study", run_id=known))
        assert sync(root).returncode == 0
        assert len(runs_of(server)) == count
        assert points_of(server, run_id) == points
    check(server, run_id, journal)


def files_of(uri: str, run_id: str) -> set[str]:
    client = client_of(uri)
    return {item.path for folder in (None, "figures") for item in client.list_artifacts(run_id, folder)}


@pytest.mark.wide
def test_an_artifact_that_cannot_be_sent_costs_no_other_run_anything(uri: str, tmp_path: Path) -> None:
    """A link to nothing, a named pipe, and a name that the store has for something else: in MLflow all runs have ended
    and hold all the rest."""
    root = tmp_path / "runs"
    grid, tracker = track(root, uri, "grid")
    cells = [cell_of(grid, uri, name) for name in ("a", "b", "c")]
    broken = cells[0].artifact_path("figures/gone.png")
    broken.symlink_to(tmp_path / "nowhere")
    os.mkfifo(cells[1].artifact_path("pipe"))
    wait_until(lambda: record_of(cells[2].folder).run_id is not None)
    taken = tmp_path / "a place/mlruns/study" / run_id_of(cells[2].folder) / "artifacts"
    taken.mkdir(parents=True)
    (taken / "figures").write_text("in the way")
    for cell in cells:
        train(cell)
        cell.finish("FINISHED")
    wait_until(lambda: all(record_of(cell.folder).state for cell in cells))
    last = cell_of(grid, uri, "d")
    train(last)
    last.finish("FINISHED")
    grid.finish("FINISHED")
    said = tracker.close(LONG)
    what = f"synced as run {run_id_of(grid.folder)}; 3 of its 4 cells not whole ({cells[0].id}: 1 of its 5 files not "
    assert said.startswith(
        f"{what}sent (artifacts/figures/gone.png: not a regular file)); `python -m pipeline.tracking sync "
    )
    states = {run.info.run_name: run.info.status for run in runs_of(uri)}
    assert states == dict.fromkeys([grid.id, last.id, *(cell.id for cell in cells)], "FINISHED")
    check(uri, run_id_of(last.folder), last)
    whole = {"config.yaml", "receipt.json", "result.json", "figures", "figures/loss.svg"}
    assert [files_of(uri, run_id_of(cell.folder)) for cell in cells[:2]] == [whole, whole]
    assert {"config.yaml", "receipt.json", "result.json"} <= files_of(uri, run_id_of(cells[2].folder))
    assert tracker.process is not None
    tracker.process.wait(LONG)
    assert all(record_of(cell.folder).waits_for_sync for cell in cells)  # nobody sends the files again unasked
    assert not record_of(last.folder).waits_for_sync
    broken.unlink()
    broken.write_text("a picture")
    again = sync(root)
    assert again.returncode == 1
    assert f"{cells[0].id}: synced as run {run_id_of(cells[0].folder)}\n" in again.stdout
    pipe = (
        f"{cells[1].id}: run {run_id_of(cells[1].folder)}, but 1 of its 5 files not sent (artifacts/pipe: not a regular"
    )
    assert pipe in again.stdout
    assert "figures/gone.png" in files_of(uri, run_id_of(cells[0].folder))


@pytest.mark.wide
def test_what_mlflow_refuses_of_a_run_leaves_it_ended_and_its_grid_sent(uri: str, tmp_path: Path) -> None:
    """MLflow takes no second value of a param."""
    root = tmp_path / "runs"
    grid, tracker = track(root, uri, "grid")
    first = cell_of(grid, uri, "first")
    wait_until(lambda: record_of(first.folder).run_id is not None)
    wait_until(lambda: client_of(uri).get_run(run_id_of(first.folder)).data.params)
    (first.folder / "config.yaml").write_text("seed: 8\n")
    train(first)
    first.finish("FAILED", "a reason")
    second = cell_of(grid, uri, "second")
    train(second)
    second.finish("FINISHED")
    grid.finish("FINISHED")
    said = tracker.close(LONG)
    assert f"; 1 of its 2 cells not whole ({first.id}: {uri}: " in said, said
    assert client_of(uri).get_run(run_id_of(first.folder)).info.status == "FAILED"
    check(uri, run_id_of(second.folder), second)


@pytest.mark.wide
def test_without_artifacts(uri: str, tmp_path: Path) -> None:
    journal, tracker = track(tmp_path / "runs", uri, artifacts=False)
    train(journal)
    journal.finish("FINISHED")
    assert tracker.close(LONG) == f"synced as run {run_id_of(journal.folder)}"
    assert files_of(uri, run_id_of(journal.folder)) == set()
    assert client_of(uri).get_run(run_id_of(journal.folder)).data.metrics["result/accuracy"] == 0.75


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("grid", ["seed=0,1"]),
        ("search", ["hydra/sweeper=optuna", "hydra.sweeper.trials=2", "optimizer.learning_rate=interval(0.01,0.1)"]),
    ],
)
def test_a_sweep_with_nothing_left_to_run_says_what_mlflow_lacks(
    kind: str, more: list[str], uri: str, tmp_path: Path
) -> None:
    """The next run would send it, and such a sweep is none: what a server that was down had missed was lost."""
    words = ("-m", "dataset=digits", "model=linear", "training.epochs=1", *more)
    down = f"tracking.uri=http://127.0.0.1:{free_port()}"
    first = pipeline(tmp_path, *words, down)
    assert first.returncode == 0 and "not reachable" in first.stderr, first.stderr
    (sweep,) = (tmp_path / "runs").glob(f"*-{kind}-*")
    wait_until(lambda: not follow.is_locked(sweep))
    again = pipeline(tmp_path, *words, down)
    command = "python -m pipeline.tracking sync runs"
    assert f"MLflow lacks 2 of 2 runs, or a part of them; `{command}` sends them\n" in again.stderr
    typed = [sys.executable, *command.split()[1:], "--uri", uri]
    assert subprocess.run(typed, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert "MLflow" not in pipeline(tmp_path, *words, down).stderr


@pytest.mark.wide
def test_sync_moves_runs_and_rebuilds_a_lost_database(uri: str, warm_database: Path, tmp_path: Path) -> None:
    root, other = tmp_path / "runs", tmp_path / "other"
    other.mkdir()
    shutil.copy(warm_database, other / "mlflow.db")
    to = f"sqlite:///{other}/mlflow.db"
    grid, tracker = track(root, uri, "z grid")  # begun in the same second, its cells come first by name
    cells = [cell_of(grid, uri, name) for name in ("a", "b")]
    for journal in (*cells, grid):
        train(journal)
        journal.finish("FINISHED")
    assert tracker.close(LONG).startswith("synced as run ")
    assert tracker.process is not None
    tracker.process.wait(LONG)
    before = {journal.id: record_of(journal.folder) for journal in (*cells, grid)}
    assert sync(root).stdout == f"{root}: nothing to sync\n"
    down = f"http://127.0.0.1:{free_port()}"
    nowhere = sync(root, "--uri", down)
    assert nowhere.stdout.count(f"not sent: {down}: Connection refused") == 3
    assert nowhere.stderr == ""
    assert {journal.id: record_of(journal.folder) for journal in (*cells, grid)} == before  # still where they were
    for path in (tmp_path / "a place").glob("mlflow.db*"):
        path.unlink()
    known, points = set(map(str, before.values())), 0
    for target, words in ((uri, ["--force"]), (uri, ["--force"]), (to, ["--uri", to])):
        done = sync(root, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(": synced as run ") == 3
        for journal in (*cells, grid):
            check(target, run_id_of(journal.folder), journal)
        parents = {run.info.run_name: run.data.tags.get("mlflow.parentRunId") for run in runs_of(target)}
        assert parents == {grid.id: None, **{cell.id: run_id_of(grid.folder) for cell in cells}}
        found = {run_id_of(journal.folder) for journal in (*cells, grid)}
        assert (found == known) == (points > 0 and target == uri)  # the second time nothing is new
        assert points in (0, points_of(target, run_id_of(grid.folder)))
        known, points = found, points_of(target, run_id_of(grid.folder))


@pytest.mark.wide
def test_plain_mlflow_ui_shows_the_default_layout(server: str, server_folder: Path, tmp_path: Path) -> None:
    database = f"sqlite:///{server_folder}/mlflow.db"
    journal, tracker = track(tmp_path / "runs", database, experiment="layout")
    train(journal)
    journal.finish("FINISHED")
    check(server, tracker.close(LONG).rpartition(" ")[2], journal)
    # The other way round there is a message: what a server made for itself has artifacts that only it can reach.
    client_of(server).create_experiment("made by the server")
    journal, tracker = track(tmp_path / "runs", database, experiment="made by the server")
    journal.finish("FINISHED")
    assert "a server made the experiment made by the server" in tracker.close(LONG)


@pytest.mark.wide
def test_next_run_sends_what_an_earlier_one_could_not(uri: str, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    earlier = Journal.begin(root, "earlier", CONFIG)
    records.write(earlier.folder, records.Record(uri=uri, experiment="study"))
    train(earlier)
    earlier.finish("FINISHED")
    untracked = Journal.begin(root, "untracked", CONFIG)
    assert start(Off(), untracked) is None
    untracked.finish("FINISHED")
    journal, tracker = track(root, uri)
    journal.finish("FAILED", "a reason")
    assert tracker.process is not None
    assert tracker.process.wait(LONG) == 0
    check(uri, run_id_of(earlier.folder), earlier)
    assert {run.info.status for run in runs_of(uri)} == {"FINISHED", "FAILED"}


@pytest.mark.wide
def test_a_cell_that_outlives_its_killed_grid_for_a_moment_is_killed_in_mlflow(uri: str, tmp_path: Path) -> None:
    """It stayed RUNNING there until another command looked."""
    grid = Journal.begin(tmp_path / "runs", "grid", CONFIG)
    script = (
        "import sys, pathlib\nfrom pipeline.runs.journal import Journal\n"
        "print(Journal.begin(pathlib.Path(sys.argv[1]), 'cell', {}).folder)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "runs")]
    cell = Path(subprocess.check_output(command, env={**os.environ, "PYTHONPATH": SOURCE}, text=True).strip())
    records.write(cell, records.Record(uri=uri, experiment="study", grid=str(grid.folder)))
    follow.prepare()
    follow._send_leftovers(grid.folder)
    (found,) = runs_of(uri)
    assert (found.info.status, record_of(cell).synced) == ("KILLED", True)


def test_the_folder_of_a_deleted_run_is_not_made_again(tmp_path: Path) -> None:
    """By its lock: a grid's tracker goes on to look after its cells."""
    with lock(tmp_path / "gone", timeout=0.0) as busy:
        assert busy == "its folder is gone"
    assert not follow.is_locked(tmp_path / "gone")
    assert list(tmp_path.iterdir()) == []


CASES = ("a folder", *(pytest.param(case, marks=pytest.mark.wide) for case in ("not a database", "below a file")))


@pytest.mark.wide
@pytest.mark.parametrize("case", CASES)
def test_database_that_cannot_be_written(tmp_path: Path, case: str) -> None:
    path = tmp_path / "mlflow.db"
    if case == "a folder":
        path.mkdir()
    else:
        path.write_bytes(b"some text of mine, and no database at all " * 50)
    before = path.stat()
    journal, tracker = track(tmp_path / "runs", f"sqlite:///{path}" + ("/mlflow.db" if case == "below a file" else ""))
    train(journal)
    journal.finish("FINISHED")
    state = tracker.close(LONG)
    assert state.startswith("not reachable: sqlite:///"), state
    assert "sends it later" in state
    reasons = {"not a database": "not a database", "below a file": "exists", "a folder": "unable to open database file"}
    assert reasons[case] in state
    assert path.stat().st_size == before.st_size
    assert len(list(read_metrics(journal.folder))) == 51


@pytest.mark.wide
def test_a_full_disk_keeps_no_half_made_database(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    prefix = with_small_disk("300k", disk)
    if prefix is None:
        pytest.skip("no user namespace with mounts here")
    make = f"from pipeline.tracking.store import open_store; open_store('sqlite:///{disk}/mlflow.db', 'x')"
    script = '"$1" -c "$2"; echo $?; ls "$3"'
    command = [*prefix, "sh", "-c", script, "sh", sys.executable, make, str(disk)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert "full" in result.stderr
    assert result.stdout == "1\nmlflow.db.lock\n"


@pytest.mark.wide
def test_read_only_database(uri: str, tmp_path: Path) -> None:
    """A read-only mount: even root cannot write there."""
    place = tmp_path / "a place"
    script = (
        "import sys, pathlib\nfrom pipeline.runs.journal import Journal\n"
        "from pipeline.tracking.tracker import Mlflow, start\n"
        "journal = Journal.begin(pathlib.Path(sys.argv[1]), 'x', {})\n"
        "tracker = start(Mlflow(uri=sys.argv[2]), journal)\njournal.finish('FINISHED')\nprint(tracker.close(600.0))"
    )
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    prefix = ["unshare", "-rm", "sh", "-c", mount, str(place)]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no user namespace with mounts here")
    command = [*prefix, sys.executable, "-c", script, str(tmp_path / "runs"), uri]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.stdout.startswith(f"not reachable: {uri}: Read-only file system; "), done.stdout + done.stderr


def test_close_does_not_wait_for_a_slow_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and never answers
        journal, tracker = track(tmp_path / "runs", f"http://127.0.0.1:{silent.getsockname()[1]}")
        train(journal)
        journal.finish("FINISHED")
        assert tracker.close(0.3) == "still syncing in the background"
        assert tracker.process is not None
        tracker.process.kill()
        tracker.process.wait()


def test_tracker_that_dies_leaves_a_reason(tmp_path: Path) -> None:
    journal, tracker = track(tmp_path / "runs", "http://127.0.0.1:1")
    assert tracker.process is not None
    tracker.process.kill()
    journal.finish("FINISHED")
    assert tracker.close(LONG).startswith("not reachable: ")


def test_a_run_that_another_process_still_sends_says_so(tmp_path: Path) -> None:
    """Of a run that went on while the tracker of its first process was at work: MLflow answers."""
    journal = Journal.begin(tmp_path / "my runs", "run", CONFIG)
    records.write(journal.folder, records.Record(uri="http://127.0.0.1:1", experiment="study"))
    journal.finish("FINISHED")
    (journal.folder / "tracking.log").write_text("this one gave up\n")
    process = subprocess.Popen(["true"])
    process.wait()
    tracker = Tracker(journal.folder, process)
    with lock(journal.folder, timeout=0.0):
        rest = f"`python -m pipeline.tracking sync '{tmp_path}/my runs'` sends what it leaves"
        assert tracker.close(0.2) == f"another process is still sending it; {rest}"
    assert tracker.close(LONG).startswith("not reachable: this one gave up; ")


@pytest.mark.wide
def test_a_tracker_waits_for_the_one_before_it_as_long_as_the_run_goes_on(uri: str, tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, "run", CONFIG)
    records.write(journal.folder, records.Record(uri=uri, experiment="study"))
    script = (
        "import sys, pathlib\nfrom pipeline.tracking import follow\n"
        "follow.LOCK_SECONDS, follow.step_back = 0.0, lambda: None\n"
        "follow.reap = lambda root: print('begun', flush=True)\n"  # the last thing before it asks for the lock
        "sys.exit(follow.follow(pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", script, str(journal.folder)]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as tracker:
        with lock(journal.folder, timeout=0.0):
            assert tracker.stdout is not None
            tracker.stdout.readline()
            time.sleep(2.0)
        journal.finish("FINISHED")
        assert tracker.wait(LONG) == 0
    assert record_of(journal.folder).synced


def test_default_and_environment_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for value, expected in ((None, f"sqlite:///{tmp_path}/mlflow.db"), ("http://127.0.0.1:1", "http://127.0.0.1:1")):
        if value:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", value)
        journal, tracker = track(Path("runs"), None)
        assert tracker.process is not None
        tracker.process.kill()
        tracker.process.wait()
        assert record_of(journal.folder).uri == expected
        journal.finish("FINISHED")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    with pytest.raises(UserError, match=r"MLFLOW_TRACKING_URI=./mlruns: not a tracking server; choose sqlite:///"):
        track(Path("runs"), None)


@pytest.mark.parametrize(("name", "refused"), [("a?b", True), ("a%20b", True), ("100%", False), ("a b#c", False)])
def test_a_folder_whose_name_an_address_would_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, refused: bool
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with_options = f"sqlite:///{tmp_path}/mlflow.db?timeout=9"  # the ? begins the options of the address
    assert records.check_uri(with_options) == with_options
    if not refused:
        assert records.check_uri(records.DEFAULT_URI) == f"sqlite:///{tmp_path / name}/mlflow.db"
        return
    with pytest.raises(UserError) as caught:
        track(Path("runs"), None)
    assert str(caught.value) == (
        f"tracking.uri=null: {tmp_path / name}/mlflow.db as a database's address is another file, for the ? or the %XX "
        "in it; name a database elsewhere, as tracking.uri=sqlite:///<file>"
    )


def test_a_database_is_the_file_before_the_options_of_its_address(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tracker took them for a part of the name, and could not make that file: "could not convert string to float:
    '9.new'"."""
    from pipeline.tracking.store import Feed, open_store

    place = tmp_path / "a place"
    monkeypatch.chdir(place)  # which opening a database changes
    with_options = records.check_uri("sqlite:///mlflow.db?timeout=9")
    assert with_options == f"{uri}?timeout=9"
    assert records.sqlite_path(with_options) == records.sqlite_path(uri) == place / "mlflow.db"
    journal = Journal.begin(tmp_path, "run", CONFIG)
    start(Mlflow(uri=with_options, experiment="study"), journal, "grid")  # a cell: nobody follows it
    Feed(journal.folder, record_of(journal.folder), *open_store(with_options, "study")).advance()
    assert [run.info.run_name for run in runs_of(uri)] == [journal.id]
    assert not [path.name for path in place.iterdir() if "?" in path.name]
    for options in ("c.db", "timeot=9", "timeout=9&c/m.db"):
        with pytest.raises(ValueError, match=r"for the \? or|no option '(c.db|timeot)' of .*; choose from timeout"):
            records.check_uri(f"sqlite:///mlflow.db?{options}")
    with pytest.raises(ValueError, match=r"the option uri is for .*; give sqlite:///<file>"):
        records.check_uri("sqlite:///file:mlflow.db?mode=rwc&uri=true")
    with pytest.raises(ValueError, match="a database in memory dies"):
        records.check_uri("sqlite:///?timeout=9")
    with pytest.raises(ValueError, match="not a tracking server"):
        records.check_uri("sqlite:mlflow.db")


def test_a_password_is_kept_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = "http://me:sec@ret@127.0.0.1:1"
    journal, tracker = track(tmp_path / "runs", uri)
    assert tracker.process is not None
    wait_until(lambda: (record := records.read(journal.folder)) is not None and record.error is not None)
    tracker.process.kill()
    tracker.process.wait()
    journal.finish("FINISHED")
    assert record_of(journal.folder).uri == uri  # to be sent later, it must be known
    assert (journal.folder / "mlflow.json").stat().st_mode & 0o777 == 0o600
    others = [path for path in journal.folder.rglob("*") if path.is_file() and path.name != "mlflow.json"]
    assert {"config.yaml", "tracking.log"} <= {path.name for path in others}
    assert not [path.name for path in others if b"ret@" in path.read_bytes()]
    assert "://***@host:5000" in (journal.folder / "config.yaml").read_text()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "ftp://me:secret@host")
    with pytest.raises(UserError, match=r"^MLFLOW_TRACKING_URI=ftp://\*\*\*@host: not a tracking server"):
        track(tmp_path / "runs", None)


@pytest.mark.parametrize("uri", ["mlruns", "file:///x", "sqlite://", "sqlite:///:memory:", "htp://x"])
def test_uri_that_mlflow_cannot_take(uri: str) -> None:
    with pytest.raises(UserError, match=r"tracking\.uri='.*': .*sqlite:///"):
        build({"_target_": "pipeline.tracking.tracker.Mlflow", "uri": uri}, "tracking")


def test_shipped_choices_build() -> None:
    import yaml

    folder = Path(__file__).parents[1] / "conf" / "tracking"
    choices = {path.stem: build(yaml.safe_load(path.read_text()), "tracking") for path in folder.glob("*.yaml")}
    assert choices == {"mlflow": Mlflow(), "none": Off()}


def test_a_server_that_is_down_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # to open a store changes the folder
    down, asked = f"http://127.0.0.1:{free_port()}", list[str]()

    def send_and_count(folder: Path, *words: Any, **settings: Any) -> str | None:
        asked.append(folder.name)
        return send(folder, *words, **settings)

    monkeypatch.setattr("pipeline.tracking.sync.send", send_and_count)
    for name in "abc":
        journal = Journal.begin(tmp_path, name, CONFIG)
        records.write(journal.folder, records.Record(uri=down, experiment="study"))
        journal.finish("FINISHED")
    assert sync_here(tmp_path) == 1
    assert len(asked) == 1


def test_sync_of_a_folder_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline.tracking", "sync", "nope"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 2
    assert result.stderr.endswith("error: nope: no such folder\n")


def test_names_are_made_legal_by_one_rule() -> None:
    from mlflow.utils.validation import _validate_metric_name, _validate_param_name

    names = ["loss", "a[0]", "a//b", "/a", "../a", "a/", ".", "", "é(%)", "x" * 300, "a/./b", "\n", "train/loss: mean"]
    for name in names:
        _validate_metric_name(legal_name(name))
        _validate_param_name(legal_name(name))
        assert len(legal_name(name)) <= 250
    assert [legal_name(name) for name in ("loss", "a[0]", "train/loss: mean")] == ["loss", "a_0_", "train/loss: mean"]
    assert legal_name("x" * 300) != legal_name("x" * 301)
    assert len({legal_name(name) for name in ("acc@1", "acc_1", "acc%1", "acc_1/", "acc_1/_")}) == 5


@given(st.text(max_size=300) | st.text("./_ a-:[]1@", max_size=12) | st.text("/.a", min_size=238, max_size=252))
def test_any_name_becomes_one_that_mlflow_takes(name: str) -> None:
    """`..x` would resolve to what lies above, so that none of the run's metrics was taken."""
    from mlflow.utils.validation import _validate_metric_name, _validate_param_name, _validate_tag_name

    for validate in (_validate_metric_name, _validate_param_name, _validate_tag_name):
        validate(legal_name(name))
    assert len(legal_name(name)) <= 250


def test_record_file_is_json(tmp_path: Path) -> None:
    records.write(tmp_path, records.Record(uri="u", experiment="e", run_id="r"))
    assert json.loads((tmp_path / "mlflow.json").read_text())["run_id"] == "r"
    (tmp_path / "mlflow.json").write_text("{")
    assert records.read(tmp_path) is None


def test_a_copy_of_a_run_has_no_part_in_its_entry(tmp_path: Path) -> None:
    """Neither where it is deleted nor where it goes on. A run that was moved keeps its entry."""
    journal, uri = Journal.begin(tmp_path / "runs", "first", CONFIG), f"sqlite:///{tmp_path}/mlflow.db"
    train(journal, 3)
    journal.finish("KILLED")
    sent = records.Record(uri=uri, experiment="study", run_id="entry", offset=journal.size, last="x", state="KILLED")
    records.write(journal.folder, sent)
    other, beside = tmp_path / "copies" / journal.id, tmp_path / "runs" / f"{journal.id}-backup"
    for copy in (other, beside):
        shutil.copytree(journal.folder, copy)
        found = record_of(copy)
        assert (found.run_id, found.offset, found.last, found.state) == (None, 0, None, "KILLED")
        assert records.original(copy) == journal.folder
    command = [sys.executable, "-m", "pipeline", "stage=delete", f"run={beside.name}", "stage.sure=true"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=True)
    assert done.stdout == f"deleted {beside.name}; it was a copy of {journal.folder}, whose entry in MLflow stays\n"
    start(Mlflow(uri=uri, experiment="study"), Journal.reopen(other, 0), "grid")  # a cell: nobody follows it
    assert (record_of(other).run_id, records.original(other)) == (None, None)
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    assert record_of(tmp_path / "link" / journal.id).run_id == "entry"
    moved = journal.folder.rename(tmp_path / "runs" / "renamed")
    assert (record_of(moved).run_id, records.original(moved)) == ("entry", None)


@pytest.mark.wide
def test_a_deleted_run_is_deleted_in_mlflow_too_and_stays_where_mlflow_does_not_answer(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.tracking.forget.LOCK_SECONDS", 0.1)
    here, root = Path.cwd(), tmp_path / "runs"
    journal = Journal.begin(root, "gone", CONFIG)
    records.write(journal.folder, records.Record(uri=uri, experiment="study"))
    train(journal, 3)
    journal.finish("FINISHED")
    try:
        assert forget(journal.folder) is None  # not sent yet
        assert send(journal.folder) is None
    finally:
        os.chdir(here)
    run_id = run_id_of(journal.folder)
    with lock(journal.folder, timeout=0.0), pytest.raises(RunError, match="another process is sending it; try again"):
        forget(journal.folder)

    record, nowhere = record_of(journal.folder), f"http://127.0.0.1:{free_port()}"
    records.write(journal.folder, replace(record, uri=f"sqlite:///{tmp_path}/lost.db"))
    assert forget(journal.folder) is None  # a database that is gone has no entry
    records.write(journal.folder, replace(record, uri=nowhere))
    with pytest.raises(RunError, match=f"{journal.id}: MLflow: {nowhere}: Connection refused"):
        forget(journal.folder)
    records.write(journal.folder, record)
    assert client_of(uri).get_run(run_id).info.lifecycle_stage == "active"
    command = [sys.executable, "-m", "pipeline", "stage=delete", f"run={journal.id}", "stage.sure=true"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=True)
    assert done.stdout == f"deleted {journal.id}, and its entry {run_id} in MLflow\n"
    assert client_of(uri).get_run(run_id).info.lifecycle_stage == "deleted"
    assert not journal.folder.exists()


def test_an_entry_that_was_deleted_on_its_page_is_made_again_when_that_is_asked_for(tmp_path: Path, uri: str) -> None:
    """MLflow gives a deleted run by its id and takes nothing for it: it could be neither sent nor rebuilt."""
    here, journal = Path.cwd(), Journal.begin(tmp_path / "runs", "kept", CONFIG)
    records.write(journal.folder, records.Record(uri=uri, experiment="study"))
    train(journal, 3)
    journal.finish("FINISHED")
    try:
        assert send(journal.folder) is None
        gone = run_id_of(journal.folder)
        client_of(uri).delete_run(gone)
        assert send(journal.folder, again=True) is None
    finally:
        os.chdir(here)
    found = run_id_of(journal.folder)
    assert found != gone and client_of(uri).get_run(found).info.lifecycle_stage == "active"
    assert client_of(uri).get_run(gone).info.lifecycle_stage == "deleted"


def autogroups() -> bool:
    """Whether this system has them; where they are switched off at its start, the file is empty."""
    try:
        return bool(Path("/proc/self/autogroup").read_text().strip())
    except OSError:
        return False


@pytest.mark.skipif(not autogroups(), reason="this system has no autogroups")
def test_a_copy_of_a_run_that_goes_on_gets_its_own_entry(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the same name in another folder. An entry that a tracker made and could not note is still found."""
    monkeypatch.chdir(tmp_path)  # to open a store changes the folder
    journal = unfollowed(tmp_path / "runs", uri)
    journal.log({"loss": 1.0}, 1)
    journal.finish("KILLED", "stopped by SIGTERM")
    assert send(journal.folder) is None
    first = run_id_of(journal.folder)
    copy = tmp_path / "other" / journal.id
    shutil.copytree(journal.folder, copy)
    goes_on = Journal.reopen(copy, 0)
    start(Mlflow(uri=uri, experiment="study"), goes_on, "grid")
    goes_on.log({"loss": 2.0}, 1)
    goes_on.finish("FINISHED")
    assert send(copy) is None
    records.write(journal.folder, replace(record_of(journal.folder), run_id=None).unsent())
    assert send(journal.folder) is None
    assert {run.info.run_id: run.info.status for run in runs_of(uri)} == {first: "KILLED", run_id_of(copy): "FINISHED"}
    assert run_id_of(journal.folder) == first
    assert [points_of(uri, one) for one in (first, run_id_of(copy))] == [1, 1]


@pytest.mark.parametrize("own", [True, False])
def test_a_tracker_steps_back_as_a_session_too(own: bool) -> None:
    """Cores are shared between sessions first, a priority counts within one. Another's session is left as it is."""
    code = "from pipeline.tracking import share; share.step_back(); print(open('/proc/self/autogroup').read())"
    command = [sys.executable, "-c", code]
    if not own:  # a session that the process is in, but did not begin
        command = ["sh", "-c", 'exec 3>&1; "$0" "$@" >&3; true', *command]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("nice 19" if own else "nice 0"), done.stderr


@pytest.mark.skipif(not autogroups(), reason="this system has no autogroups")
def test_at_the_end_of_its_run_a_tracker_has_its_share(tmp_path: Path) -> None:
    """Whoever began the run waits for it; beside busy processes it took minutes. Whatever it is at, such as imports."""
    journal = Journal.begin(tmp_path, "run", CONFIG)
    journal.finish("FINISHED")
    sleeps = subprocess.Popen(["sleep", "100"], start_new_session=True)
    group = Path(f"/proc/{sleeps.pid}/autogroup")
    try:
        share(19, sleeps.pid)
        assert group.read_text().strip().endswith("nice 19")
        Tracker(journal.folder, sleeps).close(0.0)
        assert group.read_text().strip().endswith("nice 0")
    finally:
        sleeps.kill()
        sleeps.wait()


@pytest.mark.skipif(not autogroups(), reason="this system has no autogroups")
def test_imports_that_get_no_core_get_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def until_some_is_given(_: Path) -> None:
        wait_until(lambda: given)

    monkeypatch.setattr(follow, "share", given.append)
    monkeypatch.setattr(follow, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(follow, "_open_feed", until_some_is_given)
    follow._open_patiently(tmp_path)
    monkeypatch.setattr(follow, "PATIENCE_SECONDS", LONG)
    monkeypatch.setattr(follow, "_open_feed", lambda _: None)
    follow._open_patiently(tmp_path)
    assert given == [10, 19, 19]


def test_nothing_is_collected_while_mlflow_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took a sixth of the import, which every tracked run pays for."""
    collects = list[bool]()
    monkeypatch.setattr("pipeline.tracking.store.open_store", lambda *_: collects.append(gc.isenabled()))
    follow._store.__wrapped__("sqlite:///mlflow.db", "study")
    assert (collects, gc.isenabled()) == ([False], True)


def test_a_class_of_the_users_is_a_param_with_its_module() -> None:
    """Two modules may each have a Net; a class of this package is named alone."""
    config = {"model": {"_target_": "lab.a.Net", "width": 8}, "loss": {"_target_": "pipeline.losses.hinge.Hinge"}}
    assert flatten(config) == {"model": "lab.a.Net", "model.width": "8", "loss": "Hinge"}
