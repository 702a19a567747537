"""Warm workers: cells die with their grid however it dies, run the code that was hashed, and see their own GPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from command import environment, message, pipeline
from test_device import DRIVER, UUIDS, begun
from test_sweep import QUIET, grids, table, trained
from test_sweep_failures import begin, wait_until

from pipeline.errors import Impossible
from pipeline.experiment.settings import Sweep
from pipeline.machine import device
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Gpu
from pipeline.runs.dynamic_imports import EDITED, changed, edited, imported_by_cells
from pipeline.sweep import worker
from pipeline.sweep.cards import Cards
from pipeline.sweep.plan import Cell
from pipeline.sweep.submitit_jobs import asked_for
from pipeline.sweep.workers import Worker, Workers

# A model that takes its time where a variable says so, and a helper that a user edits while the sweep runs.
PLANTED = """
import os, sys, time
from pathlib import Path
from pipeline.contracts import Model
from pipeline.models.linear import Linear
from pipeline.spec import spec

AT_IMPORT = os.environ.get("PLANTED", "")
if AT_IMPORT == "sleep" and sys.argv[0].endswith("worker.py"):
    Path("importing").touch()
    time.sleep(1000)
if AT_IMPORT == "thread":
    import threading
    threading.Thread(target=time.sleep, args=(100,), name="planted", daemon=True).start()
if AT_IMPORT == "torch":
    import torch
    torch.ones(1000, 1000) @ torch.ones(1000, 1000)
if AT_IMPORT == "data":
    FACTOR = Path("factor.txt").read_text()
if AT_IMPORT == "touch":
    Path(__file__).with_name("helper.py").touch()
if AT_IMPORT == "log":
    import logging
    logging.getLogger("planted").addHandler(logging.FileHandler("planted.log"))
if AT_IMPORT == "jax":
    import jax.numpy
    jax.numpy.ones(3)

def note(value):
    with Path(os.environ["PLANTED_NOTES"]).open("a") as file:
        file.write(f"{value} ")

@spec
class Planted(Model):
    def torch(self, shapes):
        if AT_IMPORT == "train":
            Path(f"training-{os.getpid()}").touch()
            time.sleep(1000)
        if AT_IMPORT == "edit":
            import helper
            note(helper.VALUE)
            Path(helper.__file__).write_text("VALUE = 'new'\\n")
            if helper.VALUE == os.environ.get("PLANTED_KILLS"):
                os.kill(os.getppid(), 9)
                time.sleep(100)
        if AT_IMPORT == "data":
            Path("factor.txt").write_text("new")
        if AT_IMPORT == "log":
            logging.getLogger("planted").warning("here")
            if not Path("kept.txt").exists():
                Path("kept.txt").write_text("1")
            assert Path("kept.txt").read_text() == "1"
        if AT_IMPORT == "computed":
            import importlib
            part = importlib.import_module("parts_" + os.environ.get("PLANTED_PART", "wide"))
            if os.environ.get("PLANTED_" + "EDITS"):  # by a literal name it would count as code
                Path(part.__file__).write_text(f"UNITS = {part.UNITS + 1}\\n")
        return Linear().torch(shapes)
"""
WORDS = ("-m", "--config-dir=conf", "model=planted", "seed=0,1", *QUIET)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with the model; whatever still runs there at the end is ended."""
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "planted.yaml").write_text("# planted\n_target_: planted.Planted\n")
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "helper.py").write_text("VALUE = 'old'\n")
    (tmp_path / "factor.txt").write_text("old")
    yield tmp_path
    for process in running_in(tmp_path):
        process.kill()


def environ(folder: Path, at_import: str) -> dict[str, str]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PIPELINE_MODULES": "planted,helper", "PYTHONPATH": path, "PLANTED": at_import, "PLANTED_NOTES": "seen"}


def running_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


def begin_here(folder: Path, at_import: str, monkeypatch: pytest.MonkeyPatch) -> subprocess.Popen[str]:
    monkeypatch.setattr("test_sweep_failures.environment", lambda: environment(**environ(folder, at_import)))
    return begin(folder, *WORDS, "sweep.jobs=2")


@pytest.mark.wide
def test_a_grid_that_is_killed_while_its_worker_imports_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = begin_here(place, "sleep", monkeypatch)
    wait_until((place / "importing").exists, process)
    (worker_process,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    worker_process.wait(timeout=600)
    assert running_in(place) == []
    assert trained(place) == []


@pytest.mark.wide
def test_cells_end_with_their_worker_when_nobody_else_can_end_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is killed while the grid cannot see it, and then the grid, as a machine out of memory does."""
    process = begin_here(place, "train", monkeypatch)
    wait_until(lambda: len(list(place.glob("training-*"))) == 2, process)
    cells = [psutil.Process(int(path.name.rpartition("-")[2])) for path in place.glob("training-*")]
    process.send_signal(signal.SIGSTOP)
    cells[0].parent().kill()  # type: ignore[union-attr]
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs([*cells, *running_in(place)], timeout=600)
    assert not alive
    assert running_in(place) == []


def test_a_process_whose_parent_died_before_it_asked_ends_too() -> None:
    ask = "from pipeline.sweep.cell import end_with; import signal; end_with({}, signal.SIGKILL)"
    orphan = subprocess.run([sys.executable, "-c", ask.format(1)], check=False)
    assert orphan.returncode == -signal.SIGKILL
    child = subprocess.run([sys.executable, "-c", ask.format(os.getpid())], check=False)
    assert child.returncode == 0


@pytest.mark.wide
def test_an_edit_during_a_sweep_is_not_run_under_the_old_hash(place: Path) -> None:
    result = pipeline(place, *WORDS, "sweep.jobs=1", **environ(place, "edit"))
    assert result.returncode == 0, result.stderr
    hashes = [json.loads((run / "receipt.json").read_text())["code_sha256"] for run in trained(place)]
    assert len(hashes) == 2 and len(set(hashes)) == 1
    assert set((place / "seen").read_text().split()) == {"old"}  # what both receipts have the hash of
    dry = pipeline(place, *WORDS, "sweep.dry_run=true", **environ(place, "edit"))
    assert "changed since " in dry.stdout and ": code of helper, or files that it reads\n" in dry.stdout


@pytest.mark.wide
def test_a_file_that_was_read_at_import_and_edited_since_is_refused(place: Path) -> None:
    """The next cell would run what its module has read under the hash of the file as it is now."""
    result = pipeline(place, *WORDS, "sweep.jobs=1", **environ(place, "data"))
    assert result.returncode == 1, result.stderr
    rows = table(grids(place)[0])
    assert [row["state"] for row in rows] == ["done", "failed"]
    assert rows[1]["reason"].endswith(
        f"{place / 'factor.txt'} was edited since planted was imported, which read it; give the command again "
        "(where the run itself writes it: read it in a function)"
    )


@pytest.mark.wide
def test_a_log_and_a_cache_that_cells_write_fail_no_cell(place: Path) -> None:
    """The log, opened at import, is only written; the cache is read and written, by the cells. It counts once made."""
    result = pipeline(place, *WORDS, "sweep.jobs=1", **environ(place, "log"))
    assert [row["state"] for row in table(grids(place)[0])] == ["done", "done"], result.stderr
    assert set((place / "planted.log").read_text().splitlines()) == {"here"}
    dry = pipeline(place, *WORDS, "sweep.dry_run=true", **environ(place, "log")).stdout
    assert "1 to run, 1 finished before" in dry and "seed=0: changed since" in dry


SEEN = """
import json, os, sys
from pathlib import Path
from pipeline.sweep import reads
Path("folder").mkdir()
for name in ("before", "read", "both", "made", "again", "folder/in"):
    Path(name).write_text("1")
Path("before").read_text()
with reads.watched():
    for mode, name in (("r", "read"), ("r+", "both"), ("w", "made"), ("w+", "made"), ("a", "written"), ("a+", "again")):
        open(name, mode).close()
    try:
        open("gone")
    except OSError:
        os.listdir("folder")
Path("made").read_text()
Path("read").write_text("other")
Path("both").write_text("other")
names = sorted(str(path) for path in Path(".").rglob("*"))
print(json.dumps([[name for name in names if ask(Path(name))] for ask in (reads.opened, reads.listed, reads.edited)]))
"""


def test_what_is_opened_for_reading_and_listed_is_observed(tmp_path: Path) -> None:
    """While it is watched; what this process writes after that cannot be distinguished from an edit."""
    result = subprocess.run([sys.executable, "-c", SEEN], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == [["both", "read"], ["folder"], ["read"]]


@pytest.mark.wide
def test_a_module_of_a_computed_name_is_compared_when_the_grid_runs_again(place: Path) -> None:
    (place / "parts_wide.py").write_text("UNITS = 1\n")
    result = pipeline(place, *WORDS, "sweep.jobs=1", **environ(place, "computed"))
    assert result.returncode == 0, result.stderr
    (run, _) = trained(place)
    (name,) = json.loads((run / "receipt.json").read_text())["imported_beside"].keys() & {"parts_wide"}
    dry = (*WORDS, "sweep.dry_run=true")
    assert "changed since" not in pipeline(place, *dry, **environ(place, "computed")).stdout
    (place / "parts_wide.py").write_text("UNITS = 1  # one\n")
    assert "changed since" not in pipeline(place, *dry, **environ(place, "computed")).stdout
    (place / "parts_wide.py").write_text("UNITS = 2\n")
    assert f": {name}" in pipeline(place, *dry, **environ(place, "computed")).stdout
    (place / "parts_wide.py").unlink()
    assert f": {name}" in pipeline(place, *dry, **environ(place, "computed")).stdout


@pytest.mark.wide
def test_a_grid_says_that_a_module_of_a_computed_name_was_edited_while_it_ran(place: Path) -> None:
    (place / "parts_wide.py").write_text("UNITS = 1\n")
    result = pipeline(place, *WORDS, "sweep.jobs=1", **environ(place, "computed"), PLANTED_EDITS="1")
    assert result.returncode == 0, result.stderr
    assert (
        "parts_wide was edited while the cells ran: not all ran the current version; "
        "the same command runs the others again"
    ) in result.stderr


@pytest.mark.wide
def test_a_search_says_that_a_module_of_a_computed_name_was_edited(place: Path) -> None:
    """Its trials are of one code: after an edit another study begins, and what is edited while it runs is said."""
    (place / "parts_wide.py").write_text("UNITS = 1\n")
    words = ("-m", "hydra/sweeper=optuna", "--config-dir=conf", "model=planted", "optimizer=adam,sgd", *QUIET)
    result = pipeline(place, *words, "hydra.sweeper.trials=1", **environ(place, "computed"))
    assert result.returncode == 0, result.stderr
    (place / "parts_wide.py").write_text("UNITS = 3\n")
    again = (*words, "hydra.sweeper.trials=2", "sweep.jobs=1", "hydra.sweeper.sampler=random")
    result = pipeline(place, *again, **environ(place, "computed"), PLANTED_EDITS="1")
    assert result.returncode == 0, result.stderr
    assert "search was asked something else: parts_wide\nstudy search-2: 2 trials\n" in result.stderr
    assert (
        "parts_wide was edited while the trials ran: not every trial of search-2 ran the same; "
        "hydra.sweeper.study=<another name> "
        "begins another"
    ) in result.stderr
    said = message(pipeline(place, *again, "hydra.sweeper.study=search-2", **environ(place, "computed")))
    assert "its trials had other settings (parts_wide)" in said


@pytest.mark.wide
def test_a_ladder_says_that_a_module_of_a_computed_name_was_edited_while_it_ran(place: Path) -> None:
    (place / "parts_wide.py").write_text("UNITS = 1\n")
    rungs = [f"~stage.rungs.{name}" for name in ("transfer", "workers", "resident", "amp", "compiled")]
    words = ("stage=ladder", "--config-dir=conf", "model=planted", *QUIET, *rungs)
    result = pipeline(place, *words, **environ(place, "computed"), PLANTED_EDITS="1")
    assert result.returncode == 0, result.stderr
    assert (
        "parts_wide was edited while the cells ran: not all ran the same code; give the command again" in result.stderr
    )
    (receipt,) = [run / "receipt.json" for run in (place / "runs").iterdir() if (run / "cells").exists()]
    assert json.loads(receipt.read_text())["imported_beside"]["parts_wide"]["sha256"] == EDITED


def test_what_cells_have_imported_is_in_the_receipt_of_their_stage(tmp_path: Path) -> None:
    """Of a stage with cells; what changed while a run had it, or between two cells, is another, whatever it is now."""
    entry = {"file": str(tmp_path / "parts.py"), "sha256": "1"}
    between = {"between": entry}, {"between": {**entry, "sha256": "2"}}
    for number, names in enumerate(({"parts": entry}, {}, {"other": {**entry, "sha256": EDITED}}, *between)):
        (tmp_path / f"run-{number}").mkdir()
        (tmp_path / f"run-{number}" / "receipt.json").write_text(json.dumps({"imported_beside": names}))
        (tmp_path / "grid" / "cells").mkdir(parents=True, exist_ok=True)
        (tmp_path / "grid" / "cells" / f"{number:04d}.run").write_text(str(tmp_path / f"run-{number}"))
    found = imported_by_cells(tmp_path / "grid")
    assert {name: one["sha256"] for name, one in found.items()} == {"parts": "1", "other": EDITED, "between": EDITED}
    assert edited(found) == ["between", "other"]
    (tmp_path / "parts.py").write_text("")
    assert sorted(changed(found)) == ["between", "other", "parts"]


@pytest.mark.wide
def test_a_worker_that_starts_after_an_edit_is_said_to_run_other_code(place: Path) -> None:
    result = pipeline(place, *WORDS, "sweep.jobs=1", **environ(place, "edit"), PLANTED_KILLS="old")
    assert [row["state"] for row in table(grids(place)[0])] == ["killed", "done"]
    assert set((place / "seen").read_text().split()) == {"old", "new"}
    assert (
        "the code was edited while the cells ran: seed=1 ran other code than was planned; the same command then runs "
        in result.stderr
    )


@pytest.mark.wide
def test_what_is_edited_while_it_is_imported_is_refused(place: Path) -> None:
    result = pipeline(place, *WORDS, "sweep.stop_after=1", **environ(place, "touch"))
    assert result.returncode == 1
    (row, _) = table(grids(place)[0])
    assert row["reason"].endswith(f"{place / 'helper.py'}: edited while it was imported; give the command again")
    assert trained(place) == []


@pytest.mark.wide
def test_a_file_of_a_time_to_come_was_not_edited_now(place: Path) -> None:
    """The clock was set back since it was written, perhaps."""
    (place / "parts_wide.py").write_text("UNITS = 1\n")
    later = time.time() + 86400
    for name in ("helper.py", "parts_wide.py"):
        os.utime(place / name, (later, later))
    result = pipeline(place, *WORDS, **environ(place, "computed"))
    assert result.returncode == 0, result.stderr
    assert "not all ran" not in result.stderr


@pytest.mark.parametrize(
    ("at_import", "what"),
    [
        ("thread", "a thread (planted)"),
        pytest.param("torch", " thread", marks=pytest.mark.wide),
        pytest.param("jax", "JAX", marks=pytest.mark.wide),
    ],
)
@pytest.mark.wide
def test_what_a_module_starts_when_it_is_imported_is_said(at_import: str, what: str, place: Path) -> None:
    result = pipeline(place, *WORDS, "sweep.stop_after=1", **environ(place, at_import))
    assert result.returncode == 1
    (row, _) = table(grids(place)[0])
    assert row["reason"].startswith("its worker: planted: starts ") and what in row["reason"]
    assert row["reason"].endswith("hydra/launcher=submitit_local")


def test_nvml_is_there_again_after_it_was_shut_down() -> None:
    before = device.gpus()
    device.shut_down_nvml()
    assert device.gpus() == before


CUDA = """
int begun = 0;
int cuInit(unsigned flags) { begun = 1; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return begun ? 0 : 3; }  /* CUDA_ERROR_NOT_INITIALIZED */
"""
ASKED = """
import ctypes
from pipeline.sweep.imports import started
print(started())
driver = ctypes.CDLL("{driver}")  # as NVML loads it, which asks for its version
print(started())
driver.cuInit(0)
print(started())
"""


def test_a_driver_that_is_loaded_has_not_started(tmp_path: Path) -> None:
    """Of CUDA's driver a stand-in: NVML loads it, and has its files open, before anything has started CUDA."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, driver = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text(CUDA)
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(driver), str(source)]
    subprocess.run(command, check=True)
    code = ASKED.format(driver=driver)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "None", "CUDA"]


@pytest.mark.wide
def test_a_cell_leaves_no_temporary_file(tmp_path: Path) -> None:
    """The sixteen that TensorFlow writes are removed at a process's end; a search had left as many for each trial."""
    (tmp_path / "tmp").mkdir()
    words = ("-m", "backend=tensorflow", "dataset=digits", "model=linear", "training.steps=5", "seed=0,1")
    result = pipeline(tmp_path, *words, TMPDIR=str(tmp_path / "tmp"))
    assert result.returncode == 0, result.stderr
    assert not list((tmp_path / "tmp").glob("*.py"))


def test_a_cell_sees_the_gpu_that_it_has_to_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a driver's recorded answers: the worker has asked for all GPUs, and let go of the driver, before it forks."""
    monkeypatch.setitem(sys.modules, "pynvml", DRIVER)
    monkeypatch.setattr(worker, "stop_on_signals", lambda **_: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    device.gpus.cache_clear()
    try:
        assert [gpu.name for gpu in device.gpus()] == [f"name of {uuid}" for uuid in UUIDS]
        assert begun
        device.shut_down_nvml()
        assert not begun
        assert in_fork(tmp_path, {"CUDA_VISIBLE_DEVICES": "1"}) == [f"name of {UUIDS[1]}"]
        assert in_fork(tmp_path, {}) == [f"name of {uuid}" for uuid in UUIDS]
    finally:
        device.gpus.cache_clear()


def test_an_unexpected_error_of_a_cell_is_in_its_log(tmp_path: Path) -> None:
    """A job file that is not JSON: the error comes before there is a run to write it down."""
    (tmp_path / "0000.json").write_text("{")
    code = """
import os, signal, sys
from pipeline.sweep import worker
command = {"environment": {}, "log": sys.argv[1] + "/log", "job": sys.argv[1] + "/0000.json", "cell": 0}
pid = worker.fork(command, worker.Channel())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False)
    assert result.returncode == 1
    log = (tmp_path / "log").read_text()
    assert log.startswith("Traceback") and "JSONDecodeError" in log.splitlines()[-1]


def test_a_cell_whose_exit_functions_raise_is_not_a_second_worker(tmp_path: Path) -> None:
    """It went on as the worker does, whose end kills the other cells."""
    (tmp_path / "0000.json").write_text("{")
    code = """
import atexit, os, sys
from pipeline.sweep import worker

def failing():
    raise SystemExit(3)

worker.atexit._run_exitfuncs = failing
command = {"environment": {}, "log": sys.argv[1] + "/log", "job": sys.argv[1] + "/0000.json", "cell": 0}
parent = os.getpid()
try:
    pid = worker.fork(command, worker.Channel())
finally:
    if os.getpid() != parent:
        open(sys.argv[1] + "/escaped", "w").close()
os.waitpid(pid, 0)
"""
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "escaped").exists()


def in_fork(folder: Path, variables: dict[str, str]) -> list[str]:
    """The names of the GPUs that a cell sees."""
    pid = os.fork()
    if not pid:
        try:
            worker.become_cell({"environment": variables, "log": str(folder / "log")})
            os.write(1, json.dumps([gpu.name for gpu in device.gpus()]).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    names: list[str] = json.loads((folder / "log").read_text())
    return names


A100 = Gpu(index=0, name="A100", memory_bytes=40 << 30, compute_capability=(8, 0))
V100 = Gpu(index=1, name="V100", memory_bytes=16 << 30, compute_capability=(7, 0))
UNLIKE = (A100, V100, replace(A100, index=2))


def gpu_cell(number: int, name: str = "gpu", processes: int = 1) -> Cell:
    """A cell that was judged by the GPU that its device names."""
    place = device.Place("gpu", int(name.partition(":")[2] or 0))
    experiment: Any = SimpleNamespace(device=device.Device(name=name, processes=processes))
    return Cell(number, {}, {}, [], experiment, Resolved(place, "fp32", "", ""))


@pytest.mark.parametrize(
    ("jobs", "device_name", "found", "expected"),
    [
        (None, "gpu", UNLIKE, [[0], [2], None]),  # the V100 would refuse what the A100 was asked for
        (None, "gpu:1", UNLIKE, [[1], None]),
        (None, "gpu", (*UNLIKE, replace(A100, index=3), replace(A100, index=4)), [[0, 2], [3, 4], None]),
        (None, "gpu:1", UNLIKE, [[1, 2], None]),
        (4, "gpu", (A100,), [[0], [0], [0], [0]]),
        (4, "gpu", UNLIKE, [[0], [2], [0], [2]]),
        (2, "gpu:1", UNLIKE, [[1], [1]]),
    ],
)
def test_which_gpu_a_cell_gets(
    jobs: int | None,
    device_name: str,
    found: tuple[Gpu, ...],
    expected: list[list[int] | None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("pipeline.sweep.cards.gpus", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    executor = Workers(Sweep(jobs=jobs), tmp_path)
    got: list[list[int] | None] = []
    processes = len(expected[0] or ())
    for number in range(len(expected)):
        cell = gpu_cell(number, device_name, processes)
        if executor.room(cell):
            environment = executor.cards.take(cell)
            got.append(taken := executor.cards.taken[number])
            visible = environment.get("CUDA_VISIBLE_DEVICES")
            assert visible == (None if ":" in device_name else ",".join(map(str, taken)))
            shared = jobs is not None and len({str(cards) for cards in expected}) < jobs
            assert environment.get("XLA_PYTHON_CLIENT_PREALLOCATE") == ("false" if shared else None)
        else:
            got.append(None)
    assert got == expected
    executor.cards.leave(0)
    assert executor.cards.free(gpu_cell(9, device_name, processes)) == expected[0]


def test_a_cell_of_more_gpus_than_there_are_alike_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.sweep.cards.gpus", lambda: UNLIKE)
    with pytest.raises(
        Impossible, match="a cell of 3 processes or devices needs as many GPUs of one kind: there are 2"
    ):
        Cards(None).free(gpu_cell(0, "gpu", 3))


def test_a_cells_job_asks_for_a_gpu_for_each_process() -> None:
    assert asked_for({}, "gpu", 8, 2)["gpus_per_node"] == 2
    assert asked_for({}, "gpu", 8, 2)["cpus_per_task"] == 8


@pytest.mark.parametrize(
    ("cores", "running", "threads", "processes", "expected"),
    [
        (2, {}, None, 8, True),  # one cell always runs: whether it can is judged before
        (2, {}, 1, 2, True),
        (2, {1: 1}, 1, 2, False),
        (2, {1: 1}, None, 1, False),
        (4, {1: 2}, 1, 2, True),
        (4, {1: 2, 2: 1}, 1, 1, True),
        (4, {1: 2, 2: 2}, 1, 1, False),
    ],
)
def test_a_cell_waits_until_its_processes_have_cores(
    cores: int,
    running: dict[int, int],
    threads: int | None,
    processes: int,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(cores)})
    cpu = device.Device(name="cpu", processes=processes)
    experiment: Any = SimpleNamespace(device=cpu, backend=SimpleNamespace(threads=threads))
    cell = Cell(9, {}, {}, [], experiment, Resolved(device.Place("cpu"), "fp32", "", ""))
    executor: Any = Workers(Sweep(), tmp_path)
    executor.workers["torch"] = SimpleNamespace(cells=running)
    assert executor.room(cell) is expected
    running.clear()
    assert executor.room(cell)


def test_a_suspended_worker_and_its_cell_are_woken_to_stop(tmp_path: Path) -> None:
    """The cell had ended, and nobody reported it: Ctrl-C waited for ever."""
    with subprocess.Popen(["sleep", "60"]) as process, subprocess.Popen(["sleep", "60"]) as cell:
        one = Worker.__new__(Worker)
        one.pids, one.cells, one.process = {1: cell.pid}, {1: 1}, process
        workers = Workers(Sweep(jobs=1), tmp_path)
        workers.workers["torch"] = one
        for each in (process, cell):
            each.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, each.pid, os.WSTOPPED)
        workers.stop(1, kill=False)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        assert cell.wait(timeout=600) == -signal.SIGTERM
        process.kill()


def test_a_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.sweep.workers.GRACE_SECONDS", 0.1)
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE) as process:
        one = Worker.__new__(Worker)
        one.process = process
        one.close()
        assert process.returncode == -signal.SIGKILL


@pytest.mark.wide
def test_a_grid_with_a_suspended_worker_stops(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = begin_here(place, "train", monkeypatch)
    wait_until(lambda: len(list(place.glob("training-*"))) == 2, process)
    (worker_process,) = psutil.Process(process.pid).children()
    worker_process.suspend()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert process.returncode == 130
    rows = table(grids(place)[0])
    assert [(row["state"], row["reason"]) for row in rows] == [("killed", "its grid was interrupted (SIGINT)")] * 2
    assert running_in(place) == []


def test_a_cell_that_is_stopped_before_its_process_is_known_takes_no_other_with_it(tmp_path: Path) -> None:
    """Its worker was killed, and with it older cells that were writing their checkpoints."""
    killed: list[str] = []
    one = Worker.__new__(Worker)
    one.pids, one.cells, one.unwanted, one.stopped = {1: os.getpid()}, {1: 1, 2: 1}, set(), False
    one.process = SimpleNamespace(kill=lambda: killed.append("worker"))  # type: ignore[assignment]
    workers = Workers(Sweep(jobs=2), tmp_path)
    workers.workers["torch"] = one
    workers.stop(2, kill=False)
    assert not killed
    with subprocess.Popen(["sleep", "60"]) as process:
        one._heard({"cell": 2, "pid": process.pid})
        assert process.wait(timeout=600) == -signal.SIGTERM
    one.pids.clear()  # a worker that has forked none has nothing to lose
    workers.stop(1, kill=False)
    assert killed == ["worker"] and one.stopped
