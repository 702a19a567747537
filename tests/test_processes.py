"""Several processes train as one does, end together, and go on where they stood."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from command import done, environment, pipeline, refused, runs, status, write_files
from hypothesis import given
from hypothesis import strategies as st
from test_resume import CHECKPOINTS, UNSEEDED, killed, outcome

from pipeline.backends.torch.group import Group
from pipeline.errors import UserError
from pipeline.machine.device import Device
from pipeline.report.table import size
from pipeline.runs import weights
from pipeline.runs.checkpoint import newest_step
from pipeline.runs.fit import Fit, Observation
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_metrics
from pipeline.stages import training_table

CORES = len(os.sched_getaffinity(0))
two_cores = pytest.mark.skipif(CORES < 2, reason="needs two cores")

# The last batch of an epoch is smaller, and no batch divides by two.
ALWAYS = (
    *("precision=fp64", "tracking=none", "training.steps=20", "training.validate_every=12"),
    *("training.log_every_n_steps=1", "training.evaluation_batch_size=40"),
)
PLAIN = ("dataset=digits", "training.batch_size=101")
EVERYTHING = (
    *(
        "dataset=digits",
        "model=cnn",
        "loader=threads",
        "augmentation=images",
        "dataset.normalise=true",
        "training.batch_size=57",
    ),
    *(
        "training.accumulate=3",
        "training.ema=0.9",
        "training.clip_norm=0.5",
        "schedule=cosine",
        "training.weights=best",
    ),
    *("loader.steps_per_execution=7", "loss.class_weights=[1,2,1,3,1,1,1,2,1,1]"),
)
LANGUAGE = (
    *("stage=transformer", "dataset=python_docs", "dataset.context=32", "model.layers=1", "model.heads=2"),
    *(
        "model.width=16",
        "stage.attention=false",
        "stage.baselines=false",
        "model.dropout=0",
        "schedule.warm_up=5",
    ),
)
LONG = (
    *("dataset=digits", "model=mnist_cnn", "tracking=none", "training.batch_size=33", "schedule=cosine"),
    *("training.validate_every=37", "training.log_every_n_steps=1", "training.checkpoint.every=5"),
    *("loader.steps_per_execution=7", "device.processes=2"),
)


def instead(words: tuple[str, ...], word: str) -> tuple[str, ...]:
    """The same words but for one of its key."""
    return tuple(word if one.partition("=")[0] == word.partition("=")[0] else one for one in words)


@given(count=st.integers(1, 9), size=st.integers(1, 100))
def test_the_parts_make_up_the_batch(count: int, size: int) -> None:
    groups = [Group(rank, count) for rank in range(count)]
    rows = np.arange(2 * size).reshape(2, size)
    parts = [group.mine(rows) for group in groups if group.weight(size)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), rows)
    assert all(part.shape[1] for part in (group.mine(rows) for group in groups))
    assert sum(group.weight(size) for group in groups) == pytest.approx(1, abs=1e-12)


@two_cores
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(PLAIN, id="plain", marks=pytest.mark.wide),
        pytest.param(EVERYTHING, id="everything", marks=pytest.mark.wide),
        pytest.param((*LANGUAGE, "backend.threads=1"), id="language", marks=pytest.mark.wide),
    ],
)
def test_two_processes_train_as_one(tmp_path: Path, words: tuple[str, ...]) -> None:
    one, two = (done(tmp_path, *ALWAYS, *words, f"device.processes={count}") for count in (1, 2))
    check_same(one, two)
    receipt = read_json(two / "receipt.json")["processes"]
    assert (receipt["count"], receipt["backend"]) == (2, "gloo")
    assert [each["device"] for each in receipt["each"]] == ["cpu", "cpu"]
    assert all(each["threads"] <= max(1, CORES // 2) for each in receipt["each"])
    assert "processes" not in read_json(one / "receipt.json")


@two_cores
def test_two_steps_in_two_processes_are_those_of_one(tmp_path: Path) -> None:
    """What `make test` sees of the test above."""
    (tmp_path / "mine.txt").write_text("A whale is no fish, and swims in the sea. " * 50)
    words = (*instead(instead(LANGUAGE, "dataset=text"), "schedule.warm_up=1"), "dataset.path=mine.txt")
    words = (*words, "precision=fp64", "tracking=none", "training.steps=2", "training.validate_every=2")
    words = (*words, "training.log_every_n_steps=1", "training.batch_size=11")  # which two do not divide
    one, two = (done(tmp_path, *words, f"device.processes={count}") for count in (1, 2))
    check_same(one, two, least=2)
    assert [len(read_json(run / "receipt.json").get("processes", {}).get("each", ())) for run in (one, two)] == [0, 2]
    device, memory = said_at_the_end(two)
    assert device.startswith("cpu, 2 processes (")
    peaks = [each["peak_bytes"] for each in read_json(two / "receipt.json")["processes"]["each"]]
    assert memory == f"{size(sum(peaks))}, the sum of 2 processes, up to the end of training"
    said = "utilization: not measured with device.processes=2: the matmul beside it has one process and one device"
    notes = [read_json(run / "result.json")["notes"] for run in (one, two)]
    assert [said in each for each in notes] == [False, True]


def said_at_the_end(run: Path) -> tuple[str, str]:
    """The rows device and peak memory of the table."""
    table = dict(read_json(run / "result.json")["table"])
    return table["device"], table["peak memory"]


@pytest.mark.parametrize(
    ("processes", "split", "together", "device", "memory"),
    [
        (1, 1, None, "", "2.0 MiB on the GPU, 1.0 MiB of the process"),
        (
            2,
            1,
            {"count": 2, "each": None},
            ", 2 processes",
            "2.0 MiB on the first of 2 GPUs, 1.0 MiB of the first of 2 ",
        ),
        (
            2,
            1,
            {"count": 1},
            ", batches split over 2 devices",
            "2.0 MiB on the first of 2 GPUs, 1.0 MiB of the process",
        ),
        (2, 2, {"count": 1}, ", batches and weights split over 4 devices", "2.0 MiB on the first of 4 GPUs, 1.0 MiB "),
    ],
)
def test_the_table_at_the_end_says_what_took_part(
    processes: int, split: int, together: dict[str, object] | None, device: str, memory: str
) -> None:
    """Also of what went on in its last validation, and on GPUs."""
    asked = Device(processes=processes, split=split)
    peak = {"process_bytes": 2**20, "device_bytes": 2**21}
    fit = Fit(weights={}, epochs=(), observed=Observation(how=""), parameters=0, peak_memory=peak)
    receipt = {} if together is None else {"processes": together}
    assert training_table.shared_by(asked, receipt) == device
    said = training_table.memory_row(asked, fit, receipt)
    assert said.startswith(memory)
    assert said.endswith(", up to the end of training")  # the test, baselines and figures come after it


def check_same(one: Path, two: Path, least: int = 20) -> None:
    """That two trainings took the same steps, and end with the same weights, within 1e-10."""
    alone, together = (
        [{name: value for name, value in record.metrics.items() if "per_s" not in name} for record in read_metrics(run)]
        for run in (one, two)
    )
    assert len(together) >= least
    for left, right in zip(alone, together, strict=True):
        assert right == pytest.approx(left, abs=1e-10)
    first, second = (weights.load(run / "artifacts/model/weights.npz") for run in (one, two))
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_allclose(second[name], array, rtol=0, atol=1e-10)


@two_cores
@pytest.mark.wide
@pytest.mark.parametrize("key", ["device.processes", "device.split"])
@pytest.mark.parametrize(
    ("words", "size"),
    [
        pytest.param(PLAIN, 101, id="plain"),
        pytest.param(instead(EVERYTHING, "model=mlp"), 57, id="everything"),
        pytest.param(LANGUAGE, 12, id="language"),
    ],
)
def test_two_devices_of_jax_train_as_one(tmp_path: Path, words: tuple[str, ...], size: int, key: str) -> None:
    one, two = (done(tmp_path, *ALWAYS, *words, "backend=jax", f"{key}={count}") for count in (1, 2))
    check_same(one, two)
    found = read_json(two / "receipt.json")["processes"]
    assert found["devices"] == ["cpu:0", "cpu:1"]
    whole = sum(array.nbytes for name, array in weights.load(one / "artifacts/model/weights.npz").items())
    if key == "device.processes":
        half = -(-size // 2)
        assert found["rows_of_first_batch"] == {"cpu:0": [0, half], "cpu:1": [half, size]}
        assert found["exchanges_in_program"]["all-reduce"] >= 1
    else:
        assert found["rows_of_first_batch"] == {"cpu:0": [0, size], "cpu:1": [0, size]}
        assert all(0.5 <= held / whole <= 0.51 for held in found["weight_bytes"].values())
    what = "batches" if key == "device.processes" else "weights"
    device, memory = said_at_the_end(two)
    assert device.startswith(f"cpu, {what} split over 2 devices (")
    assert memory.endswith("of the process, up to the end of training")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((f"device.processes={CORES + 1}", "device=cpu"), f"choose 1 to {CORES}"),
        (
            ("device.processes=2", "backend=tensorflow"),
            "backend=tensorflow: it trains in one process",
        ),
        (("device.processes=2", "backend=tensorflow"), "on one device; use backend=torch or backend=jax"),
        (
            ("device.split=2",),
            "device.split=2 with backend=torch: it keeps whole weights on each device; use backend=jax",
        ),
        (("device.split=2", "device.processes=2", "backend=tensorflow"), "use backend=jax"),
        (("device.split=2", "stage=amp", "backend=jax"), "stage=amp: it works in one process"),
        ((f"device.split={CORES + 1}", "device=cpu", "backend=jax"), f"choose 1 to {CORES}"),
        (
            ("device.split=2", f"device.processes={CORES}", "device=cpu", "backend=jax"),
            f"device.processes={CORES} device.split=2 on cpu: more than the cores",
        ),
        (("device.processes=2", "loader=dataloader"), "loader=memory and loader=threads make its part alone"),
        (("device.processes=2", "profiler=torch"), "use profiler=none"),
        (("device.processes=2", "backend.compile=true"), "exchanges no gradients"),
        (("device.processes=2", "stage=amp"), "stage=amp: it works in one process"),
        (("device.processes=2", "stage=pinn"), "stage=pinn: it works in one process; leave it out"),
        (("device.processes=2", "stage=train", "stage.probe=true"), "it measures a step of one process alone"),
        (("device.processes=0",), "device.processes=0"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused(tmp_path, "dataset=digits", *words)


SHARDED = """
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from pipeline.contracts import Optimizer
from pipeline.spec import spec

@spec
class Sharded(Optimizer):
    learning_rate: float = 0.1
    def slots(self):
        return 0
    def torch(self, parameters):
        return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=self.learning_rate)
"""


@two_cores
@pytest.mark.wide
def test_an_optimizer_of_ones_own_that_needs_the_other_processes_trains(tmp_path: Path) -> None:
    """It was made before there were any, and refused."""
    write_files(tmp_path, {"sharded.py": SHARDED, "conf/optimizer/sharded.yaml": "_target_: sharded.Sharded\n"})
    path = f"{tmp_path}:{environment().get('PYTHONPATH', '')}"
    words = ("--config-dir", "conf", "dataset=digits", "optimizer=sharded", "training.steps=3", "device.processes=2")
    assert status(done(tmp_path, *words, PIPELINE_MODULES="sharded", PYTHONPATH=path)).state == "FINISHED"


@two_cores
@pytest.mark.wide
def test_processes_that_divide_the_same_data_apart_are_refused(tmp_path: Path) -> None:
    """The second would train on what the first is validated with."""
    (tmp_path / "unseeded.py").write_text(UNSEEDED)
    path = f"{tmp_path}:{environment().get('PYTHONPATH', '')}"
    words = ("dataset=digits", "dataset._target_=unseeded.Unseeded", "training.steps=3", "device.processes=2")
    result = pipeline(tmp_path, *words, PIPELINE_MODULES="unseeded", PYTHONPATH=path)
    assert result.returncode == 1, result.stderr
    said = result.stderr.splitlines()[-1]
    assert said.startswith("error: process 1 of 2 of the training (pid ")
    assert said.endswith(
        ") ended with status 1: its examples (train, validation) differ from those of process 0, though the data are "
        "the "
        "same; let load(root, seed) split them by its seed alone"
    )


def stopped(
    folder: Path, number: int, *, peer: bool, words: tuple[str, ...] = (*LONG, "training.steps=200"), **known: str
) -> tuple[int, list[psutil.Process]]:
    """Start a training, and send it, or its second process, a signal after a checkpoint: its status, what is left."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pipeline", *words]
    log = (folder / "log.txt").open("w")
    temporary = folder / "temporary"
    temporary.mkdir()
    known = environment(TMPDIR=str(temporary), **known)
    process = subprocess.Popen(command, cwd=folder, env=known, stdout=log, stderr=log)
    try:
        while process.poll() is None and not list(folder.glob(CHECKPOINTS)):
            time.sleep(0.01)
        peers = psutil.Process(process.pid).children()
        (second,) = [each for each in peers if "pipeline.backends.torch.peer" in each.cmdline()]
        (second if peer else process).send_signal(number)
        found = process.wait(timeout=400)  # less than the ten minutes that gloo waits
    finally:
        process.kill()
        log.close()
    _, left = psutil.wait_procs(peers, timeout=600)
    assert not list(temporary.glob("pipeline-*"))
    return found, left


@two_cores
@pytest.mark.wide
def test_a_process_that_dies_ends_the_training_with_a_checkpoint(tmp_path: Path) -> None:
    assert stopped(tmp_path, signal.SIGKILL, peer=True) == (1, [])
    (run,) = runs(tmp_path)
    said = str(status(run).error)
    assert status(run).state == "FAILED"
    assert "process 1 of 2" in said and "was killed by SIGKILL, after step" in said and "resumes from there" in said
    assert goes_on_to_the_same_end(tmp_path)


@two_cores
@pytest.mark.wide
def test_the_checkpoint_after_a_lost_process_has_the_statistics_of_its_step(tmp_path: Path) -> None:
    """The forward pass of the step that failed had moved those of batch normalisation, and moved them again later."""
    path = f"{Path(__file__).parent}:{environment().get('PYTHONPATH', '')}"
    known = {"PIPELINE_MODULES": "own_models", "PYTHONPATH": path}
    words = instead(instead(LONG, "model=linear"), "training.batch_size=40")
    words = (*words, "model._target_=own_models.Normalized", "training.steps=200")
    assert stopped(tmp_path, signal.SIGKILL, peer=True, words=words, **known) == (1, [])
    assert "resumes from there" in str(status(runs(tmp_path)[0]).error)
    assert goes_on_to_the_same_end(tmp_path, words, **known)


@two_cores
@pytest.mark.wide
def test_a_weight_that_the_loss_does_not_reach_is_named(tmp_path: Path) -> None:
    """Its gradient would be waited for, and those exchanged with it would not be."""
    path = f"{Path(__file__).parent}:{environment().get('PYTHONPATH', '')}"
    known = {"PIPELINE_MODULES": "own_models", "PYTHONPATH": path}
    words = (
        *("dataset=digits", "model=linear", "model._target_=own_models.Spare", "device.processes=2"),
        *("training.steps=1", "training.batch_size=32"),
    )
    result = pipeline(tmp_path, *words, **known)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "error: device.processes=2: the loss does not reach spare.kernel, spare.bias, whose gradients the "
        "processes would wait for; freeze them: model.freeze=[spare.kernel,spare.bias]"
    )
    done(tmp_path, *words, "model.freeze=[spare.kernel,spare.bias]", **known)


@two_cores
@pytest.mark.wide
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_processes_end_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    status_of, left = stopped(tmp_path, number, peer=False)
    assert (status_of, left) == (-9 if number == signal.SIGKILL else 128 + number, [])
    if number != signal.SIGINT:
        assert goes_on_to_the_same_end(tmp_path)


@two_cores
@pytest.mark.wide
@pytest.mark.parametrize("peer", [False, True])
def test_they_end_in_a_block_also_with_a_limit_of_time(tmp_path: Path, *, peer: bool) -> None:
    """Rank 0 asked the others whether the time was over, while they were in the next step: ten minutes long."""
    words = (*instead(LONG, "loader.steps_per_execution=37"), "training.steps=200", "training.max_time=600")
    number, expected = (signal.SIGKILL, 1) if peer else (signal.SIGTERM, 128 + signal.SIGTERM)
    assert stopped(tmp_path, number, peer=peer, words=words) == (expected, [])
    (run,) = runs(tmp_path)
    (found,) = re.findall(r"(?:at|after) step (\d+)", (tmp_path / "log.txt").read_text())
    assert newest_step(run) == int(found)


@two_cores
@pytest.mark.wide
@pytest.mark.parametrize("key", ["device.processes", "device.split"])
def test_a_training_on_two_devices_of_jax_goes_on_after_a_kill(tmp_path: Path, key: str) -> None:
    words = (*instead(LONG[:-1], "model=mlp"), "backend=jax", "training.steps=1000", f"{key}=2")
    assert killed(tmp_path, words, 0.1) == -signal.SIGKILL
    assert goes_on_to_the_same_end(tmp_path, words)


def goes_on_to_the_same_end(folder: Path, words: tuple[str, ...] = (*LONG, "training.steps=200"), **known: str) -> bool:
    result = pipeline(folder, "resume=latest", **known)
    assert result.returncode == 0, result.stderr
    whole = folder / "whole"
    whole.mkdir()
    done(whole, *words, **known)
    return outcome(folder) == outcome(whole)


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4711", True),
        ("NCCL communicator was aborted on rank 0", True),
        ("ncclUnhandledCudaError: Call to CUDA function failed", True),
        ("Application timeout caused pair closure: timed out waiting 600000ms for recv operation", True),
        ("Application timeout caused pair closure", True),  # as the machine that is cut off has it
        ("mat1 and mat2 shapes cannot be multiplied: y = skip_connection(x)", False),
        ("The size of tensor a (3) must match the size of tensor b (4): peers(x)", False),
    ],
)
def test_an_error_of_an_exchange_is_none_of_the_model(said: str, lost: bool) -> None:
    from pipeline.backends.torch.peers import is_of_connection

    assert is_of_connection(RuntimeError(said)) is lost


def test_an_accumulated_sum_of_before_in_16_bits_is_refused(tmp_path: Path) -> None:
    """It was read as half as many numbers."""
    from pipeline.backends.keras import state

    state.write([np.zeros((4, 8), np.float16)], tmp_path / "arrays.npz")
    with pytest.raises(UserError, match="holds other dtypes than this version saves; train again"):
        state.read(tmp_path / "arrays.npz", [np.zeros((4, 8), np.float32)])
