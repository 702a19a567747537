"""What of a run's journal stands in MLflow: all of it, under its own grid, ended as the run has ended."""

from __future__ import annotations

import getpass
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from pipeline.runs.journal import Journal
from pipeline.runs.records import CHUNK_BYTES, State, read_status
from pipeline.runs.result import Metric, Result
from pipeline.tracking import record as records
from pipeline.tracking.follow import _send_leftovers, send
from pipeline.tracking.store import PARENT, open_store

EXPERIMENT = "a study/of nets"


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A new database, as the first run of a folder makes it."""
    here, place = Path.cwd(), tmp_path_factory.mktemp("a place")
    try:
        open_store(f"sqlite:///{place}/mlflow.db", EXPERIMENT)
    finally:
        os.chdir(here)
    return f"sqlite:///{place}/mlflow.db"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # to open a store changes the folder


def begin(root: Path, uri: str, config: dict[str, Any] | None = None, grid: Path | None = None) -> Journal:
    """A run that nobody follows yet."""
    journal = Journal.begin(root, "run", config or {"seed": 1})
    named = None if grid is None else str(grid)
    records.write(journal.folder, records.Record(uri=uri, experiment=EXPERIMENT, grid=named))
    return journal


def sent(root: Path, uri: str, state: State) -> Journal:
    """A run of three steps that has ended so and stands in MLflow."""
    journal = begin(root, uri)
    for step in range(3):
        journal.log({"loss": float(step)}, step)
    journal.finish(state)
    assert send(journal.folder) is None
    return journal


def entry(folder: Path, uri: str) -> Any:
    record = records.read(folder)
    assert record is not None and record.run_id is not None
    return MlflowClient(uri).get_run(record.run_id)


def test_no_point_and_no_setting_of_a_long_run_is_lost(tmp_path: Path, uri: str) -> None:
    """MLflow takes a thousand points at once, and a hundred settings; the journal is read piece by piece."""
    config = {f"key_{number}": number for number in range(230)}
    journal = begin(tmp_path / "runs", uri, {**config, "long": "x" * 7000, "exact": "y" * 6000})
    for step in range(1250):
        journal.log({"loss": step / 2, f"rate_{'x' * 200}": float(step)}, step)
    journal.flush()
    assert (journal.folder / "metrics.jsonl").stat().st_size > CHUNK_BYTES
    journal.write_result(Result(tuple(Metric(f"figure_{number}", number) for number in range(1100))))
    journal.write_receipt({f"fact_{number}": number for number in range(130)} | {"long": "z" * 6000})
    journal.finish("FINISHED")
    assert send(journal.folder) is None
    run, client = entry(journal.folder, uri), MlflowClient(uri)
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(step, step / 2) for step in range(1250)]
    assert {f"result/figure_{number}": float(number) for number in range(1100)}.items() <= run.data.metrics.items()
    assert {name: str(value) for name, value in config.items()}.items() <= run.data.params.items()
    assert {f"receipt.fact_{number}": str(number) for number in range(130)}.items() <= run.data.tags.items()
    assert run.data.params["long"] == "x" * 5997 + "..." and run.data.params["exact"] == "y" * 6000
    assert run.data.tags["receipt.long"] == "z" * 4997 + "..."


def test_an_entry_says_whose_run_it_is_and_where_it_lies(tmp_path: Path, uri: str) -> None:
    journal = begin(tmp_path / "runs", uri)
    journal.artifact_path("figures/loss.txt").write_text("a figure")
    journal.finish("FINISHED")
    assert send(journal.folder) is None
    run, status = entry(journal.folder, uri), read_status(journal.folder)
    assert status is not None and status.ended is not None
    assert (run.info.run_name, run.data.tags["pipeline.run"]) == (journal.id, journal.id)
    assert run.data.tags["pipeline.folder"] == str(journal.folder)
    assert run.data.tags["mlflow.user"] == getpass.getuser()
    assert (run.info.start_time, run.info.end_time) == (int(status.started * 1000), int(status.ended * 1000))
    place = Path(uri.removeprefix("sqlite:///")).parent / "mlruns" / "a_study_of_nets"
    assert [path.name for path in place.rglob("loss.txt")] == ["loss.txt"]


@pytest.mark.parametrize(
    ("state", "shown"),
    [("FINISHED", "FINISHED"), ("FAILED", "FAILED"), ("KILLED", "KILLED"), ("PRUNED", "KILLED")],
)
def test_a_run_has_ended_in_mlflow_as_it_has(state: State, shown: str, tmp_path: Path, uri: str) -> None:
    """MLflow has no word for a trial that a search cut short; why a run ended is a tag of it."""
    journal = begin(tmp_path / "runs", uri)
    journal.finish(state, "for a reason" if state == "FAILED" else None)
    assert send(journal.folder) is None
    run = entry(journal.folder, uri)
    assert (run.info.status, run.data.tags.get("error")) == (shown, "for a reason" if state == "FAILED" else None)
    record = records.read(journal.folder)
    assert record is not None and (record.state, record.synced, record.error) == (state, True, None)


def test_a_cell_stands_below_its_grid_whichever_comes_first(tmp_path: Path, uri: str) -> None:
    """Also where both were moved; not below one that another server has."""
    grid = begin(tmp_path / "runs", uri)
    cells = [begin(tmp_path / "runs", uri, grid=grid.folder) for _ in range(2)]
    cells[0].finish("KILLED")
    assert send(cells[0].folder) is None
    assert PARENT not in entry(cells[0].folder, uri).data.tags
    grid.finish("FINISHED")
    assert send(grid.folder) is None
    cells[1].finish("FINISHED")
    Journal.reopen(cells[0].folder, 0).finish("FINISHED")
    parent = entry(grid.folder, uri).info.run_id
    for cell in cells:
        assert send(cell.folder, again=True) is None
        assert entry(cell.folder, uri).data.tags[PARENT] == parent
    late = begin(tmp_path / "runs", uri, grid=grid.folder)
    other = begin(tmp_path / "runs", uri, grid=grid.folder)
    for journal in (late, other):
        journal.finish("FINISHED")
    moved = (tmp_path / "runs").rename(tmp_path / "moved")
    assert send(moved / late.id) is None
    assert entry(moved / late.id, uri).data.tags[PARENT] == parent
    record = records.read(moved / grid.id)
    assert record is not None
    records.write(moved / grid.id, replace(record, uri="http://127.0.0.1:9"))
    assert send(moved / other.id) is None
    assert PARENT not in entry(moved / other.id, uri).data.tags


def test_a_cell_is_no_leftover_before_its_grid_is_in_mlflow(tmp_path: Path, uri: str) -> None:
    """The tracker of another run sent it first, and MLflow never learned whose cell it is."""
    own, grid = (begin(tmp_path / "runs", uri) for _ in range(2))
    cell = begin(tmp_path / "runs", uri, grid=grid.folder)
    cell.finish("FINISHED")
    _send_leftovers(own.folder)
    record = records.read(cell.folder)
    assert record is not None and record.run_id is None
    grid.finish("FINISHED")
    _send_leftovers(own.folder)
    assert entry(cell.folder, uri).data.tags[PARENT] == entry(grid.folder, uri).info.run_id


def test_what_is_sent_twice_stands_there_once(tmp_path: Path, uri: str) -> None:
    """A tracker may have died before it noted what it had sent, or which entry it had made."""
    journal = sent(tmp_path / "runs", uri, "FINISHED")
    record, run = records.read(journal.folder), entry(journal.folder, uri)
    assert record is not None
    for before in (record.unsent(), replace(record.unsent(), run_id=None)):
        records.write(journal.folder, before)
        assert send(journal.folder) is None
        assert entry(journal.folder, uri).info.run_id == run.info.run_id
        assert len(MlflowClient(uri).get_metric_history(run.info.run_id, "loss")) == 3


def test_a_run_whose_entry_is_gone_is_sent_from_its_beginning(tmp_path: Path, uri: str) -> None:
    """It went on after somebody had deleted its entry, of which MLflow takes no more points."""
    journal = sent(tmp_path / "runs", uri, "KILLED")
    gone = entry(journal.folder, uri).info.run_id
    MlflowClient(uri).delete_run(gone)
    goes_on = Journal.reopen(journal.folder, (journal.folder / "metrics.jsonl").stat().st_size)
    for step in range(3, 5):
        goes_on.log({"loss": float(step)}, step)
    goes_on.finish("FINISHED")
    assert send(journal.folder) is None
    run = entry(journal.folder, uri).info
    assert (run.run_id != gone, run.status) == (True, "FINISHED")
    history = MlflowClient(uri).get_metric_history(run.run_id, "loss")
    assert [point.step for point in history] == [0, 1, 2, 3, 4]
