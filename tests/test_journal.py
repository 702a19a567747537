"""The journal: what is written comes back, trouble is one clear message, and no run stays RUNNING after its death."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.experiment.training import Checkpoints
from pipeline.runs import journal as journals
from pipeline.runs import json_files
from pipeline.runs import lookup as runs_below
from pipeline.runs.checkpoint import Writer
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import write_json
from pipeline.runs.listing import listed
from pipeline.runs.lookup import close_run, find_run, reap
from pipeline.runs.process import boot_time, machine
from pipeline.runs.records import Status, duration, read_chunk, read_config, read_metrics, read_status, records_until
from pipeline.runs.result import Metric, Result

SOURCE = str(Path(journals.__file__).parents[2])

numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**53), 2**53)


def same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


def python(script: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, timeout=600, check=False
    )


def in_small_room(folder: Path, size: str) -> tuple[str, ...]:
    """A command prefix that mounts a file system of `size` at `folder`, for the command alone; skips where barred."""
    mount = f'mount -t tmpfs -o size={size} none "{folder}" && exec "$@"'
    prefix = ("unshare", "-rm", "sh", "-c", mount, "sh")
    try:
        allowed = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("no user namespace with mounts here")
    return prefix


def test_how_long_a_run_took(tmp_path: Path) -> None:
    """Of one whose clock was set back while it ran, 0: it took "-60.00 s"."""
    journal = Journal.begin(tmp_path, "timed", {})
    status = replace(journal.status, started=1000.0)
    assert (duration(journal.folder, status), duration(journal.folder, status, 1060.0)) == (None, 60.0)
    ended = replace(status, state="KILLED", ended=1010.0)
    assert duration(journal.folder, ended, 1060.0) == 10.0
    assert duration(journal.folder, replace(ended, ended=940.0)) == 0.0
    gone_on = {"time": 1600.0, "step": 5, "earlier_s": 25.0}
    write_json(journal.folder / "receipt.json", {"resumed": [gone_on, {"time": 1700.0, "step": 6}]})
    assert duration(journal.folder, replace(ended, ended=1605.0)) == 30.0  # the last one is of before it was noted
    write_json(journal.folder / "receipt.json", {"resumed": [gone_on], "wall_time_s": 42.0})
    assert duration(journal.folder, replace(ended, ended=1605.0)) == 42.0
    assert duration(journal.folder, status, 1605.0) == 30.0  # it runs: that time is of the process before


@settings(max_examples=50)
@given(st.lists(st.tuples(st.dictionaries(st.text(), numbers), st.integers(-(2**40), 2**40)), max_size=20))
def test_any_metrics_come_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[dict[str, float], int]]
) -> None:
    journal = Journal.begin(tmp_path_factory.mktemp("runs"), "round trip", {})
    for metrics, step in records:
        journal.log(metrics, step)
    journal.finish("FINISHED")
    found = list(read_metrics(journal.folder))
    assert [record.step for record in found] == [step for _, step in records]
    for record, (metrics, _) in zip(found, records, strict=True):
        assert record.metrics.keys() == metrics.keys()
        assert all(same(record.metrics[name], float(value)) for name, value in metrics.items())


@settings(max_examples=50)
@given(
    st.lists(numbers, max_size=6), st.integers(0, 6), st.integers(0, 6), st.lists(numbers, max_size=3), st.booleans()
)
def test_a_run_that_goes_on_has_each_step_once(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[float],
    kept: int,
    repeated: int,
    after: list[float],
    flushed: bool,
) -> None:
    """`kept` of its records came before the checkpoint. Of the others it makes some again, and then comes to `after`:
    it may be killed by then, or end earlier than the first time."""
    journal, sizes = Journal.begin(tmp_path_factory.mktemp("runs"), "goes on", {}), [0]
    for step, value in enumerate(before):
        journal.log({"a": value, "steps_per_s": step}, step)
        journal.flush()
        sizes.append(journal.size)
    journal.finish("KILLED")
    kept %= len(before) + 1
    repeated %= len(before) - kept + 1
    again = Journal.reopen(journal.folder, sizes[kept])
    values = [*before[kept : kept + repeated], *after]
    for step, value in enumerate(values, kept):
        again.log({"a": value, "steps_per_s": -step}, step)  # a rate is another one
        if flushed:
            again.flush()
            assert [record.step for record in records_until(again.folder, again.size)] == list(range(step + 1))
            made = [repr(float(one)) for one in values[: step + 1 - kept]]  # with what will be made again, if it was so
            alike = made == [repr(float(one)) for one in before[kept : step + 1]]
            whole = list(range(len(before) if alike else step + 1))
            assert [record.step for record in read_metrics(again.folder)] == whole
    again.finish("FINISHED")
    found = list(read_metrics(again.folder))
    assert [record.step for record in found] == list(range(kept + len(values)))
    expected = zip(found, [*before[:kept], *values], strict=True)
    assert all(same(record.metrics["a"], float(value)) for record, value in expected)


def test_every_line_is_strict_json(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, "strict", {})
    journal.log({"a": float("nan"), "b": float("-inf")}, 3)
    journal.write_result(Result((Metric("loss", float("inf")),)))
    journal.finish("FINISHED")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    line = json.loads((journal.folder / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert line["metrics"] == {"a": "NaN", "b": "-Infinity"}
    result = json.loads((journal.folder / "result.json").read_text(), parse_constant=refuse)
    assert result["scalars"] == {"loss": "Infinity"}


def test_config_comes_back_with_its_types(tmp_path: Path) -> None:
    config = {"seed": 1, "rate": 1e-5, "text": "1e-3", "none": None, "yes": True, "dims": [1, 2], "b": {"c": "no"}}
    journal = Journal.begin(tmp_path, "types", config)
    assert read_config(journal.folder) == config


def test_a_cell_stays_one_of_the_run_that_started_it_until_another_goes_on_with_it(tmp_path: Path) -> None:
    folder = Journal.begin(tmp_path, "cell", {}, cell_of="grid").folder
    for other, whole in ((None, "grid"), ("another", "another"), (None, "another")):
        close_run(folder, "KILLED", "")
        Journal.reopen(folder, 0, cell_of=other)
        status = read_status(folder)
        assert status is not None and status.cell_of == whole


def test_records_reach_the_disk_within_the_flush_time(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, "flush", {})
    journal.log({"a": 1.0}, 0)
    assert len(list(read_metrics(journal.folder))) == 1  # nothing was flushed lately
    journal.log({"a": 2.0}, 1)
    time.sleep(journals.FLUSH_SECONDS)
    journal.log({"a": 3.0}, 2)
    assert [record.step for record in read_metrics(journal.folder)] == [0, 1, 2]
    journal.log({"a": 4.0}, 3)
    journal.flush()
    assert len(list(read_metrics(journal.folder))) == 4


def test_half_a_line_is_left_and_a_broken_line_skipped(tmp_path: Path) -> None:
    folder = Journal.begin(tmp_path, "torn", {}).folder
    whole = b'{"step":1,"time":2.0,"metrics":{"a":1.0}}\n'
    (folder / "metrics.jsonl").write_bytes(whole + b"\0\0garbage\n" + whole + whole[:20])
    assert [record.step for record in read_metrics(folder)] == [1, 1]
    assert read_chunk(folder, 0)[1] == 2 * len(whole) + 10


def test_a_number_that_is_too_large_costs_its_record_alone(tmp_path: Path) -> None:
    """It ended the list of all runs with a traceback."""
    folder, huge = Journal.begin(tmp_path, "huge", {}).folder, "1" + "0" * 400
    lines = [
        f'{{"step": {step}, "time": 0, "metrics": {{"a": {value}}}}}\n'
        for step, value in (("1", "0.5"), ("1e999", "2"), ("2", huge))
    ]
    (folder / "metrics.jsonl").write_text("".join(lines))
    assert [record.metrics for record in read_metrics(folder)] == [{"a": 0.5}]
    (folder / "result.json").write_text(f'{{"declared": {{}}, "last_epoch": {{}}, "scalars": {{"a": {huge}}}}}')
    assert [run.metrics for run in listed(tmp_path)] == [{"a": 0.5}]


def test_threads_and_many_chunks_lose_nothing(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, "threads", {})

    def write(first: int) -> None:
        for step in range(first, first + 5000):
            journal.log({"a rather long name of a metric": step / 3}, step)
            if step % 500 == 0:
                journal.flush()

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 5000, 10000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.finish("FINISHED")
    assert sorted(record.step for record in read_metrics(journal.folder)) == list(range(15000))


def test_records_are_written_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast they come, the disk is asked once in the flush time."""
    journal, now, written = Journal.begin(tmp_path, "cheap", {}), [1e9], list[int]()

    def noted(file: int, data: bytes, offset: int) -> None:
        written.append(data.count(b"\n"))
        json_files.write_all(file, data, offset)

    monkeypatch.setattr(journals, "write_all", noted)
    monkeypatch.setattr("time.time", lambda: now[0])
    for step in range(20_000):
        journal.log({"train/loss": 0.123456789, "train/accuracy": 0.5, "rate": 1e-3}, step)
        now[0] += journals.FLUSH_SECONDS / 8_192
    journal.flush()
    assert written == [1, 8192, 8192, 20_000 - 1 - 2 * 8192]


def test_first_end_counts_and_error_is_kept(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, "end", {})
    journal.finish("FAILED", ZeroDivisionError("division by zero"))
    journal.finish("FINISHED")
    status = read_status(journal.folder)
    assert status is not None
    assert status.ended is not None
    assert status.ended >= status.started
    assert (status.state, status.error) == ("FAILED", "ZeroDivisionError: division by zero")


def test_artifacts_stay_in_their_folder(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path, "artifacts", {})
    path = journal.artifact_path("figures/deep/loss.png")
    path.write_bytes(b"x")
    assert path == journal.folder / "artifacts/figures/deep/loss.png"
    for bad in ("../x", "/etc/passwd", "", "a/../.."):
        with pytest.raises(ValueError, match="not a path below"):
            journal.artifact_path(bad)


def test_output_folder_by_a_roundabout_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "far/away").mkdir(parents=True)
    (tmp_path / "here/link").symlink_to(tmp_path / "far/away")
    monkeypatch.chdir(tmp_path / "here")
    for place, found in (("../runs", "runs"), ("link/../runs", "far/runs"), ("link", "here/link"), (".", "here")):
        journal = Journal.begin(Path(place), "x", {})
        path = journal.artifact_path("model/weights.npz")
        assert path.parents[2].parent == tmp_path / found
        assert path.parent.is_dir()
        journal.finish("KILLED")
        again = Journal.reopen(Path(place).absolute() / journal.id, 0)
        assert again.artifact_path("model/weights.npz") == path


def test_a_run_whose_records_cannot_be_cut_stays_killed(tmp_path: Path) -> None:
    """It was RUNNING, by a process that had been refused."""
    journal = Journal.begin(tmp_path, "mine", {})
    journal.finish("KILLED")
    (journal.folder / "metrics.jsonl").unlink(missing_ok=True)
    (journal.folder / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        Journal.reopen(journal.folder, 0, exact=False)
    status = read_status(journal.folder)
    assert status is not None and status.state == "KILLED"


@pytest.mark.parametrize(("place", "said"), [("file/runs", "Not a directory"), ("file", "it is a file, not a folder")])
def test_output_folder_that_cannot_be(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=rf"output_dir: cannot write .*file.*: {said}$"):
        Journal.begin(tmp_path / place, "x", {})


FULL = """
import sys
from pathlib import Path
from pipeline.errors import UserError
from pipeline.runs.journal import Journal
from pipeline.runs.records import read_metrics, read_status
journal = Journal.begin(Path(sys.argv[1]), "full", {})
try:
    for step in range(100_000):
        journal.log({"loss": 0.1}, step)
        if step % 10 == 9:
            journal.flush()
except UserError as error:
    print(error)
    first = error
if sys.argv[2] == "reported":
    journal.finish("FAILED", first)
else:
    try:
        journal.finish("FINISHED")
    except UserError:
        print("and finish says so")
steps = [record.step for record in read_metrics(journal.folder)]
assert steps == list(range(len(steps))) and len(steps) > 100, steps[-3:]
assert (journal.folder / "metrics.jsonl").read_bytes().endswith(b"\\n")
print(read_status(journal.folder).state, [path.name for path in journal.folder.glob(".*")])
"""


@pytest.mark.parametrize("case", ["reported", "unseen"])
def test_a_full_disk_is_reported_and_the_run_is_marked_failed(tmp_path: Path, case: str) -> None:
    done = python(FULL, tmp_path, case, prefix=in_small_room(tmp_path, "64k"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "metrics.jsonl: No space left on device; 0 MB free" in lines[0]
    assert lines[-1] == "FAILED []"
    assert ("and finish says so" in lines) == (case == "unseen")


def test_full_disk_at_the_start(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from pipeline.runs.journal import Journal\n"
        "root = pathlib.Path(sys.argv[1]); (root / 'fill').write_bytes(bytes(8192))\n"
        "try: Journal.begin(root, 'x', {'a': 'b' * 20000})\n"
        "except Exception as error: print(type(error).__name__, error, [p.name for p in root.iterdir()])"
    )
    done = python(script, tmp_path, prefix=in_small_room(tmp_path, "16k"))
    assert done.stdout.startswith("UserError output_dir: cannot write "), done.stderr
    assert "No space left on device" in done.stdout
    assert done.stdout.rstrip().endswith("['fill']")


GOES_ON = """
import subprocess, sys
from pathlib import Path
from pipeline.errors import UserError
from pipeline.runs.journal import Journal
root = Path(sys.argv[1])
journal = Journal.begin(root, "x", {})
journal.finish("KILLED", "stopped by SIGTERM")
if sys.argv[2] == "full":
    with (root / "fill").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                break
else:
    subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
try:
    Journal.reopen(journal.folder, 0)
except UserError as error:
    print(str(error).replace(str(journal.folder), "<run>").replace(journal.id, "<id>"))
"""


@pytest.mark.parametrize(
    ("how", "why"), [("full", "No space left on device; 0 MB free"), ("read-only", "Read-only file system")]
)
def test_a_run_that_cannot_be_written_does_not_go_on(tmp_path: Path, how: str, why: str) -> None:
    done = python(GOES_ON, tmp_path, how, prefix=in_small_room(tmp_path, "64k"))
    assert done.stdout.splitlines() == [f"resume=<id>: cannot write <run>: {why}"], done.stderr[-400:]


WRITER = """
import sys, time
from pathlib import Path
from pipeline.runs.journal import Journal
journal = Journal.begin(Path(sys.argv[1]), "writer", {})
journal.log({"a": 1.0}, 1)
print(journal.id, flush=True)
time.sleep(60)
"""


def killed_run(root: Path) -> str:
    command = [sys.executable, "-c", WRITER, str(root)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        name = run.stdout.readline().strip()
        assert reap(root) == []  # it lives
        run.send_signal(signal.SIGKILL)
    return name


def test_killed_run_is_marked_once(tmp_path: Path) -> None:
    name = killed_run(tmp_path)
    own = Journal.begin(tmp_path, "own", {})
    for folder in (tmp_path / name, own.folder):
        (folder / "checkpoints" / ".writing").mkdir(parents=True)
        (folder / "checkpoints" / "step-0000000010").mkdir()
    script = "import sys; from pipeline.runs.lookup import reap; print(*reap(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(tmp_path)]
    reapers = [
        subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    marked = " ".join(reaper.communicate()[0] for reaper in reapers).split()
    assert marked == [name]
    status = read_status(tmp_path / name)
    assert status is not None
    assert status.state == "KILLED"
    assert "ended without a message" in str(status.error)
    assert read_status(own.folder) == own.status
    left = [sorted(path.name for path in (run / "checkpoints").iterdir()) for run in (tmp_path / name, own.folder)]
    assert left == [["step-0000000010"], [".writing", "step-0000000010"]]  # half a checkpoint of the dead one is gone


def test_a_run_that_goes_on_while_another_process_looks_is_not_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is a tracker, perhaps, that gets no core between its look and its lock."""
    folder, gone = tmp_path / killed_run(tmp_path), runs_below._gone

    def resumed_meanwhile(run: Path, status: Status) -> bool:
        found = gone(run, status)
        monkeypatch.setattr(runs_below, "_gone", gone)
        assert reap(tmp_path) == [run.name]
        Journal.reopen(run, 0)
        return found

    monkeypatch.setattr(runs_below, "_gone", resumed_meanwhile)
    assert reap(tmp_path) == []
    status = read_status(folder)
    assert status is not None
    assert (status.state, status.pid) == ("RUNNING", os.getpid())


def test_reap_knows_a_reused_pid_and_leaves_other_hosts(tmp_path: Path) -> None:
    for name, changes in {
        "reused": {"process_started": "an earlier process"},
        "elsewhere": {"host": "elsewhere", "process_started": "x"},
        "container": {"pid_namespace": "pid:[1]", "process_started": "x"},
        "namesake": {"machine": "another-machine", "process_started": "x"},
        "job": {"host": "node", "job": "a cluster that this machine does not know/7.0"},
    }.items():
        journal = Journal.begin(tmp_path, name, {})
        json_files.write_json(journal.folder / "status.json", asdict(replace(journal.status, **changes)))  # type: ignore[arg-type]
    assert [name.split("-")[2] for name in reap(tmp_path)] == ["reused"]
    for folder in runs_below.run_folders(tmp_path):
        for path in folder.iterdir():
            os.utime(path, (1, 1))  # silent since 1970
    assert len(reap(tmp_path)) == 4


def test_a_run_from_before_the_boot_of_its_machine_is_dead(tmp_path: Path) -> None:
    """Its pid may be another process's by now. A machine of the same name that wrote since our boot is another one."""
    installed = str(machine()).partition("-")[0]
    folders = []
    for _ in range(2):
        journal = Journal.begin(tmp_path, "rebooted", {})
        changes = {"machine": f"{installed}-00000000", "process_started": "00000000-1"}
        json_files.write_json(journal.folder / "status.json", asdict(replace(journal.status, **changes)))  # type: ignore[arg-type]
        folders.append(journal.folder)
    for path in folders[0].iterdir():
        os.utime(path, (boot_time() - 60, boot_time() - 60))
    assert reap(tmp_path) == [folders[0].name]


def test_the_newest_run_is_the_one_that_began_last(tmp_path: Path) -> None:
    """Names have local times, which go back an hour in autumn; a copy of a run began before itself, as it were."""
    for name, started in (("20261025-025959-a", 1.0), ("20261025-020001-b", 2.0), ("20261024-120000-c", 0.0)):
        folder = tmp_path / name
        Journal.begin(tmp_path, "run", {}).folder.rename(folder)
        status = json_files.read_json(folder / "status.json")
        status |= {"id": name, "started": started, "state": "FINISHED"}
        json_files.write_json(folder / "status.json", status)
    copy = tmp_path / "20261025-020001-b.bak"
    shutil.copytree(tmp_path / "20261025-020001-b", copy)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "status.json").write_text("{")
    found = runs_below.newest_first(runs_below.run_folders(tmp_path))
    assert [folder.name[9:] for folder in found] == ["020001-b", "020001-b.bak", "025959-a", "120000-c", ""]
    assert find_run(tmp_path, "latest") == found[0]
    with pytest.raises(UserError, match=r"the latest are 20261025-020001-b, 20261025-020001-b\.bak, 20261025-025959-a"):
        find_run(tmp_path, "none")


def test_find_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run=latest: no finished run with config.yaml in .*; the folder has none yet"):
        find_run(tmp_path, "latest")
    first, second, third = (Journal.begin(tmp_path, name, {}) for name in ("a", "b", "c"))
    with pytest.raises(
        UserError, match=f"run=latest: no finished run with config.yaml in .*; the latest are .*{third.id}"
    ):
        find_run(tmp_path, "latest")
    first.finish("FINISHED")
    second.finish("FINISHED")
    third.finish("FAILED", "no")
    (first.folder / "mlflow.json").write_text('{"run_id": "abc123"}')
    assert find_run(tmp_path, "latest") == second.folder
    assert find_run(tmp_path, third.id) == third.folder
    assert find_run(tmp_path, second.id[:-1]) == second.folder
    assert find_run(tmp_path / "elsewhere", str(first.folder)) == first.folder
    assert find_run(tmp_path, "abc123") == first.folder
    for bad in ("zzz", "", "..", "abc"):
        with pytest.raises(UserError, match=rf"run={bad}: no such run in .*; the latest are .*{first.id}"):
            find_run(tmp_path, bad)
    with pytest.raises(
        UserError, match=rf"run={first.id[:8]}: 3 runs in .* begin so .*{first.id}.*; give more of the id"
    ):
        find_run(tmp_path, first.id[:8])


def test_a_run_that_is_not_found_is_answered_by_those_that_would_do(tmp_path: Path) -> None:
    """For model.start the latest were an evaluation and an export, which have no weights."""
    trained, evaluated = (Journal.begin(tmp_path, name, {}) for name in ("trained", "evaluated"))
    (trained.folder / "weights.npz").touch()
    said = rf"run=zzz: no such run in .*; the latest with weights.npz are {trained.id}$"
    with pytest.raises(UserError, match=said):
        find_run(tmp_path, "zzz", "weights.npz")
    with pytest.raises(UserError, match=rf"the latest are {evaluated.id}, {trained.id}$"):
        find_run(tmp_path, "zzz", "adapters.npz")  # which none has


def test_a_run_whose_folder_is_moved_learns_it(tmp_path: Path) -> None:
    """It made the folder again for its results, and ended as finished: one half here, the other half there."""
    journal = Journal.begin(tmp_path / "runs", "run", {})
    (tmp_path / "runs").rename(tmp_path / "moved")
    gone = f"output_dir: cannot write {journal.folder / 'metrics.jsonl'}: it was moved while the run wrote to it"
    for write in (lambda: journal.log({"loss": 0.5}, 1), lambda: journal.artifact_path("figures/loss.png")):
        with pytest.raises(UserError) as caught:
            write()
        assert str(caught.value) == gone
    said: list[str] = []
    writer = Writer(journal.folder, Checkpoints(every=1), 0, said.append)
    writer.write(1, {}, {}, lambda: None)
    writer.close()
    assert said == ["no checkpoint of step 1: No such file or directory"]
    assert not (tmp_path / "runs").exists()
    (tmp_path / "moved").rename(tmp_path / "runs")
    journal.finish("FINISHED")
    assert (journal.folder / "metrics.jsonl").read_bytes().count(b"\n") == 1


def test_a_run_whose_folder_is_deleted_learns_it(tmp_path: Path) -> None:
    """It trained to its end, wrote to a file that was gone, and ended as finished."""
    journal = Journal.begin(tmp_path, "run", {})
    journal.log({"loss": 1.0}, 1)
    journal.flush()
    shutil.rmtree(journal.folder)
    journal.log({"loss": 0.5}, 2)
    gone = f"output_dir: cannot write {journal.folder / 'metrics.jsonl'}: it was deleted while the run wrote to it"
    with pytest.raises(UserError) as caught:
        journal.flush()
    assert str(caught.value) == gone
    with pytest.raises(UserError, match="cannot write"):
        journal.finish("FINISHED")
