"""`make gpu`: limits, what is missing, what is stopped, what goes on; the README's table. Commands are real ones."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import yaml
from command import environment, write_files
from packaging.specifiers import SpecifierSet

from bench import table
from bench.gpu import command, found, offline, parts, wheels
from bench.gpu import session as sessions
from bench.gpu.command import Bench, Outcome, missing
from bench.gpu.machine import described, of_gpu
from bench.gpu.parts import PARTS, SECONDS, Part, instead
from bench.gpu.session import Ended, said
from bench.kept import keep, path_of, results
from bench.measure import row
from pipeline.command_line import composed
from pipeline.kernels.named import every
from pipeline.machine.device import Gpu, gpus
from pipeline.ready import planned
from pipeline.runs.json_files import write_json
from pipeline.runs.process import process_started
from pipeline.spec import build_as
from pipeline.stages.wmma.stage import Wmma

ROOT = Path(__file__).parents[1]
HANG = (
    "import subprocess, time; "
    "print(subprocess.Popen(['sleep', '1000'], process_group=0).pid, flush=True); time.sleep(1000)"
)
SIZE = "1024x1024x1024"
END = "import os; print('error: {}', flush=True); os._exit(2)"
STALL = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"
TWO_PARTS = """
import sys
from pathlib import Path
from test_bench_gpu import PASSES, STALLS, session
bench = session(Path.cwd(), PASSES, STALLS)
for part in bench.parts:
    bench.run(part, lambda *_: None)
"""
ENDED_BY_SIGNAL = """
from pathlib import Path
from bench.gpu.session import ends_by_signal
from test_bench_gpu import HANG, part, session
hangs = part("hangs", "timeit", "-n1", "-r1", HANG)
with ends_by_signal():
    session(Path.cwd(), hangs).run(hangs, lambda *_: None)
"""


def part(name: str, module: str, *words: str, **settings: Any) -> Part:
    """A part whose command is a module of Python's own library; it can run without a GPU."""
    chosen = {"limit_s": 60, "backends": (), "small": (), "rows": found.nothing, **settings}
    return Part(name=name, module=module, words=words, **chosen)


PASSES = part("passes", "platform")
FAILS = part("fails", "json.tool", "no-such-file")
STALLS = part("stalls", "timeit", "-n1", "-r1", STALL)


def session(folder: Path, *parts: Part) -> Bench:
    """A rehearsal that is kept in `folder`."""
    return Bench(parts, rehearsal=True, commit="c0ffee", root=folder / "kept", work=folder / "work")


# The list


def test_the_parts_take_eight_minutes_at_most() -> None:
    assert sum(one.limit_s for one in PARTS if not one.later) <= SECONDS == 480
    assert all(one.limit_s <= SECONDS for one in PARTS)
    assert sum(one.limit_s for one in PARTS if one.later) <= 3 * SECONDS  # as many make gpu behind the first
    assert all(one.limit_s > 0 for one in PARTS)


def test_the_most_valuable_come_first() -> None:
    names = [one.name for one in PARTS if not one.later]
    assert [one.later for one in PARTS] == sorted(one.later for one in PARTS)
    order = ["machine", "precisions, ", "kernels, ", "gpt_gpu", "memory limit", "profiler", "ladder", "tests"]
    places = [[n for n, name in enumerate(names) if name.startswith(begin)] for begin in order]
    assert [n for some in places for n in some] == list(range(len(names)))
    assert len(set(names)) == len(names)


def test_the_kernels_are_those_that_the_stage_has() -> None:
    """Each of them, in each dtype that it takes but fp32, is in a part, and nothing that lacks the part's dtype."""
    of_gpu = [kernel for kernel in every() if kernel.processor == "gpu"]
    taken = {(kernel.name, dtype) for kernel in of_gpu for dtype in kernel.dtypes if dtype != "fp32"}
    run: set[tuple[str, str]] = set()
    for one in PARTS:
        said = dict(word.partition("=")[::2] for word in one.words)
        if "stage.dtype" in said:
            stage = build_as(Wmma, {"kernels": yaml.safe_load(said["stage.kernels"])}, "stage")
            assert all(said["stage.dtype"] in kernel.dtypes for kernel in stage.chosen)
            run |= {(kernel.name, said["stage.dtype"]) for kernel in stage.chosen}
    assert run >= taken


def test_what_is_to_be_reached_is_measured() -> None:
    reached = {one.name: one.words for one in PARTS if one.name.startswith("reach, ")}
    for dtype in ("fp16", "bf16"):
        assert "stage.sizes=[6144,8192]" in reached[f"reach, {dtype}"]
        assert "stage.kernels=[tuned,triton,triton_tma,wgmma_persistent,cublas]" in reached[f"reach, {dtype}"]
    assert any(word.startswith("stage.around=") for word in reached["reach, padding"])
    assert any("work: 16" in word for word in reached["reach, work"])


def test_a_later_part_waits_for_a_session_that_has_time_for_it(tmp_path: Path) -> None:
    later = part("later", "platform", later=True, limit_s=100)
    bench = Bench([PASSES, later], rehearsal=False, commit="c0ffee", root=tmp_path, work=tmp_path)
    assert bench.limit(PASSES) == PASSES.limit_s
    bench.began -= SECONDS - 50
    with pytest.MonkeyPatch.context() as here:
        here.setattr(command, "missing", lambda *_, **__: "")
        outcome = bench.run(later, lambda *_: None)
        assert (outcome.state, outcome.message) == ("left", "needs 100 s, and 50 are left; run make gpu again")
        assert "later" not in results(bench.kept)
        bench.began += SECONDS - 50
        assert bench.run(later, lambda *_: None).state == "passed"


@pytest.mark.slow
def test_every_part_can_be_rehearsed(tmp_path: Path) -> None:
    here = environment(PYTHONPATH=str(ROOT))
    begun = [sys.executable, "-m", "bench", "gpu", "--rehearse"]
    done = subprocess.run(begun, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=7200, check=False)
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.glob("runs/gpu/rehearsal/*/*.json")
    wrong = {name: one["message"] for name, one in results(kept).items() if one["state"] not in ("passed", "skipped")}
    assert not wrong
    assert list(results(kept)) == [one.name for one in PARTS]


def test_all_tests_that_need_a_gpu_belong_to_a_part() -> None:
    marked = {path.name for path in (ROOT / "tests").glob("test_*.py") if re.search(r"mark\.gpu\b", path.read_text())}
    named = {Path(word.partition("::")[0]).name for one in PARTS for word in one.words if word.startswith("tests/")}
    assert named == marked - {Path(__file__).name}


@pytest.mark.parametrize("one", [one for one in PARTS if one.module == "pipeline"], ids=lambda one: one.name)
@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_a_part_is_a_command_that_the_pipeline_takes(
    one: Part, kind: Literal["cpu", "gpu"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked as for a node with such a device; of a grid its first cell."""
    if kind == "cpu" and one.small is None:
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    words = [word for word in one.arguments(rehearsal=kind == "cpu")[1:] if word != "-m"]
    words = [re.sub(r",.*", "", word) if word.startswith(("precision=", "backend")) else word for word in words]
    taken: list[str] = []

    def check(config: Mapping[str, Any], overridden: Sequence[str]) -> int:
        taken.append(planned(config, overridden, kind).device.name)
        return 0

    composed(words, check)
    assert taken == [kind]


def test_a_rehearsal_trains_small_nets() -> None:
    """The ladder's was the whole one, which took its ten minutes on a processor that converts bfloat16."""
    trains = [one for one in PARTS if one.module == "pipeline" and not {"stage=devices", "stage=wmma"} & {*one.words}]
    for name, words, small in ((one.name, one.words, one.small) for one in trains if one.small is not None):
        assert "dataset=digits" in words or any(word.startswith("model.") for word in small), name


def test_small_words_take_the_place_of_others() -> None:
    assert instead(("-m", "a=1", "b=2"), ("b=3", "c=4")) == ("-m", "a=1", "b=3", "c=4")


# What is missing


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = part("lacks", "platform", needs=("no-such-package", "pytest", "nor-this"))
    assert missing(lacks, rehearsal=True) == "no-such-package and nor-this are not installed"
    assert missing(part("cap", "platform", small=None), rehearsal=True) == "needs an NVIDIA GPU"
    monkeypatch.setattr(command, "gpus", lambda: ())
    assert missing(PASSES, rehearsal=False) == "needs an NVIDIA GPU"


def test_a_dataset_that_no_source_gives_is_named(tmp_path: Path) -> None:
    lacks = part("data", "timeit", "-n1", "-r1", END.format("cannot fetch data.txt; tried a mirror: no"))
    outcome = session(tmp_path, lacks).run(lacks, lambda *_: None)
    assert (outcome.state, outcome.message) == ("skipped", "cannot fetch data.txt")


@pytest.mark.skipif(bool(gpus()), reason="a GPU: `make gpu` runs it")
def test_without_a_gpu_every_part_is_skipped_by_name(tmp_path: Path) -> None:
    begun = [sys.executable, "-m", "bench", "gpu"]
    here = environment(PYTHONPATH=str(ROOT))
    done = subprocess.run(begun, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.endswith("error: every part was skipped, so that nothing is known of a GPU\n")
    (path,) = tmp_path.glob("runs/gpu/parts/*/*.json")
    kept = results(path)
    assert list(kept) == [one.name for one in PARTS]
    assert {one["state"] for one in kept.values()} == {"skipped"}
    assert {one["message"] for one in kept.values()} == {"needs an NVIDIA GPU"}
    assert not (tmp_path / "results").exists()


# How parts end


def pid_in(log: Path) -> int:
    """The process that a command named, once it has."""
    deadline = time.monotonic() + 600
    while not (log.exists() and log.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(log.read_text())


def test_a_part_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "REHEARSAL_S", 6)  # in which a busy machine starts it
    hangs = part("hangs", "timeit", "-n1", "-r1", HANG)
    outcome = session(tmp_path, hangs).run(hangs, lambda *_: None)
    (log,) = tmp_path.glob("work/*/hangs/output.log")
    stopped = f"stopped after 6 s; its last line: {pid_in(log)}"
    assert (outcome.state, outcome.message) == ("out of time", stopped)
    assert outcome.seconds >= 6
    assert process_started(pid_in(log)) is None  # its process group did not save it
    (kept,) = tmp_path.glob("kept/*/*.json")
    assert results(kept)["hangs"]["state"] == "out of time"


def test_what_has_passed_is_not_run_again_after_a_kill(tmp_path: Path) -> None:
    here = environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    with subprocess.Popen([sys.executable, "-c", TWO_PARTS], cwd=tmp_path, env=here) as process:
        pid = started(tmp_path, "stalls")
        process.send_signal(signal.SIGKILL)
    bench = session(tmp_path, PASSES, STALLS)
    assert [bench.done(one) for one in bench.parts] == [True, False]
    assert command.follow(bench, PASSES).state == "passed before"
    deadline = time.monotonic() + 600
    while process_started(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process_started(pid) is None  # the kernel ended the command with us
    bench.forget()
    assert not bench.done(PASSES)


def started(folder: Path, part: str) -> int:
    """The process that a part has started, once it has."""
    deadline = time.monotonic() + 600
    while not list(folder.glob(f"work/*/{part}/output.log")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (log,) = folder.glob(f"work/*/{part}/output.log")
    return pid_in(log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_was_started_first(number: signal.Signals, tmp_path: Path) -> None:
    here = environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    with subprocess.Popen([sys.executable, "-c", ENDED_BY_SIGNAL], cwd=tmp_path, env=here) as process:
        pid = started(tmp_path, "hangs")
        process.send_signal(number)
    assert process.returncode == 128 + number
    assert process_started(pid) is None


def test_a_process_that_no_signal_ends_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with monkeypatch.context() as driver_waits:
        driver_waits.setattr(sessions, "KILL_S", 0.2)
        driver_waits.setattr("os.kill", lambda *_: None)  # as in an uninterruptible sleep
        assert sessions.kill_session(process.pid) == [process.pid]
    assert sessions.kill_session(process.pid) == []
    assert process.wait() == -signal.SIGKILL
    ended = Ended(None, 12.0, "", (7, 8))
    assert command.judged(PASSES, ended, [], 12).message == "stopped after 12 s; 7, 8 could not be killed"


def test_a_part_that_was_stopped_shows_its_last_line() -> None:
    """Which cell of a grid, or which test, took the time: without it one looks for the output first."""
    ended = Ended(None, 12.0, "2 cells: 2 to run\n[1/2] done    backend.compile=true\n\n")
    message = command.judged(PASSES, ended, [], 12).message
    assert message == "stopped after 12 s; its last line: [1/2] done backend.compile=true"


def test_tests_also_get_what_is_left(tmp_path: Path) -> None:
    one, tests, last = (part(name, module, limit_s=10) for name, module in (("a", "x"), ("b", "pytest"), ("c", "y")))
    bench = Bench([one, tests, last], rehearsal=False, commit="c0ffee", root=tmp_path, work=tmp_path)
    bench.began -= 100
    assert (bench.limit(one), bench.limit(last)) == (10, 10)
    assert SECONDS - 210 < bench.limit(tests) <= SECONDS - 110
    bench.began -= SECONDS
    assert bench.limit(tests) == 10


def test_another_commit_has_to_pass_again(tmp_path: Path) -> None:
    bench = session(tmp_path, PASSES)
    bench.run(PASSES, lambda *_: None)
    assert bench.done(PASSES)
    assert not Bench([PASSES], rehearsal=True, commit="other", root=bench.root, work=tmp_path).done(PASSES)


@pytest.mark.parametrize("commit", [None, "c0ffee"])
@pytest.mark.parametrize("dirty", [None, False, True])
def test_what_has_passed_without_a_commit_or_with_changes_has_to_pass_again(
    commit: str | None, dirty: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "git_state", lambda: {"commit": commit, "dirty": dirty})
    first, second = (
        Bench([PASSES], rehearsal=True, commit=None, root=tmp_path, work=tmp_path / "work") for _ in range(2)
    )
    first._keep(PASSES, Outcome("passed", []), 1)
    assert second.done(PASSES) == (commit is not None and not dirty)
    assert second.folder(PASSES).parent.name == "-".join(
        (second.where["date"], second.kept.parent.name, str(commit), *(["changed"] if dirty else []))
    )
    third = Bench([PASSES], rehearsal=True, commit="c0ffee", root=tmp_path, work=tmp_path)
    assert third.done(PASSES) == (commit is not None and not dirty)  # nor does it count for a commit that is known


def test_a_part_that_missed_limits_is_not_repeated_and_one_that_went_wrong_is(tmp_path: Path) -> None:
    bench = session(tmp_path, PASSES)
    for message, done in ((f"{table.NOT_MET}jax, peak", True), ("RuntimeError: no such kernel", False)):
        bench._keep(PASSES, Outcome("failed", [row("jax, peak", [1.0], "bytes")], message), 1)
        assert bench.done(PASSES) is done
    bench._keep(PASSES, Outcome("failed", [row("jax, peak", [1.0], "bytes")], f"{table.NOT_MET}jax, peak"), 1)
    assert command.follow(bench, PASSES).state == "failed before"
    bench.forget()
    assert not bench.done(PASSES)


def test_what_was_measured_is_not_replaced_by_nothing(tmp_path: Path) -> None:
    rows = [row("jax, peak", [1.0], "bytes")]
    bench = session(tmp_path, PASSES)
    bench._keep(PASSES, Outcome("passed", rows), 1)
    first = results(bench.kept)["passes"]
    assert set(first) >= {"versions", "git"} and "versions" not in json.loads(bench.kept.read_text())["machine"]
    bench.forget()
    assert results(bench.kept)["passes"] == first
    bench._keep(PASSES, Outcome("skipped", [], "jax is not installed"), 1)
    assert results(bench.kept)["passes"] == first
    bench._keep(PASSES, Outcome("failed", [], "out of memory"), 1)
    kept = results(bench.kept)["passes"]
    assert (kept["rows"], kept["state"], kept["later"]["message"]) == (rows, "passed", "out of memory")
    assert not session(tmp_path, PASSES).done(PASSES)
    bench._keep(PASSES, Outcome("failed", rows), 1)
    assert (results(bench.kept)["passes"]["state"], "later" in results(bench.kept)["passes"]) == ("failed", False)


@pytest.mark.parametrize("state", ["out of time", "failed"])
def test_rows_are_not_replaced_by_a_part_that_went_wrong_with_fewer(state: str, tmp_path: Path) -> None:
    few = [row(f"{SIZE}/tuned", [2.0, 4.0], "TFLOP/s")]
    rows = [*few, row(f"{SIZE}/tuned, share of cublas", [0.5], "")]
    bench = session(tmp_path, PASSES)
    bench._keep(PASSES, Outcome("passed", rows), 1)
    first = results(bench.kept)["passes"]
    bench._keep(PASSES, Outcome(state, few, "stopped after 75 s"), 1)
    kept = results(bench.kept)["passes"]
    later = kept.pop("later")
    assert kept == first
    assert (later["state"], later["message"], later["rows"]) == (state, "stopped after 75 s", few)
    assert not bench.done(PASSES)
    bench._keep(PASSES, Outcome("skipped", few, "cannot fetch data.txt"), 1)
    assert results(bench.kept)["passes"]["later"] == later
    more = [*rows, row(f"{SIZE}/naive", [1.0], "TFLOP/s")]
    bench._keep(PASSES, Outcome(state, more, "stopped after 75 s"), 1)
    assert results(bench.kept)["passes"]["rows"] == more  # nothing of before is lost


@pytest.mark.parametrize(("state", "message"), [("passed", ""), ("failed", f"{table.NOT_MET}jax, peak")])
def test_a_part_that_ended_well_replaces_its_rows(state: str, message: str, tmp_path: Path) -> None:
    """Also with fewer of them: what it no longer measures is not that of today."""
    bench = session(tmp_path, PASSES)
    few = [row("jax, peak", [1.0], "bytes")]
    bench._keep(PASSES, Outcome("passed", [*few, row("torch, peak", [1.0], "bytes")]), 1)
    bench._keep(PASSES, Outcome(state, few, message), 1)
    kept = results(bench.kept)["passes"]
    assert (kept["state"], kept["rows"], "later" in kept) == (state, few, False)


def test_a_part_that_fails_makes_the_exit_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PARTS", (PASSES, FAILS))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        command.main(["--rehearse"])
    assert ended.value.code == 1
    (kept,) = tmp_path.glob("runs/gpu/rehearsal/*/*.json")
    assert {name: one["state"] for name, one in results(kept).items()} == {"passes": "passed", "fails": "failed"}
    assert "No such file or directory" in results(kept)["fails"]["message"]
    assert json.loads(kept.read_text())["machine"]["rehearsal"] is True
    assert "fails: failed, " in capsys.readouterr().err
    command.main(["--rehearse", "passes"])  # which has passed before


def test_a_limit_that_is_missed_is_a_failure(tmp_path: Path) -> None:
    missed = {**row("jax, peak", [2e9], "bytes"), "limit": "at most 1e9", "met": False}
    over = part("over", "platform", rows=lambda _: [missed])
    outcome = session(tmp_path, over).run(over, lambda *_: None)
    assert (outcome.state, outcome.message, outcome.rows) == ("failed", "not met: jax, peak", [missed])


def test_a_part_that_finds_nothing_has_failed(tmp_path: Path) -> None:
    empty = part("empty", "platform", rows=found.memory_limit)
    outcome = session(tmp_path, empty).run(empty, lambda *_: None)
    assert (outcome.state, outcome.message) == ("failed", "it ended well, and nothing of its results was found")


def test_results_that_cannot_be_read_fail_their_part_alone(tmp_path: Path) -> None:
    bench = session(tmp_path, part("torn", "platform", rows=lambda _: [row("", [], "")]), PASSES)
    torn, passes = [bench.run(one, lambda *_: None) for one in bench.parts]
    assert (torn.state, passes.state) == ("failed", "passed")
    assert torn.message.startswith("its results cannot be read: StatisticsError: ")


def receipt(folder: Path, name: str, precision: str, as_requested: bool | None) -> None:
    """A finished run of a cell, by what make gpu reads of it."""
    cell = {
        "precision": {"requested": precision, "as_requested": as_requested},
        "device": {"as_requested": True},
        "training_rate": {"unit": "tokens/s", "median": 2.0, "min": 1.0, "max": 3.0, "n": 3},
    }
    write_run(folder, name, {"test/loss": (1.0, "", "result")})
    write_files(folder / "runs" / name, {"receipt.json": json.dumps(cell)})


def write_run(folder: Path, name: str, metrics: Mapping[str, tuple[float, str, str]]) -> None:
    """A run with a result: value, unit and kind of each metric."""
    lists: dict[str, list[Any]] = {"tables": [], "table": [], "details": [], "notes": []}
    result = {
        "version": 1,
        "title": "",
        "scalars": {metric: value for metric, (value, _, _) in metrics.items()},
        "last_epoch": {},
        "declared": {
            metric: {"unit": unit, "kind": kind, "direction": "max"} for metric, (_, unit, kind) in metrics.items()
        },
        "failed": None,
        **lists,
    }
    files = {"status.json": "{}", "config.yaml": "{}", "result.json": json.dumps(result)}
    write_files(folder / "runs" / name, files)


def test_cells_without_a_result_count_among_those_that_were_asked_for(tmp_path: Path) -> None:
    write_files(tmp_path / "runs" / "1-grid", {"status.json": "{}", "config.yaml": "cells: 3", "cells/0000.json": ""})
    receipt(tmp_path, "2", "fp32", True)
    receipt(tmp_path, "3", "mixed_bf16", None)
    rows = {one["what"]: one for one in found.precisions(tmp_path)}
    assert rows["mixed_bf16 / fp32"]["median"] == 1.0
    right = rows["receipts that show what was asked for"]
    assert (right["median"], right["unit"], right["met"]) == (1, "of 3", False)


def test_what_a_test_prints_is_no_missing_dataset() -> None:
    ended = Ended(1, 1.0, "tests/test_a.py::test_b FAILED\ncannot fetch data.txt; tried a mirror: no\n")
    assert command.judged(parts.pytest_of("one", 1, "x"), ended, [], 1).state == "failed"


def test_a_message_begins_with_the_error() -> None:
    assert said("working\nerror: a=1: no\n  choose b\nmore\nand more\n") == "error: a=1: no choose b more"
    assert said("Traceback\n  File\n    x\nValueError: no\n  such\n") == "ValueError: no such"
    assert said("") == ""
    assert len(said("error: " + "x" * 1000)) == 303


def test_of_tests_those_that_have_passed_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the output that pytest has with this project's own options."""
    file = tmp_path / "tests" / "test_two.py"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the plugin
    monkeypatch.setattr(parts, "several", lambda: False)
    two_tests = "import pytest\npytestmark = pytest.mark.gpu\ndef test_a(): pass\ndef test_b(): assert {}\n"
    write_files(tmp_path, {"tests/test_two.py": two_tests.format(False)})
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # hypothesis and the like take seconds to import
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # the file changes within a second
    two = replace(parts.pytest_of("two", 60, "tests/test_two.py"), needs=())
    bench = session(tmp_path, two)
    for ended in ("1 failed, 1 passed", "1 failed, 1 deselected"):
        outcome = bench.run(two, lambda *_: None)
        assert (outcome.state, counts(outcome.rows)) == ("failed", {"passed": 1, "failed": 1})
        assert ended in (bench.folder(two) / found.LOG).read_text().splitlines()[-1]
    file.write_text(two_tests.format(True))
    said = (bench.folder(two) / found.LOG).read_text()
    assert said.index("tests/test_two.py::test_b, call: ") < said.index(
        "= FAILURES ="
    )  # at once, and pytest's own later
    for ended in ("1 passed, 1 deselected", "2 deselected"):  # the second time pytest finds nothing to run: status 5
        outcome = bench.run(two, lambda *_: None)
        assert (outcome.state, counts(outcome.rows)) == ("passed", {"passed": 2})
        assert ended in (bench.folder(two) / found.LOG).read_text().splitlines()[-1]


def test_a_file_without_tests_has_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"tests/test_none.py": "", "pytest.ini": "[pytest]\nmarkers = gpu\n"})
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    none = replace(parts.pytest_of("none", 60, "tests/test_none.py"), needs=())
    assert session(tmp_path, none).run(none, lambda *_: None).state == "failed"


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The rows' medians by name."""
    return {one["what"]: one["median"] for one in rows}


def test_tests_run_beside_each_other_where_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, there in ((16, True), (15, False)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert ("--numprocesses" in parts.pytest_of("one", 1, "x").words) is there


def test_tests_are_counted_by_pytests_output(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            found.LOG: "tests/test_a.py::test_x[torch-fp32] PASSED [ 25%]\n"
            "tests/test_a.py::test_x[jax-fp32] SKIPPED (jax is not installed) [ 50%]\n"
            "tests/test_a.py::test_y FAILED [ 75%]\ntests/test_a.py::test_z "
        },
    )
    assert found.passed(tmp_path) == ["tests/test_a.py::test_x[torch-fp32]"]
    with (tmp_path / found.LOG).open("a") as log:  # by several workers: a name when a test begins, and one when it ends
        log.write("\ntests/test_b.py::test_[a b] \n[gw11] [ 75%] PASSED tests/test_b.py::test_[a b] \n")
        log.write("tests/test_b.py::test_d \n[gw0] [100%] FAILED tests/test_b.py::test_c \n")
    assert found.passed(tmp_path)[1:] == ["tests/test_b.py::test_[a b]"]
    assert found.outcomes(tmp_path)["tests/test_b.py::test_c"] == "FAILED"
    assert "tests/test_b.py::test_d" not in found.outcomes(tmp_path)
    (tmp_path / found.LOG).write_text("".join((tmp_path / found.LOG).read_text().partition("test_z ")[:2]))
    assert {one["what"]: one["median"] for one in found.tests(tmp_path)} == {"passed": 1, "failed": 1, "skipped": 1}


@pytest.mark.wide
def test_rehearsed_parts_find_what_they_are_to_find(tmp_path: Path) -> None:
    here = environment(PYTHONPATH=str(ROOT))
    words = ("--rehearse", "precisions, torch", "profiler", "memory limit, torch", "tests")
    begun = [sys.executable, "-m", "bench", "gpu", *words]
    done = subprocess.run(begun, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.glob("runs/gpu/rehearsal/*/*.json")
    assert {name: one["state"] for name, one in results(kept).items()} == {
        "precisions, torch": "passed",
        "memory limit, torch": "skipped",
        "profiler": "passed",
        "tests": "skipped",
    }
    assert [one["what"] for one in results(kept)["tests"]["rows"]] == ["skipped"]
    rows = {one["what"]: one for one in results(kept)["precisions, torch"]["rows"]}
    assert rows["fp32"]["unit"] == "tokens/s" and rows["fp32"]["median"] > 0
    assert rows["mixed_bf16 / fp32"]["median"] == rows["mixed_bf16"]["median"] / rows["fp32"]["median"]
    assert rows["receipts that show what was asked for"]["median"] == 2


# Without a network


def test_the_environment_sees_the_packages_of_the_python_that_made_it(tmp_path: Path) -> None:
    python = offline.environment(tmp_path / "venv")
    code = (
        "import numpy, pipeline, site, sys; "
        "print(numpy.__file__, pipeline.__file__, sys.prefix, *site.getsitepackages(), sep='\\n')"
    )
    seen = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    import numpy as np

    module, package, prefix, *sites = seen.splitlines()
    assert (module, package, prefix) == (np.__file__, str(ROOT / "src/pipeline/__init__.py"), str(tmp_path / "venv"))
    assert str(Path(np.__file__).parents[1]) in sites  # where CUDA's Python packages look for its libraries
    assert offline.environment(tmp_path / "venv") == python  # as it is


@pytest.mark.wide
def test_what_has_no_wheel_is_named(tmp_path: Path) -> None:
    where, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    python = offline.environment(where)
    found = offline.install(python, empty, ["numpy>=2.0", "no-such-package-here>=1"])
    assert found == {"no-such-package-here": f"no wheel of no-such-package-here in {empty}"}


def test_data_that_came_packed_are_those_that_were_packed(tmp_path: Path) -> None:
    import gzip

    packed = tmp_path / "data" / "moby_dick" / "data.txt.gz"
    packed.parent.mkdir(parents=True)
    packed.write_bytes(gzip.compress(b"Call me Ishmael."))
    offline.unpack(tmp_path / "data", tmp_path / "cache")
    assert (tmp_path / "cache/moby_dick/data.txt").read_bytes() == b"Call me Ishmael."


def test_what_tests_of_a_gpu_import_comes_along() -> None:
    _, others = offline.requirements()
    assert {"pytest", "pytest-timeout", "hypothesis"} <= set(map(offline.name_of, others))
    (one,) = [one for one in PARTS if "tests/test_solvers.py" in one.words]
    assert "hypothesis" in one.needs


def test_pythons_are_the_same_wherever_they_are_named() -> None:
    """In pyproject.toml, which pip reads, in the Makefile, which refuses others in one line, and without a network."""
    project = tomllib.loads((offline.ROOT / "pyproject.toml").read_text())["project"]
    allowed = SpecifierSet(project["requires-python"])
    pythons = [(3, minor) for minor in range(30) if f"3.{minor}.1" in allowed]
    assert list(offline.PYTHONS) == pythons
    makefile = (offline.ROOT / "Makefile").read_text()
    assert f"not in {offline.PYTHONS}" in makefile


def test_wheels_are_all_but_torch_and_what_is_there() -> None:
    wanted = ["torch>=2", "nvidia-cuda-nvrtc>=13", "cuda-bindings>=13", "numpy>=2"]
    assert {"nvidia-cuda-nvrtc", "cuda-bindings", "numpy"} <= set(wheels.closure(wanted, "3.12", set()))
    there = wheels.named("cuda-bindings==13.5.0\nnumpy==2.4.6\n")
    assert wheels.closure(wanted, "3.12", there) == ["nvidia-cuda-nvrtc"]


def test_the_users_packages_are_seen_where_python_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.ENABLE_USER_SITE", True)
    monkeypatch.setattr("site.getusersitepackages", lambda: str(tmp_path / "mine"))
    offline.environment(tmp_path / "venv")
    (lines,) = [path.read_text() for path in tmp_path.glob("venv/lib/*/site-packages/machine.pth")]
    assert str(tmp_path / "mine") in lines


def test_commands_of_tests_find_the_data_that_came_along() -> None:
    here = {"PIPELINE_CACHE": "/data", "PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin"}
    code = "from command import environment; print(environment().get('PIPELINE_CACHE'))"
    seen = subprocess.run([sys.executable, "-c", code], env=here, capture_output=True, text=True, check=True)
    assert seen.stdout == "/data\n"


def test_no_folder_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"error: WHEELS=.*nowhere: no such folder"):
        offline.main(tmp_path / "nowhere", tmp_path / "venv")


# What is kept, and the table


def test_the_file_is_that_of_the_gpu(tmp_path: Path) -> None:
    where = {"cpu": "AMD EPYC", "cores": 16, "date": "2026-01-01", "gpu": {"name": "NVIDIA H200"}}
    assert path_of(tmp_path, where) == tmp_path / "nvidia-h200" / "2026-01-01.json"


def test_the_clocks_are_those_of_the_gpu_that_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two of one name they were those of the first."""
    driver = SimpleNamespace(
        NVMLError=RuntimeError,
        NVML_CLOCK_SM=0,
        NVML_CLOCK_MEM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: f"GPU-{index}",
        nvmlDeviceGetName=lambda _: "NVIDIA H200",
        nvmlDeviceGetMaxClockInfo=lambda handle, clock: 1000 * int(handle[-1]) + clock,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000 if handle == "GPU-1" else 500_000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert of_gpu(Gpu(0, "NVIDIA H200", 1 << 37, (9, 0))) == {
        "name": "NVIDIA H200",
        "memory_bytes": 1 << 37,
        "compute_capability": "9.0",
        "sm_clock_MHz": 1000,
        "memory_clock_MHz": 1001,
        "power_limit_W": 700,
    }


def test_a_rehearsal_says_so() -> None:
    here = described(rehearsal=True)
    assert here["rehearsal"] is True
    assert "gpu" not in here


def figures(root: Path, date: str, state: str = "passed", commit: str = "0123456789", **rows: float) -> None:
    """A file of a GPU with the rate of a training in each part."""
    where = {"cpu": "AMD EPYC", "cores": 16, "date": date, "gpu": {"name": "NVIDIA H200"}}
    entry = {"git": {"commit": commit, "dirty": False}, "state": state}
    parts = {name: {**entry, "rows": [row("training", [value], "tokens/s")]} for name, value in rows.items()}
    keep(root, where, parts)


def lines_of(root: Path) -> dict[str, str]:
    """The last cell of each line by its first."""
    cells = [line.strip("| ").split(" | ") for line in table.table(root).splitlines()[2:]]
    return {line[0]: line[-1] for line in cells}


def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    keep(tmp_path, {"cpu": "AMD EPYC", "cores": 2, "date": "2026-01-01"}, {"gpt_gpu": {"rows": []}})
    found = lines_of(tmp_path)
    assert found.pop("parts that were not measured").split("; ") == [*dict.fromkeys(one.part for one in table.LINES)]
    assert found == {"limits that were missed": "not measured", "measured on, at commit": "not measured"}


def test_the_table_has_the_newest_figure_of_a_gpu(tmp_path: Path) -> None:
    figures(tmp_path, "2026-01-01", gpt_gpu=1e6)
    figures(tmp_path, "2026-01-02", gpt_gpu=2e6)
    figures(tmp_path, "2026-01-03", other=3e6)
    found = lines_of(tmp_path)
    assert found["`experiment=gpt_gpu`"] == "2,000,000 tokens/s (n = 1) [a]"
    assert found["measured on, at commit"] == "[a] 2026-01-02, 0123456"
    assert found["`experiment=gpt_gpu`: bits per byte of the test text"] == "not measured"
    assert "PyTorch: mixed_bf16 / fp32" not in found
    lacking = found["parts that were not measured"].split("; ")
    assert "precisions, torch" in lacking
    assert "gpt_gpu" not in lacking


def test_the_table_says_what_is_no_number_and_what_failed_later(tmp_path: Path) -> None:
    """A NaN lies in a file as a text, and no table could be written; a failure since was written as passed."""
    figures(tmp_path, "2026-01-01", gpt_gpu=math.nan)
    assert lines_of(tmp_path)["`experiment=gpt_gpu`"] == "not a number [a]"
    figures(tmp_path, "2026-01-02", gpt_gpu=2e6)
    path = tmp_path / "nvidia-h200" / "2026-01-02.json"
    kept = json.loads(path.read_text())
    kept["results"]["gpt_gpu"]["later"] = {"state": "failed", "message": "the loss is NaN"}
    write_json(path, kept)
    assert lines_of(tmp_path)["`experiment=gpt_gpu`"] == "2,000,000 tokens/s (n = 1) (later failed) [a]"


def test_the_table_names_every_date_and_commit_that_it_shows(tmp_path: Path) -> None:
    peak = {**row("torch, peak", [5e8], "bytes"), "met": True}
    where = {"cpu": "AMD EPYC", "cores": 16, "date": "2026-01-01", "gpu": {"name": "NVIDIA H200"}}
    earlier = {"git": {"commit": None, "dirty": None}, "state": "passed", "rows": [peak]}
    keep(tmp_path, where, {"memory limit, torch": earlier})
    figures(tmp_path, "2026-01-02", commit="abcdefghij", gpt_gpu=1e6)
    figures(tmp_path, "2026-01-03", state="out of time", gpt_gpu=2e6)
    found = lines_of(tmp_path)
    assert found["measured on, at commit"] == "[a] 2026-01-01, no commit; [b] 2026-01-03, 0123456"
    assert found["`experiment=gpt_gpu`"] == "2,000,000 tokens/s (n = 1) (out of time) [b]"
    assert found["`device.memory_limit=1GB`, PyTorch's peak"] == "500 MB: kept [a]"


def test_a_figure_says_whether_it_missed_its_limit_or_others_of_its_part_did(tmp_path: Path) -> None:
    limit = {"limit": "at most 1e+09"}
    peaks = [
        {**row(f"{name}, peak", [5e8], "bytes"), **limit, "met": met} for name, met in (("torch", False), ("jax", True))
    ]
    where = {"cpu": "AMD EPYC", "cores": 16, "date": "2026-01-01", "gpu": {"name": "NVIDIA H200"}}
    entry = {"git": {"commit": None, "dirty": None}, "state": "failed", "message": "not met: torch, peak"}
    parts = {f"memory limit, {name}": {**entry, "rows": peaks} for name in ("torch", "jax")}
    keep(tmp_path, where, parts)
    found = lines_of(tmp_path)
    assert found["`device.memory_limit=1GB`, PyTorch's peak"].endswith(" (missed) [a]")
    assert found["`device.memory_limit=1GB`, JAX's peak"] == "500 MB: kept [a]"
    assert found["limits that were missed"].startswith("torch, peak 5e+08 (at most 1e+09); ")


@pytest.mark.parametrize("others", [[], [row("jax, peak", [5e8], "bytes")]])
def test_a_missed_limit_stays_until_its_part_is_measured_again(others: list[dict[str, Any]], tmp_path: Path) -> None:
    """A later part that found nothing, or was stopped before that row, does not make it `none`."""
    limit = {"limit": "at most 1e+09"}
    peak = row("torch, peak", [5e8], "bytes") | limit
    git = {"git": {"commit": None, "dirty": None}}
    ends = [
        {**git, "state": "failed", "message": "not met: torch, peak", "rows": [{**peak, "met": False}]},
        {**git, "state": "out of time", "message": "stopped after 75 s", "rows": others},
        {**git, "state": "passed", "message": "", "rows": [{**peak, "met": True}]},
    ]
    shown = []
    for day, entry in enumerate(ends, 1):
        where = {"cpu": "AMD EPYC", "cores": 16, "date": f"2026-01-0{day}", "gpu": {"name": "NVIDIA H200"}}
        keep(tmp_path, where, {"memory limit, torch": entry})
        shown.append(lines_of(tmp_path)["limits that were missed"])
    assert shown == ["torch, peak 5e+08 (at most 1e+09)", "torch, peak 5e+08 (at most 1e+09)", "none"]


def test_a_rehearsal_enters_no_table(tmp_path: Path) -> None:
    where = {"cpu": "x", "cores": 1, "date": "2026-01-01", "gpu": {"name": "NVIDIA H200"}, "rehearsal": True}
    keep(tmp_path, where, {"gpt_gpu": {"rows": [row("training", [1.0], "tokens/s")]}})
    found = lines_of(tmp_path)
    assert "`experiment=gpt_gpu`" not in found
    assert "gpt_gpu" in found["parts that were not measured"].split("; ")


def timed(folder: Path, device: str, **samples: tuple[float, ...]) -> dict[str, Any]:
    """The rows of a run of stage=wmma with these seconds of each kernel; cublas is the yardstick."""
    lines = ["m,n,k,dtype,order,kernel,set,sample,calls,burst_s,sustained_s"]
    for name, each in samples.items():
        lines += [f"1024,1024,1024,fp16,column,{name},sizes,{n},5,1,{s}" for n, s in enumerate(each)]
    yardstick = min(samples.get("cublas", (1.0,)))
    shares = {f"{SIZE}/{name}/share": (yardstick / each[0], "", "time") for name, each in samples.items()}
    write_run(folder, "a", {**shares, "verified/naive": (9.0, "products", "count")})
    files = {
        "receipt.json": json.dumps({"device": {"effective": device}}),
        "artifacts/tables/samples.csv": "\n".join(lines) + "\n",
    }
    write_files(folder / "runs" / "a", files)
    return {one["what"]: one for one in found.kernels(folder)}


def test_the_fastest_kernel_and_its_share(tmp_path: Path) -> None:
    rows = timed(tmp_path, "gpu", cublas=(1.0, 1.0), tuned=(2.0, 2.0), naive=(8.0, 8.0))
    assert rows[f"{SIZE}/tuned"]["median"] == pytest.approx(2 * 1024**3 / 2.0 / 1e12)
    assert rows[f"{SIZE}/tuned"]["n"] == 2
    assert rows[f"fastest: {SIZE}/tuned"]["median"] == rows[f"{SIZE}/tuned"]["median"]
    fastest = rows[f"fastest: {SIZE}/tuned, share of cublas"]
    assert table.share(fastest) == "50.0% of cublas (50% to 50%, n = 2)"
    assert table.is_of(fastest["what"], "fastest: share") and not table.is_of(fastest["what"], "fastest: ")
    assert f"{SIZE}/cublas, share of cublas" not in rows


def test_a_share_says_how_far_it_may_be_off(tmp_path: Path) -> None:
    """From the slowest sample of ours over the fastest of cuBLAS to the reverse."""
    rows = timed(tmp_path, "gpu", cublas=(0.8, 1.0, 1.25), tuned=(2.0, 2.5))
    for what in (f"{SIZE}/tuned, share of cublas", f"fastest: {SIZE}/tuned, share of cublas"):
        one = rows[what]
        assert (one["min"], one["max"], one["n"]) == (pytest.approx(0.8 / 2.5), pytest.approx(1.25 / 2.0), 2)
    assert table.share(one) == "40.0% of cublas (32% to 62%, n = 2)"
    median = rows[f"{SIZE}/tuned"]["median"]  # the rate of the median time, as in the run's own result
    assert median == pytest.approx(2 * 1024**3 / 2.25 / 1e12)
    alone = timed(tmp_path / "alone", "gpu", cublas=(1.0,), tuned=(2.0,))
    assert table.share(alone[f"{SIZE}/tuned, share of cublas"]) == "50.0% of cublas"


def test_a_share_that_is_to_be_reached_has_the_range_too(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {f"{AT}/tuned/share": (0.5, "", "time")})
    wmma(tmp_path, "a", "[tuned,cublas]", "[4096]", CARD)
    lines = ["m,n,k,kernel,set,sustained_s"]
    lines += [
        f"4096,4096,4096,{name},sizes,{s}" for name, each in (("tuned", (2, 4)), ("cublas", (1, 2))) for s in each
    ]
    write_files(tmp_path / "runs" / "a", {"artifacts/tables/samples.csv": "\n".join(lines) + "\n"})
    (one,) = found.reached(tmp_path / "runs" / "a")
    assert (one["median"], one["min"], one["max"], one["n"], one["met"]) == (0.5, 0.25, 1.0, 2, False)


def test_the_table_has_a_shares_range_from_the_rates_beside_it(tmp_path: Path) -> None:
    """Of a file of before, whose share has none."""
    rates = [row(f"{AT}/tuned", [300.0, 400.0, 500.0], "TFLOP/s"), row(f"{AT}/cublas", [500.0, 625.0], "TFLOP/s")]
    what = f"fastest: {AT}/tuned, share of cublas"
    where = {"cpu": "AMD EPYC", "cores": 16, "date": "2026-01-01", "gpu": {"name": "NVIDIA H200"}}
    entry = {"git": {"commit": None, "dirty": None}, "state": "passed"}
    line = "matmuls in fp16 at 4096³: its share of the library's rate"
    for rows, expected in (
        ([*rates, row(what, [0.7], "")], "70.0% of cublas (48% to 100%, n = 2)"),
        ([*rates, row(what, [0.6, 0.7, 0.8], "")], "70.0% of cublas (60% to 80%, n = 3)"),
        ([rates[0], row(what, [0.7], "")], "70.0% of cublas"),
    ):
        keep(tmp_path, where, {"kernels, fp16": {**entry, "rows": rows}})
        assert lines_of(tmp_path)[line] == f"{expected} [a]"


CARD = {"device": {"effective": "gpu:0", "hardware": {"compute_capability": "9.0"}}}
AT = "4096x4096x4096"


def wmma(folder: Path, name: str, kernels: str, sizes: str, receipt: Mapping[str, Any]) -> None:
    """What a run of stage=wmma in fp16 has from its beginning on."""
    files = {
        "status.json": "{}",
        "config.yaml": f"stage: {{_target_: pipeline.stages.wmma.stage.Wmma, kernels: {kernels}, sizes: {sizes}}}",
        "receipt.json": json.dumps({"precision": {"effective": "fp16"}, **receipt}),
    }
    write_files(folder / "runs" / name, files)


def test_what_is_to_be_reached_is_judged_on_hopper_alone(tmp_path: Path) -> None:
    shares = {"tuned": 0.6, "triton_tma": 0.8, "naive": 0.1}
    sizes = {AT: 1.0, SIZE: 0.5}
    metrics = {
        f"{at}/{name}/share": (share * part, "", "time") for at, part in sizes.items() for name, share in shares.items()
    }
    for number, architecture in enumerate(("sm_90", "sm_80")):
        write_run(tmp_path, f"{number}", {**metrics, "ceiling/gpu/mma": (6e5, "GFLOP/s", "time")})
        receipt = {"device": {"effective": "gpu"}, "kernels": {"tuned": {"architecture": architecture}}}
        wmma(tmp_path, f"{number}", "[tuned,triton_tma,naive,cublas]", "[1024,4096]", receipt)
    rows = found.reached(tmp_path / "runs" / "0")
    assert {one["what"]: one["met"] for one in rows} == {
        f"to reach: {AT}/tuned/share": True,
        f"to reach: {AT}/triton_tma/share": False,
    }
    assert found.reached(tmp_path / "runs" / "1") == []
    every = {one["what"]: one for one in found.kernels(tmp_path)}
    assert every["highest ceiling: mma"]["median"] == 600
    assert table.ceiling(every["highest ceiling: mma"]) == "600 TFLOP/s by `mma`"
    assert table.is_of("highest ceiling: mma", "highest ceiling: ") and not table.is_of(
        "ceiling: fma", "highest ceiling: "
    )


def test_a_kernel_that_was_not_timed_has_not_reached_its_share(tmp_path: Path) -> None:
    """Whether it was itself not timed or cuBLAS beside it, and also where nothing was compiled for the card."""
    kernels = "[tuned,{_target_: pipeline.kernels.triton.triton.Triton},naive,cublas]"
    write_run(tmp_path, "a", {f"{AT}/tuned/share": (0.6, "", "time"), "verified/naive": (9.0, "problems", "count")})
    wmma(tmp_path, "a", kernels, "[1024,4096,[6144,6144,6144],[4096,8192,4096]]", CARD)
    judged = {one["what"]: one for one in found.kernels(tmp_path) if one["what"].startswith(table.TO_REACH)}
    larger = "6144x6144x6144"
    assert {
        name.removeprefix(table.TO_REACH): (one["median"], one["n"], one["met"]) for name, one in judged.items()
    } == {
        f"{AT}/tuned/share": (0.6, 1, True),
        f"{AT}/triton/share": (None, 0, False),
        f"{larger}/tuned/share": (None, 0, False),
        f"{larger}/triton/share": (None, 0, False),
    }
    assert judged[f"to reach: {AT}/triton/share"]["limit"] == "at least 0.82"


def test_without_a_choice_all_kernels_with_a_share_to_reach_are_expected(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {"verified/naive": (9.0, "problems", "count")})
    wmma(tmp_path, "a", "null", "[4096]", CARD)
    assert {one["what"] for one in found.reached(tmp_path / "runs" / "a")} == {
        f"to reach: {AT}/{name}/share" for name in found.REACH
    }


def test_a_part_whose_limits_were_not_measured_has_failed_and_says_so(tmp_path: Path) -> None:
    """No number stands for what nobody measured: neither in the file nor in the table."""
    work = tmp_path / "part"
    write_run(work, "a", {"verified/tuned": (9.0, "problems", "count")})
    wmma(work, "a", "[tuned,cublas]", "[4096]", CARD)
    one = part("kernels, fp16", "platform", rows=lambda _: found.reached(work / "runs" / "a"))
    bench = session(tmp_path, one)
    outcome = bench.run(one, lambda *_: None)
    assert (outcome.state, outcome.message) == ("failed", f"not met: to reach: {AT}/tuned/share (not measured)")
    assert "NaN" not in bench.kept.read_text()
    assert command.brief(outcome.rows) == ""
    where = {"cpu": "AMD EPYC", "cores": 16, "date": "2026-01-01", "gpu": {"name": "NVIDIA H200"}}
    keep(tmp_path / "results", where, results(bench.kept))
    missed = lines_of(tmp_path / "results")["limits that were missed"]
    assert missed == f"{AT}/tuned/share not measured (at least 0.55)"


def test_a_run_that_was_stopped_has_missed_nothing(tmp_path: Path) -> None:
    wmma(tmp_path, "a", "[tuned,cublas]", "[4096]", CARD)
    assert found.reached(tmp_path / "runs" / "a") == []
    rows = found.kernels(tmp_path)
    assert command.judged(PASSES, Ended(None, 75.0, ""), rows, 75).state == "out of time"


def test_kernels_of_the_processor_do_not_stand_for_those_of_the_gpu(tmp_path: Path) -> None:
    beside = timed(tmp_path / "beside", "gpu", numpy=(1.0,), tuned=(2.0,))
    assert f"fastest: {SIZE}/tuned" in beside and not any("numpy" in name for name in beside)
    assert beside["our kernels of the GPU that were timed"]["met"]
    alone = timed(tmp_path / "alone", "gpu", numpy=(1.0,))
    assert set(alone) == {"our kernels of the GPU that were timed", "verified/naive"}
    assert not alone["our kernels of the GPU that were timed"]["met"]
    library = timed(tmp_path / "library", "gpu", cublas=(1.0,))
    assert not library["our kernels of the GPU that were timed"]["met"]
    rehearsed = timed(tmp_path / "rehearsed", "cpu", numpy=(1.0,))
    assert f"{SIZE}/numpy" in rehearsed and "our kernels of the GPU that were timed" not in rehearsed


def test_of_a_part_that_was_stopped_the_library_is_not_the_fastest_of_ours(tmp_path: Path) -> None:
    """Its samples are there, its shares are not."""
    for name, samples, fastest in (
        ("both", {"cublas": (1.0,), "tuned": (2.0,), "naive": (8.0,)}, [f"fastest: {SIZE}/tuned"]),
        ("library", {"cublas": (1.0,)}, []),
    ):
        timed(tmp_path / name, "gpu", **samples)
        (tmp_path / name / "runs" / "a" / "result.json").unlink()
        rows = counts(found.kernels(tmp_path / name))
        assert f"{SIZE}/cublas" in rows
        assert [what for what in rows if what.startswith("fastest: ")] == fastest


def test_a_ratio_says_how_far_it_may_be_off() -> None:
    """Its runs come one after the other, with few periods each."""
    rates = {
        "fp32": {"median": 2.0, "min": 1.0, "max": 4.0, "n": 3},
        "bf16": {"median": 6.0, "min": 5, "max": 8, "n": 2},
    }
    assert table.ratio(found.against(rates, "bf16", "fp32")) == "3.00× (1.25 to 8.00, n = 2)"


def test_a_ladder_that_was_stopped_has_the_rungs_that_it_finished(tmp_path: Path) -> None:
    write_files(tmp_path / "runs" / "0", {"status.json": "{}", "cells/0000.json": "", "config.yaml": "{}"})
    for number, (name, seconds) in enumerate({"keras": 6.0, "batch": 3.0}.items(), start=1):
        run = tmp_path / "runs" / str(number)
        write_run(tmp_path, run.name, {"images_per_s": (2.0, "images/s", "time")})
        rate = {"unit": "images/s", "median": 2.0, "min": 1.0, "max": 3.0, "n": 3}
        receipt = {"training_s": seconds, "training_rate": rate}
        write_files(run, {"receipt.json": json.dumps(receipt), "config.yaml": f"name: ladder-{name}"})
    write_files(tmp_path / "runs" / "3", {"status.json": "{}", "config.yaml": "name: ladder-amp"})  # stopped
    assert counts(found.ladder(tmp_path)) == {"keras/images_per_s": 2, "batch/images_per_s": 2, "batch/gain": 2}


@pytest.mark.parametrize(("device", "capability"), [("gpu:0", "9.0"), ("gpu:0", "8.0"), ("cpu", None)])
def test_a_gpt_on_a_gpu_has_to_be_as_good_as_its_recipe_says(
    device: str, capability: str | None, tmp_path: Path
) -> None:
    recipe = (ROOT / "conf" / "experiment" / "gpt_gpu.yaml").read_text(encoding="utf-8")
    assert f"# Must reach a bits per byte of {found.BITS_AT_MOST};" in recipe
    metrics = {"model_flop_utilization": (0.4, "", "time"), "test/bits_per_byte": (2.2, "bits/byte", "result")}
    write_run(tmp_path, "a", metrics)
    hardware = {"compute_capability": capability}
    receipt = {"device": {"effective": device, "hardware": hardware}}
    write_files(
        tmp_path / "runs" / "a", {"receipt.json": json.dumps(receipt), "config.yaml": "backend: {compile: true}"}
    )
    judged = {one["what"]: one["met"] for one in found.training(tmp_path) if "met" in one}
    expected = {"model FLOP utilization": False} if capability == "9.0" else {}
    assert judged == (expected if device == "cpu" else expected | {"test/bits_per_byte": False})


def test_a_compiled_training_stands_beside_the_one_that_is_not(tmp_path: Path) -> None:
    for compiled, rate in (("true", 6.0), ("false", 2.0)):
        run = {"training_rate": {"unit": "tokens/s", "median": rate, "min": rate - 1, "max": rate + 2, "n": 3}}
        write_run(tmp_path, compiled, {"test/bits_per_byte": (2.0 if compiled == "true" else 9.0, "", "result")})
        files = {"receipt.json": json.dumps({**run, "device": {}}), "config.yaml": f"backend: {{compile: {compiled}}}"}
        write_files(tmp_path / "runs" / compiled, files)
    rows = {one["what"]: one for one in found.training(tmp_path)}
    assert {name: one["median"] for name, one in rows.items()} == {
        "training": 6, "eager": 2, "training / eager": 3, "test/bits_per_byte": 2.0,
    }  # fmt: skip
    assert (rows["training / eager"]["min"], rows["training / eager"]["max"]) == (5 / 4, 8.0)
    (tmp_path / "runs" / "false").rename(tmp_path / "stopped before it")
    assert set(counts(found.training(tmp_path))) == {"training", "test/bits_per_byte"}


def test_a_training_that_was_stopped_has_its_epochs(tmp_path: Path) -> None:
    lines = [
        json.dumps({"step": n, "time": 0.0, "metrics": {"epoch/number": n, "epoch/tokens_per_s": rate}})
        for n, rate in enumerate((1.0, 10.0, 30.0))
    ]
    journal = "\n".join(lines) + '\n{"st'
    for name, config in (("a", "backend: {compile: true}"), ("b", "backend: {compile: false}")):
        write_files(tmp_path / "runs" / name, {"status.json": "{}", "metrics.jsonl": journal, "config.yaml": config})
    (one,) = found.training(tmp_path)
    assert (one["what"], one["median"], one["unit"], one["n"]) == ("training", 20, "tokens/s", 2)
    (tmp_path / "runs" / "a" / "config.yaml").write_text("backend: {compile: false}")
    assert found.training(tmp_path) == []  # what is not compiled is not the recipe


def test_the_readmes_table_is_that_of_the_files() -> None:
    """`python -m bench table --write` writes it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table.instead(readme, table.table(ROOT / "results")) == readme
