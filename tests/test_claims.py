"""Grids at the same time: a claim per cell, which no crash leaves behind; what runs elsewhere is waited for."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command import pipeline, runs, status
from in_backend import experiment, on_cpu
from test_sweep import QUIET, grids, table, trained
from test_sweep_failures import _python_path, begin, wait_until

from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.receipt import before
from pipeline.runs.records import State, Status, read_config
from pipeline.sweep.claims import NAME, Claims, Shared
from pipeline.sweep.history import History, Past
from pipeline.sweep.plan import Cell
from pipeline.sweep.schedule import Outcome

HOLDER = """
import sys, time
from pathlib import Path
from pipeline.sweep.claims import Claims
claims = Claims(Path(sys.argv[1]))
print(*[claims.take(key) for key in sys.argv[2:]], flush=True)
time.sleep(100)
"""
HELD = """
import os, time
from pathlib import Path
from pipeline.contracts import Model
from pipeline.models.linear import Linear
from pipeline.spec import spec

@spec
class Held(Model):
    def torch(self, shapes):
        while Path(os.environ["HOLD"]).exists() and any(Path(os.environ["RUNS"]).glob("*/status.json")):  # it has begun
            time.sleep(0.05)
        return Linear().torch(shapes)
"""
KEYS = ("0" * 64, "f" * 64, "0" * 14 + "1" + "0" * 49)


@contextmanager
def holder(root: Path, *keys: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that claims, and whether it could."""
    command = [sys.executable, "-c", HOLDER, str(root), *keys]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_claim_is_one_process_s_until_it_ends(tmp_path: Path) -> None:
    ours = Claims(tmp_path)
    assert ours.take(KEYS[2])
    with holder(tmp_path, *KEYS) as (process, said):
        assert said == "True True False"
        assert [ours.take(key) for key in KEYS] == [False, False, True]
        process.kill()  # SIGKILL: nothing is cleaned up, and nothing has to be
        process.wait()
        assert all(ours.take(key) for key in KEYS)
    ours.release(KEYS[0])
    with holder(tmp_path, *KEYS) as (_, said):
        assert said == "True False False"


def test_the_claim_of_a_cell_that_has_a_result_is_given_back(tmp_path: Path) -> None:
    """Another grid that comes to the cell later takes the result, and does not wait for this one's end."""
    asked = experiment("torch")
    cell = Cell(1, {}, dict(asked.config), [], asked, on_cpu(asked))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "receipt.json").write_text('{"wall_time_s": 1.5}')
    done = Status(
        id="run", name="run", state="FINISHED", pid=1, process_started=None, host="here", pid_namespace=None,
        started=1.0, ended=3.0,
    )  # fmt: skip

    class Known(Shared):
        def _since_planned(self, _: Cell) -> list[Past]:
            return [Past(tmp_path / "run", done, ())]

    shared = Known([cell], History(tmp_path), Claims(tmp_path), print)
    assert shared.next(always) is None
    (taken,) = shared.taken()
    assert (taken.state, taken.reason, taken.seconds) == ("FINISHED", "run by another command as run", 1.5)
    with holder(tmp_path, asked.config_sha256()) as (_, said):
        assert said == "True"


def always(_: Cell) -> bool:
    """Of a machine with room for whatever comes."""
    return True


def test_a_cell_that_could_not_start_now_is_not_claimed(tmp_path: Path) -> None:
    """It was, so that an idle command waited for a cell that had not begun."""
    asked = experiment("torch")
    cell = Cell(1, {}, dict(asked.config), [], asked, on_cpu(asked))
    shared = Shared([cell], History(tmp_path), Claims(tmp_path), print)
    assert shared.next(lambda _: False) is None
    with holder(tmp_path, asked.config_sha256()) as (_, said):
        assert said == "True"
    assert shared.next(always) is cell


def test_a_cell_that_another_command_has_claimed_waits_for_it(tmp_path: Path) -> None:
    """That is said once, and of other commands. Of two cells here that share a run the second waits, too."""
    asked, said = experiment("torch"), list[str]()
    cells = [Cell(number, {}, dict(asked.config), [], asked, on_cpu(asked)) for number in range(2)]
    shared = Shared(cells, History(tmp_path), Claims(tmp_path), said.append)
    with holder(tmp_path, asked.config_sha256()) as (_, taken):
        assert taken == "True"
        for _ in range(3):
            shared.try_again = 0.0
            assert shared.next(always) is None and shared.waits
        assert said == ["waiting for another command, which runs 2 of these cells"]
    assert shared.next(always) is None  # it is looked at once in a while
    shared.try_again = 0.0
    assert shared.next(always) is cells[0] and shared.waits
    assert shared.next(always) is None and len(said) == 1
    shared.ended(Outcome(cells[0], "KILLED", "", 1.0, None))
    shared.try_again = 0.0
    assert shared.next(always) is cells[1] and not shared.waits


def test_a_cell_that_does_not_fit_holds_none_up_behind_it(tmp_path: Path) -> None:
    """Of device=gpu:0,gpu:1 beside seeds, all cells of the first came first, and the second GPU idled."""
    asked = [experiment("torch", seed) for seed in range(4)]
    kinds: tuple[Any, ...] = ("gpu", "gpu", "cpu", "gpu")
    cells = [
        Cell(number, {}, dict(one.config), [], one, on_cpu(one), kind=kind)
        for number, (one, kind) in enumerate(zip(asked, kinds, strict=True))
    ]
    shared, looked = Shared(cells, History(tmp_path), Claims(tmp_path), print), list[int]()

    def fits(cell: Cell) -> bool:
        looked.append(cell.number)
        return cell.kind == "cpu"

    assert shared.next(fits) is cells[2] and looked == [0, 2]  # and not the second of those that need the same
    assert shared.next(fits) is None
    assert [shared.next(always) for _ in range(4)] == [cells[0], cells[1], cells[3], None]


def killed(root: Path) -> tuple[Cell, Journal, Shared]:
    """A cell, its run that was killed, and a grid that was planned after that."""
    asked = experiment("torch")
    cell = Cell(1, {}, dict(asked.config), [], asked, on_cpu(asked))
    journal = Journal.begin(root, "cell", asked.config)
    write_json(journal.folder / "receipt.json", before(asked, on_cpu(asked)))
    journal.finish("KILLED", "stopped by SIGINT")
    return cell, journal, Shared([cell], History(root), Claims(root), print)


def goes_on(run: Path, **changes: object) -> None:
    write_json(run / "status.json", {**read_json(run / "status.json"), **changes})


@pytest.mark.parametrize(("state", "taken"), [("KILLED", []), ("FINISHED", ["FINISHED"]), ("FAILED", ["FAILED"])])
def test_a_killed_run_that_another_command_has_resumed_is_used(tmp_path: Path, state: State, taken: list[str]) -> None:
    """It had ended when the grid was planned, and was trained a second time."""
    cell, journal, shared = killed(tmp_path)
    goes_on(journal.folder, state=state)
    assert shared.next(always) is (None if taken else cell)
    assert [outcome.state for outcome in shared.taken()] == taken


def test_a_run_that_went_on_where_something_differed_is_not_used(tmp_path: Path) -> None:
    cell, journal, shared = killed(tmp_path)
    receipt = read_json(journal.folder / "receipt.json")
    write_json(journal.folder / "receipt.json", {**receipt, "resumed": [{"differences": ["numpy 1, now 2"]}]})
    goes_on(journal.folder, state="FINISHED")
    assert shared.next(always) is cell


def test_a_run_that_was_killed_is_read_again_only_after_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is looked at for each cell of a grid: with 500 failed runs that took 40 ms."""
    _, journal, _ = killed(tmp_path)
    history, read = History(tmp_path), list[Path]()

    def noted(path: Path) -> dict[str, Any]:
        read.append(path)
        return read_json(path)

    monkeypatch.setattr("pipeline.sweep.history.read_json", noted)
    history.refresh()
    assert read == []
    goes_on(journal.folder, state="RUNNING")
    history.refresh()
    assert read == [journal.folder / "receipt.json"]


def test_every_user_of_the_folder_can_claim(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        os.close(os.open(tmp_path / NAME, os.O_CREAT, 0o644))  # as an older version left it
        for root in (tmp_path, tmp_path / "new"):
            assert Claims(root).problem is None
            assert stat.S_IMODE((root / NAME).stat().st_mode) == 0o666
    finally:
        os.umask(before)


@pytest.mark.wide
def test_a_grid_that_can_claim_nothing_says_so_and_runs(tmp_path: Path) -> None:
    (tmp_path / "runs" / NAME).mkdir(parents=True)  # what nobody can open for writing, root neither
    result = pipeline(tmp_path, "-m", "seed=0,1", "model=linear", *QUIET)
    assert result.returncode == 0, result.stderr
    said = f"runs/{NAME}: Is a directory; another command at the same time may run the same cells again"
    assert result.stderr.splitlines().count(said) == 1, result.stderr
    assert [status(run).state for run in trained(tmp_path)] == ["FINISHED"] * 2


@pytest.mark.wide
def test_two_identical_grids_at_once_share_the_work(tmp_path: Path) -> None:
    words = ("-m", "seed=range(5)", "model=mlp", "dataset=digits", "training.epochs=20", "tracking=none")
    both = [begin(tmp_path, *words) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
    ran = [read_config(run)["seed"] for run in trained(tmp_path)]
    assert sorted(ran) == list(range(5))  # each once
    first, second = (table(grid) for grid in grids(tmp_path))
    assert [row["state"] for row in first + second] == ["done"] * 10
    assert [row["run"] for row in first] == [row["run"] for row in second]
    taken = Counter(f"run by another command as {row['run']}" == row["reason"] for row in first + second)
    assert taken == {True: 5, False: 5}
    again = pipeline(tmp_path, *words)
    assert "5 cells: 5 finished before" in again.stderr


@pytest.mark.wide
def test_a_run_that_goes_on_elsewhere_was_not_killed(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    words, environ = held_model(tmp_path)
    alone = begin(tmp_path, *words, "seed=1", **environ)
    try:
        wait_until(lambda: [run for run in trained(tmp_path) if (run / "receipt.json").exists()], alone)
        (run,) = trained(tmp_path)
        dry = pipeline(tmp_path, "-m", *words, "seed=0,1", "sweep.dry_run=true", **environ)
        assert "2 cells: 1 to run, 1 running elsewhere" in dry.stdout, dry.stdout
        assert f"running elsewhere: seed=1: {run.name}, process {status(run).pid} on " in dry.stdout
    finally:
        alone.kill()
        alone.communicate()
    dry = pipeline(tmp_path, "-m", *words, "seed=0,1", "sweep.dry_run=true", **environ)
    killed = f"to run: seed=1: {run.name} was killed before its end; "
    assert f"{killed}it has no checkpoint, so it starts over" in dry.stdout
    (run / "checkpoints" / "step-0000001200").mkdir(parents=True)
    dry = pipeline(tmp_path, "-m", *words, "seed=0,1", "sweep.dry_run=true", **environ)
    assert f"{killed}its newest checkpoint is of step 1,200" in dry.stdout


@pytest.mark.wide
def test_a_grid_runs_what_a_killed_one_has_left_undone(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    words, environ = held_model(tmp_path)
    first = begin(tmp_path, "-m", *words, "seed=0,1", "sweep.jobs=2", **environ)
    wait_until(lambda: len(trained(tmp_path)) == 2, first)
    second = begin(tmp_path, "-m", *words, "seed=0,1", **environ)
    assert second.stderr is not None
    lines = iter(second.stderr.readline, "")
    assert any(line.startswith("waiting for another command, which runs 2 of these cells") for line in lines)
    first.kill()
    first.communicate()
    (tmp_path / "hold").unlink()
    _, err = second.communicate(timeout=600)
    assert second.returncode == 0, err
    states = sorted(status(run).state for run in trained(tmp_path))
    assert states == ["FINISHED"] * 2 + ["KILLED"] * 2


def held_model(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Words and environment of a training that does not begin while `folder`/hold exists."""
    (folder / "held.py").write_text(HELD)
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "held.yaml").write_text("# waits for a file to go\n_target_: held.Held\n")
    # Files that the code named would be part of the code, and the code another one when they are gone or more.
    hold = {"HOLD": str(folder / "hold"), "RUNS": str(folder / "runs")}
    environ = {"PIPELINE_MODULES": "held", "PYTHONPATH": os.pathsep.join([str(folder), *_python_path()]), **hold}
    return [f"--config-dir={folder / 'conf'}", "model=held", *QUIET], environ


@pytest.mark.wide
@pytest.mark.parametrize("ends", [True, False])
def test_a_search_waits_for_a_point_that_another_command_runs(tmp_path: Path, ends: bool) -> None:
    """A cluster's job outlives its search: the next one trained at the point beside it. Where it dies, it runs here."""
    (tmp_path / "hold").touch()
    words, environ = held_model(tmp_path)
    alone = begin(tmp_path, *words, "optimizer=sgd", **environ)
    wait_until(lambda: [run for run in trained(tmp_path) if (run / "receipt.json").exists()], alone)
    optuna = ("-m", "hydra/sweeper=optuna", "hydra.sweeper.trials=2", "optimizer=sgd,adam")
    search = begin(tmp_path, *optuna, "sweep.jobs=2", *words, **environ)
    assert search.stderr is not None
    lines = iter(search.stderr.readline, "")
    assert "waiting for another command, which runs 1 of these trials\n" in lines
    if not ends:
        alone.kill()
    (tmp_path / "hold").unlink()
    alone.communicate(timeout=600)
    out, err = search.communicate(timeout=600)
    assert search.returncode == 0, err
    assert out.startswith("the best of 2 finished trials\n")
    assert len(trained(tmp_path)) == 2 + (not ends)
    assert ("(run before as " in err) == ends


@pytest.mark.wide
def test_two_searches_at_once_share_the_points(tmp_path: Path) -> None:
    """Each began what the other had not yet said that it runs."""
    (tmp_path / "hold").touch()
    words, environ = held_model(tmp_path)
    optuna = ("-m", "hydra/sweeper=optuna", "hydra.sweeper.trials=2", "optimizer=sgd,adam")
    both = [begin(tmp_path, *optuna, f"hydra.sweeper.study={name}", *words, **environ) for name in ("one", "other")]
    wait_until(lambda: len(runs(tmp_path)) == 4, both[0])  # two sessions, and a trial of each
    (tmp_path / "hold").unlink()
    for process in both:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        assert out.startswith("the best of 2 finished trials\n")
    assert len(trained(tmp_path)) == 2
