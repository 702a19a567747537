"""Profilers: what each writes, opened by its own reader; that none changes a weight; what is refused."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import (
    COMMAND,
    TORCH_THEN_WIDE,
    TWO_THEN_WIDE,
    done,
    environment,
    pipeline,
    refused,
    runs,
    script,
    status,
)

from pipeline.errors import Impossible, RunError, UserError
from pipeline.loaders.batch_plan import Plan
from pipeline.machine.device import Place
from pipeline.models import Shapes
from pipeline.profilers import Subject, window
from pipeline.profilers.event_files import histogram
from pipeline.profilers.memory import Memory
from pipeline.profilers.nsys import Nsys, command, options, under_nsys
from pipeline.profilers.torch import Torch
from pipeline.runs.json_files import read_json
from pipeline.runs.result import read_result
from pipeline.stages.training_table import overhead_row

BACKENDS = TWO_THEN_WIDE
# Dropout, so that a profiler that draws a random number is found out; 40 steps an epoch, the last of them smaller.
SMALL = ("dataset=digits", "training=quick", "training.epochs=2", "training.batch_size=32", "tracking=none")
MODEL = {"torch": ("model=cnn", "model.dropout=0.25")}
OTHER_MODEL = ("model=mlp", "model.units=[32]", "model.dropout=0.25")  # XLA takes its time for convolutions
MEMORY = (
    ("torch", "memory"),
    *(pytest.param(name, "memory", marks=pytest.mark.wide) for name in ("tensorflow", "jax")),
)
PHASES = {"data", "forward", "backward", "optimizer"}


@cache
def profiled(backend: str, profiler: str, *more: str) -> Path:
    """The run of a backend with a profiler, made once."""
    return done(
        Path(mkdtemp()), *SMALL, *MODEL.get(backend, OTHER_MODEL), f"backend={backend}", f"profiler={profiler}", *more
    )


def profile(run: Path) -> dict[str, Any]:
    """What the receipt says of the window."""
    result: dict[str, Any] = read_json(run / "receipt.json")["profile"]
    return result


def chrome_trace(run: Path) -> Counter[str]:
    """How often each complete event is in the Chrome trace."""
    trace = json.loads(gzip.decompress((run / "artifacts/profile/trace.json.gz").read_bytes()))
    return Counter(event["name"] for event in trace["traceEvents"] if event["ph"] == "X")


@pytest.mark.parametrize(
    ("backend", "profiler"),
    [
        ("torch", "torch"),
        pytest.param("torch", "tensorboard", marks=pytest.mark.wide),
        pytest.param("jax", "tensorboard", marks=pytest.mark.wide),
        pytest.param("tensorflow", "tensorboard", marks=pytest.mark.wide),
        *MEMORY,
    ],
)
def test_a_profiler_changes_no_weight_and_says_what_it_cost(backend: str, profiler: str) -> None:
    run, plain = profiled(backend, profiler), profiled(backend, "none")
    receipt, ordinary = read_json(run / "receipt.json"), read_json(plain / "receipt.json")
    for name in ("weights_sha256", "config_sha256", "code_sha256"):
        assert receipt[name] == ordinary[name]
    assert ordinary["profiler"] is None and "profile" not in ordinary
    assert receipt["profiler"]["skip"] == 20
    result = profile(run)
    assert (result["steps"], result["epoch"], result["steps_after"]) == ([21, 25], 1, 2 * 40 - 25)
    assert result["overhead"] == pytest.approx(result["step_s"] / result["step_after_s"] - 1)
    assert read_json(run / "artifacts/profile/window.json") == result
    assert [made["training_rate"]["with_profiler"] for made in (receipt, ordinary)] == [True, False]
    figures, others = (read_json(folder / "result.json")["scalars"] for folder in (run, plain))
    assert figures.keys() - others.keys() == {
        "images_per_s_with_profiler",
        *(f"profiler/{name}" for name in ("step_s", "step_after_s", "overhead")),
    }
    assert others.keys() - figures.keys() == {"images_per_s", "peak_memory"}
    assert figures["test/loss"] == others["test/loss"]


def test_torchs_table_and_trace() -> None:
    run = profiled("torch", "torch")
    text = (run / "artifacts/profile/operations.txt").read_text()
    assert text.startswith("# profiler=torch: optimizer steps 21 to 25 (counted from 1), in epoch 1; ")
    assert "# sorted by self_cpu_time_total" in text
    for column in ("Self CPU", "CPU Mem", "# of Calls", "Input Shapes"):
        assert column in text
    assert "[32, 8, 8, 1]" in text or "[32, 1, 8, 8]" in text
    events = chrome_trace(run)
    assert {name: events[name] for name in PHASES} == dict.fromkeys(PHASES, 5)
    assert [events[f"step {number}"] for number in (20, 21, 25, 26)] == [0, 1, 1, 0]
    assert events["aten::convolution"] == 5 * 2
    assert not (run / "artifacts/profile/stacks.txt").exists()


@pytest.mark.wide
def test_stacks_and_another_window_by_another_loader() -> None:
    more = ("profiler.stacks=true", "profiler.shapes=false", "profiler.skip=0", "profiler.steps=2")
    run = profiled("torch", "torch", *more, "loader=dataloader")
    stacks = (run / "artifacts/profile/stacks.txt").read_text().splitlines()
    assert any("torch/training.py" in line and "training_step" in line for line in stacks)
    assert all(line.rpartition(" ")[2].isdigit() for line in stacks)
    assert "Input Shapes" not in (run / "artifacts/profile/operations.txt").read_text()
    events = chrome_trace(run)
    assert [events[name] for name in ("forward", "backward", "optimizer", "step 1", "step 2", "step 3")] == [
        2,
        2,
        2,
        1,
        1,
        0,
    ]
    assert events["data"] > 2  # each step's own, and the loader's work on a later batch
    assert profile(run)["steps"] == [1, 2]


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_tensorboard_reads_its_event_files(backend: str) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = profiled(backend, "tensorboard")
    read = EventAccumulator(str(run / "artifacts/tensorboard"), {"scalars": 0, "histograms": 0}).Reload()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for tag in ("train/loss", "train/accuracy", "epoch/train_loss", "validation/accuracy"):
        wanted = [(record["step"], record["metrics"][tag]) for record in records if tag in record["metrics"]]
        found = [(event.step, event.value) for event in read.Scalars(tag)]
        assert [step for step, _ in found] == [step for step, _ in wanted]
        np.testing.assert_allclose([value for _, value in found], [value for _, value in wanted], rtol=1e-6)
    with np.load(run / "artifacts/model/weights.npz") as weights:
        assert read.Tags()["histograms"] == [f"weights/{name}" for name in weights.files]
        for name in weights.files:
            histograms = read.Histograms(f"weights/{name}")
            assert [event.step for event in histograms] == [0, 1, 2]
            last = histograms[-1].histogram_value
            assert (last.num, sum(last.bucket)) == (weights[name].size, weights[name].size)
            assert last.max == pytest.approx(float(weights[name].max()))
    operations = {node.op.lower() for node in read.Graph().node}
    assert any("conv" in name or "dot_general" in name or "matmul" in name for name in operations)
    assert backend != "torch" or any("max_pool" in name for name in operations)


@pytest.mark.wide
@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_xprof_opens_the_profile(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    from xprof.convert import raw_to_tool_data as xprof

    run = profiled(backend, "tensorboard")
    (path,) = (run / "artifacts/tensorboard/plugins/profile").glob("*/*.xplane.pb")
    assert {"trace_viewer@", "overview_page"} <= set(xprof.xspace_to_tool_names([str(path)]))
    shown = json.loads(xprof.xspace_to_tool_data([str(path)], "trace_viewer", {})[0])["traceEvents"]
    events = [event for event in shown if event.get("ph") == "X"]
    names = Counter(event["name"] for event in events)
    if backend == "torch":
        assert {name: names[name] for name in PHASES} == dict.fromkeys(PHASES, 5)
        durations = [event["dur"] for event in events if event["name"] == "step 21"]
        assert 0 < durations[0] / 1e6 < 6 * profile(run)["step_s"]  # one of the five that the mean is of
    else:
        steps = [event["args"]["step_num"] for event in events if event["name"].startswith("train")]
        assert steps == [str(number) for number in range(21, 26)]
    capfd.readouterr()  # xprof is written in C++ and talks


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_memory_over_the_steps(backend: str) -> None:
    from PIL import Image

    run = profiled(backend, "memory")
    with (run / "artifacts/profile/memory.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["seconds", "step", "process_bytes"]
    counts = Counter(int(row["step"]) for row in rows)
    assert list(counts) == [21, 22, 23, 24, 25] and min(counts.values()) >= 2
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    held = [int(row["process_bytes"]) for row in rows]
    assert min(held) > 50 * 2**20
    assert max(held) <= read_json(run / "receipt.json")["peak_memory"]["process_bytes"]
    with Image.open(run / "artifacts/profile/memory.png") as image:
        assert image.width > 500


@pytest.mark.wide
def test_scalars_are_on_the_disk_while_training_goes_on(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ("dataset=digits", "training=quick", "training.epochs=100000", "tracking=none", "profiler=tensorboard")
    training = subprocess.Popen(
        [*COMMAND, *words, "profiler.steps=0"], cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL
    )
    try:
        deadline, seen = time.monotonic() + 600, 0
        while seen < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
            for folder in tmp_path.glob("runs/*/artifacts/tensorboard"):
                read = EventAccumulator(str(folder)).Reload()
                seen = len(read.Scalars("train/loss")) if "train/loss" in read.Tags()["scalars"] else 0
        assert seen >= 3
        assert training.poll() is None
        (run,) = runs(tmp_path)
        assert status(run).state == "RUNNING"
    finally:
        training.terminate()
        training.wait(600)
    assert status(run).state == "KILLED"
    assert not (run / "artifacts/profile").exists()


@pytest.mark.wide
def test_a_grid_does_not_take_a_profiled_run_for_an_ordinary_one(tmp_path: Path) -> None:
    words = ("-m", "dataset=digits", "training=quick", "training.batch_size=32", "model=linear", "tracking=none")
    for profiler, verdict in (
        ("none", "1 done"),
        ("memory", "1 done"),
        ("memory", "1 finished before"),
        ("none", "1 finished before"),
    ):
        result = pipeline(tmp_path, *words, f"profiler={profiler}", "seed=3")
        assert result.returncode == 0, result.stderr
        assert verdict in result.stderr + result.stdout
    made = [read_json(run / "receipt.json") for run in runs(tmp_path) if status(run).name != "grid"]
    assert [bool(receipt["profiler"]) for receipt in made] == [False, True]


REFUSALS = {
    "profiler=torch backend=jax": (
        "profiler=torch with backend=jax: it is for torch (profiler=tensorboard profiles every backend)"
    ),
    "profiler=nsys backend=tensorflow": (
        "profiler=nsys with backend=tensorflow: it is for torch (XLA runs a step as one program, with no forward and "
        "backward to mark; profiler=tensorboard profiles every backend)"
    ),
    "profiler=nsys": "profiler=nsys on cpu: Nsight Systems traces CUDA; profiler=torch runs on a CPU",
    "profiler=torch profiler.sort_by=device": (
        "profiler.sort_by=device on cpu: there is none; profiler.sort_by=cpu runs"
    ),
    "profiler=torch profiler.sort_by=memory": "profiler.sort_by='memory': should be 'cpu' or 'device'",
    "profiler=torch profiler.steps=0": "profiler.steps=0: should be greater than 0",
    "profiler=memory profiler.interval=0": "profiler.interval=0: should be greater than 0",
    "profiler=torch stage=devices": (
        "profiler=torch with stage=devices: measures a training, and this stage trains nothing"
    ),
    "profiler=torch profiler.skip=7 profiler.steps=4 training.steps=10": (
        "profiler.skip=7 profiler.steps=4: needs 11 batches, but training.steps=10 has 10 at most; "
        "lower them or train longer"
    ),
    "profiler=torch profiler.skip=7 profiler.steps=4 training.steps=10 stage=amp": (
        "profiler.skip=7 profiler.steps=4: needs 11 batches, but training.steps=10 has 10 at "
        "most; lower them or train longer"
    ),
    "profiler=perf": "profiler=perf: no such choice; choose from memory, none, nsys, tensorboard, torch",
    "profiler._target_=pipeline.models.mlp.Mlp": (
        "profiler._target_=pipeline.models.mlp.Mlp: does not derive from pipeline.contracts.Profiler; "
        "CONTRIBUTING.md says what one has to offer"
    ),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_refused_before_anything_starts(words: str, tmp_path: Path) -> None:
    assert refused(tmp_path, "device=cpu", *words.split()) == REFUSALS[words]


def test_a_window_that_training_does_not_have(tmp_path: Path) -> None:
    assert refused(tmp_path, *SMALL, "profiler=memory", "profiler.skip=76") == (
        "profiler.skip=76 profiler.steps=5: profiles steps 77 to 81, but training has 80 (2 x 40); "
        "lower them or train longer"
    )


def test_a_window_that_training_does_not_reach_is_said(tmp_path: Path) -> None:
    run = done(tmp_path, *SMALL, "profiler=memory", "profiler.skip=60", "training.max_time=0.00001")
    result = read_result(run)
    assert result is not None
    assert any(
        note.startswith("profiler=memory: nothing was profiled; the training ended after ")
        and note.endswith(" steps, and 61 to 65 were asked for")
        for note in result.notes
    )


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_a_window_in_which_a_step_compiles_is_cold(backend: str, tmp_path: Path) -> None:
    """An epoch's last batch is smaller, and another program, or is the first that is cut out of a block."""
    words = (*SMALL, "model=linear", f"backend={backend}", "profiler=memory", "profiler.skip=37", "profiler.steps=3")
    result = profile(done(tmp_path, *words))
    assert (result["cold"], result["overhead"]) == (True, None)
    assert overhead_row(result)[0][1].endswith(
        "overhead not measured: one that compiled, or began a resumed run, is among them"
    )
    assert 0 < result["step_after_s"] < result["step_s"]


# The real command, which gets SIGTERM where training pauses for a validation, or after a block, of a step.
STOPPED = """
import os, signal, sys
from pipeline.__main__ import main
from pipeline.backends.shared.progress import Watch

at, step = sys.argv.pop(), int(sys.argv.pop())
usual = getattr(Watch, at)
def stopped(self, *given, **named):
    usual(self, *given, **named)
    if self.step >= step:
        setattr(Watch, at, usual)  # a second signal would end it at once
        os.kill(os.getpid(), signal.SIGTERM)
setattr(Watch, at, stopped)
sys.exit(main())
"""


def stopped_and_resumed(folder: Path, step: int, at: str, *words: str) -> Path:
    """A run that was stopped at a step, and has gone on."""
    file = folder / "stopped.py"
    file.write_text(STOPPED)
    ended = script(folder, "torch", file, *SMALL, "model=linear", *words, str(step), at)
    assert ended.returncode == 143, ended.stderr
    again = pipeline(folder, "resume=latest")
    assert again.returncode == 0, again.stderr
    (run,) = runs(folder)
    return run


@pytest.mark.wide
def test_a_window_that_a_resumed_run_begins_with_is_cold(tmp_path: Path) -> None:
    run = stopped_and_resumed(tmp_path, 40, "pause", "profiler=memory", "profiler.skip=40")
    assert read_json(run / "receipt.json")["resumed"][0]["step"] == 40
    result = profile(run)
    assert (result["steps"], result["cold"], result["overhead"]) == ([41, 45], True, None)


@pytest.mark.wide
def test_a_window_that_a_stop_cuts_is_reported_and_one_before_it_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    words = ("profiler=memory", "profiler.skip=4", "profiler.steps=30", "loader.steps_per_execution=5")
    cut = stopped_and_resumed(tmp_path / "cut", 20, "block", *words)
    result = read_result(cut)
    assert result is not None
    said = "nothing was profiled; the run was stopped within steps 5 to 34, which were asked for"
    assert result.notes == (f"profiler=memory: {said}",)
    assert profile(cut)["steps"] is None
    whole = stopped_and_resumed(tmp_path, 40, "pause", "profiler=memory")
    result = read_result(whole)
    assert result is not None and not any("nothing was profiled" in note for note in result.notes)
    assert profile(whole)["steps"] == [21, 25]


@pytest.mark.wide
def test_tensorboard_has_every_histogram_and_scalar_of_a_resumed_run_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ("training.steps=120", "training.validate_every=30", "loader.steps_per_execution=5", "profiler.steps=0")
    run = stopped_and_resumed(tmp_path, 75, "block", "profiler=tensorboard", *words)
    read = EventAccumulator(str(run / "artifacts/tensorboard"), {"scalars": 0, "histograms": 0}).Reload()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    wanted = [record["step"] for record in records if "train/loss" in record["metrics"]]
    assert [event.step for event in read.Scalars("train/loss")] == wanted
    assert read.Tags()["histograms"]
    for name in read.Tags()["histograms"]:
        assert [event.step for event in read.Histograms(name)] == [0, 1, 2, 3, 4]


def test_a_window_lies_within_an_epoch() -> None:
    plan = Plan(examples=95, batch_size=10, steps=20, seed=0)
    assert window(Memory(skip=0, steps=10), plan) == range(10)
    assert window(Memory(skip=10, steps=10), plan) == range(10, 20)
    with pytest.raises(UserError, match=r"profiles steps 10 to 11, across the end of an epoch \(step 10\)"):
        window(Memory(skip=9, steps=2), plan)
    with pytest.raises(UserError, match=r"profiles steps 20 to 21, but training has 20 \(2 x 10\)"):
        window(Memory(skip=19, steps=2), plan)


def test_a_window_of_accumulated_steps_is_of_batches() -> None:
    """It said that a training of 10 optimizer steps, of two batches each, has 20 steps."""
    plan = Plan(examples=320, batch_size=32, steps=10, seed=0, accumulate=2)
    assert window(Memory(skip=0, steps=10), plan) == range(10)
    with pytest.raises(
        UserError, match=r"profiles batches 20 to 21, but training has 20 \(2 x 10\); lower them or train"
    ):
        window(Memory(skip=19, steps=2), plan)
    with pytest.raises(
        UserError, match=r"profiles batches 10 to 11, across the end of an epoch \(batch 10\); choose a "
    ):
        window(Memory(skip=9, steps=2), plan)


def test_what_a_gpu_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = Place("gpu", 0)
    Torch(sort_by="device").check_device(gpu, "torch")
    Memory().check_device(gpu, "torch")
    with pytest.raises(Impossible, match="profiler=memory with backend=jax on gpu:0: only torch's allocator"):
        Memory().check_device(gpu, "jax")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="profiler=nsys: no nsys on the PATH; install NVIDIA Nsight Systems, or use"):
        Nsys().check_device(gpu, "torch")


def on_second_gpu() -> Subject:
    """What a backend hands over before training on gpu:1: the net still lies on the CPU."""
    import torch

    return Subject(
        torch.nn.Linear(2, 2), dict, lambda: None, Shapes((2, 1, 1), (2,)), "float32", Place("gpu", 1), float
    )


def test_a_profiler_looks_at_the_device_of_the_run_and_not_at_where_the_net_lies_before() -> None:
    from torch.profiler import ProfilerActivity

    from pipeline.profilers.kineto import Kineto

    tool = Kineto(print, shapes=False, memory=False, stacks=False)
    tool.attach(on_second_gpu())
    assert tool.activities == [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    tool.attach(replace(on_second_gpu(), place=Place("cpu")))
    assert tool.activities == [ProfilerActivity.CPU]


@pytest.mark.parametrize("complete", [True, False])
def test_the_allocators_history_ends_with_the_window(
    complete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's allocator is made up: that it is asked of the run's own GPU, and what is recorded when."""
    import torch

    calls: list[str] = []
    looks: list[str] = []
    history: list[int] = []

    def record(enabled: str | None = "all", **_: object) -> None:
        calls.append(str(enabled))
        history[:] = [] if enabled is None else [1, 2]  # torch forgets it when it stops recording

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"device_traces": [list(history)]})
    for name, of_second in (("memory_allocated", 10), ("memory_reserved", 20)):

        def held(device: str | None = None, of_second: int = of_second) -> int:
            looks.append(str(device))
            return of_second if device == "cuda:1" else 0

        monkeypatch.setattr(torch.cuda, name, held)
    run: Any = SimpleNamespace(artifact=lambda name: tmp_path / name.rpartition("/")[2])
    tool = Memory(interval=0.001).tool(None, run)  # type: ignore[arg-type]
    tool.attach(on_second_gpu())
    tool.start()
    with tool.step(1):
        while len(looks) < 20:
            time.sleep(0.001)
    assert calls == ["all"]
    tool.stop()
    assert calls == ["all", "None"]
    if complete:
        tool.write({})
        rows = (tmp_path / "memory.csv").read_text().splitlines()[1:]
        assert len(rows) > 3 and {row.split(",", 2)[2] for row in rows} == {"10,20"}
        assert pickle.loads((tmp_path / "memory_snapshot.pickle").read_bytes()) == {"device_traces": [[1, 2]]}
    tool.close()
    assert calls == ["all", "None"]


# Stands where NVIDIA's nsys would: notes its arguments, runs the command, leaves a file where a report should be.
NSYS = """#!/bin/sh
if [ "$2" = --help ]; then printf '\t%s=\n' $OPTIONS; exit 0; fi
printf '%s\\n' "$@" > "$NOTED"
while [ "$1" != --output ]; do shift; done
output=$2
shift 2
"$@"
status=$?
[ -n "$REPORTS" ] && echo "not a real report" > "$output.nsys-rep"
exit $status
"""
# What a run does first where it is profiled under nsys.
BECOMES_A_RUN = """
import sys
from pathlib import Path
from pipeline.runs.journal import Journal
from pipeline.profilers.nsys import Marks
from pipeline.runs.run import Run
journal = Journal.begin(Path(sys.argv[1]), "marked", {})
Marks(Run(journal, None))
journal.finish("FINISHED")
"""


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the stand-in notes its arguments."""
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(NSYS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    monkeypatch.setenv("REPORTS", "1")
    monkeypatch.setenv("OPTIONS", f"{OPTIONS} --gpu-metrics-device")
    options.cache_clear()
    return tmp_path / "noted"


# What `nsys profile --help` lists, in part; to it comes --gpu-metrics-device, in newer versions --gpu-metrics-devices.
OPTIONS = "-t, --trace -c, --capture-range --capture-range-end -o, --output --gpu-metrics-set"


def test_nsys_gets_the_flags_of_the_source(nsys: Path, tmp_path: Path) -> None:
    Nsys().check_device(Place("gpu", 0), "torch")
    wrapped = [sys.executable, "-c", BECOMES_A_RUN, str(tmp_path / "runs")]
    assert under_nsys(Nsys(), wrapped) == 0
    source = ["--trace", "cuda,osrt,nvtx", "--capture-range", "cudaProfilerApi", "--gpu-metrics-device=all"]
    noted = nsys.read_text()
    assert noted.startswith("\n".join(["profile", *source, "--capture-range-end", "stop", "--output", ""]).rstrip())
    assert noted.endswith("\n".join(wrapped) + "\n")
    (run,) = runs(tmp_path)
    assert (run / "artifacts/profile/report.nsys-rep").read_text() == "not a real report\n"
    assert "--gpu-metrics-device=all" not in command(Nsys(gpu_metrics=False), options(), Path("out"), wrapped)


@pytest.mark.parametrize("name", ["--gpu-metrics-device", "--gpu-metrics-devices"])
def test_nsys_is_asked_for_its_options(nsys: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("OPTIONS", f"{OPTIONS} {name}")
    Nsys().check_device(Place("gpu", 0), "torch")
    assert f"{name}=all" in command(Nsys(), options(), Path("out"), ["x"])
    assert not nsys.exists()  # nothing was profiled for that


@pytest.mark.usefixtures("nsys")
@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (OPTIONS, "profiler.gpu_metrics=true: the nsys on the PATH does not sample a GPU's counters; use profiler.gpu"),
        (
            OPTIONS.replace("--capture-range-end", ""),
            "profiler=nsys: the nsys on the PATH has no option --capture-range-end",
        ),
        ("", "profiler=nsys: nsys profile --help lists no options"),
    ],
)
def test_an_nsys_that_is_too_old_is_refused(listed: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIONS", listed)
    with pytest.raises(UserError, match=re.escape(message)):
        Nsys().check_device(Place("gpu", 0), "torch")


@pytest.mark.usefixtures("nsys")
def test_nsys_without_a_report_or_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="made no run"):
        under_nsys(Nsys(), [sys.executable, "-c", ""])
    assert under_nsys(Nsys(), [sys.executable, "-c", "raise SystemExit(2)"]) == 2
    monkeypatch.setenv("REPORTS", "")
    with pytest.raises(RunError, match="nsys wrote no report; the run itself is complete"):
        under_nsys(Nsys(), [sys.executable, "-c", BECOMES_A_RUN, str(tmp_path / "runs")])


@pytest.mark.parametrize("high", [1.0, np.nextafter(1.0, 2.0), 1.0 + 1e-14, 2.0])
def test_weights_that_are_nearly_the_same_have_a_histogram(high: float) -> None:
    """NumPy finds no buckets between two neighbours, and the training ended there."""
    found = histogram(np.array([1.0, high]))
    assert (found.min, found.max, found.num, sum(found.bucket)) == (1.0, high, 2, 2)
