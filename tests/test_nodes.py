"""Cells for the nodes of a cluster: what they ask for, who judges them, and what of this machine they never see."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from collections.abc import Callable, Set
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from pipeline.cli.conf_path import conf_path
from pipeline.errors import Stopped
from pipeline.machine.device import Gpu
from pipeline.runs import receipt, slurm
from pipeline.runs.code import code_hash as code
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.lookup import reap
from pipeline.runs.records import read_status
from pipeline.runs.result import Result
from pipeline.sweep import ray_tasks, submitit_jobs
from pipeline.sweep import schedule as scheduling
from pipeline.sweep.cell import environment_file, job_file, write_environment
from pipeline.sweep.history import History
from pipeline.sweep.plan import Cell, check, decide_one
from pipeline.sweep.schedule import POLL_SECONDS, QUEUE_POLL_SECONDS, Listed, Outcome, Schedule, pause
from pipeline.tracking.store import journal_mode

H200 = {"name": "NVIDIA H200", "memory_bytes": 150_754_820_096, "compute_capability": "9.0"}


def cell(*words: str, kind: str = "gpu", here: bool = False) -> Cell:
    """A cell of the digits as a launcher checks it whose nodes give it a device of this kind."""
    with initialize_config_dir(str(conf_path()), version_base="1.3"):
        config = compose("config", overrides=["dataset=digits", "tracking=none", *words])
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    return check(0, {}, plain, [], None if here else lambda _: kind)  # type: ignore[arg-type, return-value]


def finished(root: Path, one: Cell, hardware: dict[str, Any]) -> Path:
    """A run of the cell that a node has finished, with the receipt that it wrote there."""
    assert one.experiment is not None and one.resolved is not None
    journal = Journal.begin(root, "cell", one.config)
    journal.write_receipt(
        {**receipt.before(one.experiment, one.resolved), "device": {"hardware": hardware}, "data_sha256": None}
    )
    journal.write_result(Result(()))
    journal.finish("FINISHED")
    return journal.folder


def test_the_submitting_machine_does_not_judge_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.ready.cell_of", lambda _: pytest.fail("asked for this machine's devices"))
    for words in (("device=gpu",), ("device.name=gpu:1", "precision=tf32"), ("device=auto", "precision=fp16")):
        found = cell(*words)
        assert found.impossible is None
        assert found.experiment is not None
        assert (found.resolved, found.where) == (None, "gpu")
    found = cell("device=cpu", "precision=tf32", kind="cpu")  # no CPU has it
    assert str(found.impossible).startswith("precision=tf32 with backend=torch on cpu: ")


def test_the_reason_to_run_again_is_that_of_the_nearest_run(tmp_path: Path) -> None:
    """A later run of other code and another device was named where an earlier one differed in its device alone."""
    local = cell("device=cpu", here=True)
    near, far = sorted(finished(tmp_path, local, {"name": "an abacus"}) for _ in range(2))
    written = read_json(far / "receipt.json")
    (far / "receipt.json").write_text(json.dumps({**written, "code_sha256": "0", "git": None}))
    reason = decide_one(local, "killed", History(tmp_path)).reason
    assert reason.startswith(f"changed since {near.name}: the device (an abacus -> ")


def test_a_finished_cell_is_known_by_its_node_s_receipt(tmp_path: Path) -> None:
    local = cell("device=auto", here=True)
    assert local.impossible is None
    on_node, on_cpu_node = cell("device=auto", kind="gpu"), cell("device=auto", kind="cpu")
    assert decide_one(on_node, "killed", History(tmp_path)).reason == "new"
    run = finished(tmp_path, local, H200)
    history = History(tmp_path)
    assert decide_one(on_node, "killed", history).run == run
    again = decide_one(on_cpu_node, "killed", history)
    assert (again.verdict, again.reason) == (
        "run",
        f"changed since {run.name}: the device (NVIDIA H200 -> a CPU of the cluster)",
    )
    assert decide_one(local, "killed", history).verdict == "run"  # this machine is not a node
    written = read_json(run / "receipt.json")
    assert written["versions"]["libc"] != "glibc 2.17"
    write_json(run / "receipt.json", written | {"versions": written["versions"] | {"libc": "glibc 2.17"}})
    assert decide_one(on_node, "killed", History(tmp_path)).run == run  # the node's C library is not this machine's
    (run / "result.json").rename(run / "elsewhere.json")
    lost = decide_one(on_node, "killed", History(tmp_path))
    assert (lost.verdict, lost.reason) == ("run", f"{run.name} has lost its result.json")
    (run / "elsewhere.json").rename(run / "result.json")
    node = finished(tmp_path, local, {"name": "another CPU than this machine's", "cores": 64})
    assert decide_one(on_cpu_node, "killed", History(tmp_path)).run == node


@pytest.mark.parametrize(
    ("parameters", "device", "kind"),
    [
        ({}, "gpu:1", "gpu"),
        ({}, "/CPU:0", "cpu"),
        ({"gpus_per_node": 1}, "auto", "gpu"),
        ({"gpus_per_node": 0}, "auto", "cpu"),
        ({"slurm_gres": "gpu:a100:1"}, "auto", "gpu"),
        ({"gpus_per_node": 1}, "cpu", "cpu"),
    ],
)
def test_which_device_a_node_gives(parameters: dict[str, Any], device: str, kind: str) -> None:
    assert submitit_jobs.kind_asked(parameters, device) == kind
    if not parameters or "gpus_per_node" in parameters:
        assert ray_tasks.kind_asked(parameters.get("gpus_per_node"), device) == kind


def test_a_job_asks_for_what_its_cell_needs() -> None:
    def asked(kind: Any, cpus: int, **parameters: Any) -> dict[str, Any]:
        found = submitit_jobs.asked_for(parameters, kind, cpus)
        return {name: value for name, value in found.items() if name in ("gpus_per_node", "cpus_per_task")}

    assert asked("cpu", 2, cpus_per_task=None, gpus_per_node=None) == {"cpus_per_task": 2}
    assert asked("gpu", 4, gpus_per_node=None) == {"cpus_per_task": 4, "gpus_per_node": 1}
    assert asked("gpu", 4, gpus_per_node=2, cpus_per_task=8) == {"cpus_per_task": 8, "gpus_per_node": 2}
    assert asked("gpu", 4, slurm_gres="gpu:1") == {"cpus_per_task": 4}
    assert asked("cpu", 4, gpus_per_node=1)["gpus_per_node"] == 1  # what the user sets stands


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_queue_is_looked_at_less_and_less(quiet: float, longer: float) -> None:
    assert POLL_SECONDS <= pause(quiet) <= max(POLL_SECONDS, quiet / 9.9)
    assert pause(quiet) <= pause(quiet + longer) <= QUEUE_POLL_SECONDS


def test_a_node_keeps_its_environment_and_learns_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = ("MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY")
    own = ("SLURM_JOB_ID", "SLURM_CPU_BIND", "TMPDIR", "CUDA_VISIBLE_DEVICES")
    for name in (*secret, *own, "SLURM_CONF", "SBATCH_ACCOUNT", "PIPELINE_MODULES", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "x")
    write_environment(tmp_path)
    path = environment_file(tmp_path)
    written = json.loads(path.read_text())
    assert not {*secret, *own} & written.keys()
    assert {"PIPELINE_MODULES", "MLFLOW_TRACKING_URI"} <= written.keys()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = dict(os.environ)
    with submitit_jobs._as_from_a_login():
        assert not set(own) & os.environ.keys()
        assert {"SLURM_CONF", "SBATCH_ACCOUNT"} <= os.environ.keys()
    assert dict(os.environ) == before


def test_a_node_is_given_the_variables_that_its_cells_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACT", "tanh")
    monkeypatch.setenv("OTHER", "secret")
    monkeypatch.delenv("UNSET", raising=False)
    write_environment(tmp_path)
    nodes_own = ("SLURM_JOB_ID", "TMPDIR", "LD_LIBRARY_PATH")  # the login machine's, where this test sets them
    for name in nodes_own:
        monkeypatch.setenv(name, "login")
    monkeypatch.setenv("TMPDIR_OF_MINE", "x")  # by its name no node's
    named = [f"${{oc.env:{name}}}" for name in (*nodes_own, "TMPDIR_OF_MINE")]
    config = {"model": {"activation": "${oc.env:ACT}"}, "tracking": {"uri": "a-${oc.env:UNSET}"}, "dataset": named}
    one: Any = SimpleNamespace(number=1, config=config, kind="cpu", experiment=None)
    remote = SimpleNamespace(remote=lambda *_: None)
    launcher: Any = SimpleNamespace(
        waiting=[],
        jobs={},
        tasks={},
        cpus=1,
        gpus=None,
        executor=SimpleNamespace(submit=lambda *_: None),
        log=tmp_path / "controllers.log",
        task=SimpleNamespace(options=lambda **_: remote),
        _say_where_no_node_has=lambda *_: None,
    )
    for kind in (submitit_jobs.LocalJobs, submitit_jobs.SlurmJobs, ray_tasks.RayTasks):
        write_environment(tmp_path)
        kind.start(launcher, one, job_file(tmp_path, 1))
        written = json.loads(environment_file(tmp_path).read_text())
        assert written["ACT"] == "tanh" and not {"OTHER", "UNSET", *nodes_own} & written.keys()
        assert written["TMPDIR_OF_MINE"] == "x"
        assert stat.S_IMODE(environment_file(tmp_path).stat().st_mode) == 0o600


def test_a_run_knows_its_job() -> None:
    inside = {"SLURM_JOB_ID": "17", "SLURM_CLUSTER_NAME": "tall", "SLURM_RESTART_COUNT": "2"}
    assert slurm.this_job(inside) == "tall/17.2"
    assert slurm.this_job({"SLURM_JOB_ID": "17"}) == "/17.0"
    assert slurm.this_job({}) is None


def elsewhere(root: Path, number: int) -> Path:
    """A run that goes on in a Slurm job, on a machine that is not this one."""
    journal = Journal.begin(root, "cell", {})
    there = replace(journal.status, host="node1", machine="another-boot", job=f"tall/{number}.0")
    write_json(journal.folder / "status.json", asdict(there))
    return journal.folder


def recorded(monkeypatch: pytest.MonkeyPatch, private: str, *lines: str) -> list[list[str]]:
    """A Slurm whose squeue prints these lines; returns the commands that it is given."""
    given: list[list[str]] = []

    def run(words: list[str], *_: float) -> subprocess.CompletedProcess[str]:
        given.append(words)
        return subprocess.CompletedProcess(words, 0, "\n".join(lines), "")

    monkeypatch.setattr(slurm, "run", run)
    monkeypatch.setattr(slurm, "installed", lambda: True)
    monkeypatch.setattr(slurm, "settings", lambda: {"ClusterName": "tall", "PrivateData": private})
    monkeypatch.setattr(slurm, "_answers", {})
    monkeypatch.setattr(slurm, "FRESH_SECONDS", 1e9)
    return given


@pytest.mark.parametrize(
    ("ours", "private", "state"),
    [
        (True, "jobs", "KILLED"),
        (False, "none", "KILLED"),
        (False, "nodes,usage", "KILLED"),
        (False, "accounts,jobs", "RUNNING"),
    ],
)
def test_a_job_that_squeue_does_not_show_has_ended_where_it_would_show_it(
    ours: bool, private: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, private)
    run = elsewhere(tmp_path, 7777)
    owner = run.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner if ours else owner + 1)
    reap(tmp_path)
    found = read_status(run)
    assert found is not None
    assert found.state == state


def test_slurm_is_asked_about_all_runs_at_once_and_not_for_every_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = recorded(monkeypatch, "none", *(f"{number} {number} RUNNING 0 None" for number in range(100, 129)))
    folders = [elsewhere(tmp_path, number) for number in range(100, 130)]
    history = History(tmp_path)
    for _ in range(5):
        history.refresh()
    assert [words[0] for words in given] == ["squeue"]
    assert "--all" in given[0]  # jobs of partitions that this user may not use, too
    assert [status.state for folder in folders if (status := read_status(folder))] == ["RUNNING"] * 29 + ["KILLED"]


class Interrupted(Listed):
    """Cells during whose start Ctrl-C arrives."""

    def next(self, fits: Callable[[Cell], bool]) -> Cell | None:
        if not self.cells:
            raise Stopped("SIGINT", 130)
        return super().next(fits)


class Silent:
    """A watcher that does nothing."""

    def started(self, cell: Cell) -> None: ...

    def became(self, cell: Cell, run: Path) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...

    def queued_again(self, numbers: Set[int]) -> None: ...

    def tick(self) -> None: ...


def test_cells_that_are_stopped_before_they_are_submitted_never_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, "none")
    monkeypatch.setattr(slurm, "check_controller", lambda: None)
    monkeypatch.setattr(submitit_jobs, "executor", lambda *_: None)  # submitting with that fails
    (tmp_path / "cells").mkdir()
    one = cell()
    assert one.experiment is not None
    jobs = submitit_jobs.SlurmJobs(one.experiment.sweep, tmp_path, {})
    source = Interrupted([one, replace(one, number=1)])
    schedule = Schedule(source, jobs, one.experiment.sweep, tmp_path, Silent())
    with pytest.raises(Stopped):
        schedule.run()
    found = [(outcome.cell.number, outcome.state, outcome.reason) for outcome in schedule.outcomes]
    assert found == [(number, "KILLED", "withdrawn before it began, as the sweep was stopped") for number in (0, 1)]
    assert jobs.jobs == {}


def test_a_grid_says_why_slurm_lets_cells_wait_and_that_it_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A partition that is down, an account that may not use it, a controller that is gone: the grid was silent."""
    monkeypatch.setattr(slurm, "check_controller", lambda: None)
    monkeypatch.setattr(submitit_jobs, "executor", lambda *_: None)
    one = cell()
    assert one.experiment is not None
    recorded(monkeypatch, "none")
    jobs = submitit_jobs.SlurmJobs(one.experiment.sweep, tmp_path, {})
    jobs.jobs = {number: (f"7_{number}", tmp_path) for number in range(4)}
    lines = [f"7_{number} 7 PENDING 0 PartitionDown" for number in (0, 1)]
    lines += ["7_2 7 PENDING 0 Resources", "7_3 8 RUNNING 0 None"]
    for _ in range(2):
        recorded(monkeypatch, "none", *lines)
        assert jobs.poll() == []
    failed = subprocess.CompletedProcess([], 1, "", "slurm_load_jobs error: Unable to contact slurm controller")
    for _ in range(2):
        monkeypatch.setattr(slurm, "run", lambda *_: failed)
        assert jobs.poll() == []
    recorded(monkeypatch, "none", *lines, "7_0 7 CANCELLED 0 None")
    ((number, reason),) = jobs.poll()
    assert (number, reason, type(reason)) == (0, "Slurm's job 7_0: CANCELLED", scheduling.Cancelled)
    said = ["Slurm lets 2 cells wait: PartitionDown", submitit_jobs.SILENT, "Slurm answers again"]
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.parametrize(
    ("parameters", "limit"),
    [({"timeout_min": 60}, "timeout_min=60"), ({"timeout_min": 60, "slurm_time": "0-2"}, "slurm_time=0-2")],
)
def test_the_limit_that_a_cell_passed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], limit: str
) -> None:
    """What is Slurm's own goes before what all of submitit's have."""
    monkeypatch.setattr(slurm, "check_controller", lambda: None)
    monkeypatch.setattr(submitit_jobs, "executor", lambda *_: None)
    one = cell()
    assert one.experiment is not None
    recorded(monkeypatch, "none", "7_0 7 TIMEOUT 0 None")
    jobs = submitit_jobs.SlurmJobs(one.experiment.sweep, tmp_path, parameters)
    jobs.jobs = {0: ("7_0", tmp_path)}
    assert jobs.poll() == [(0, f"took longer than hydra.launcher.parameters.{limit}")]


class Deaf:
    """Runs cells that do not hear that they are to stop, as on a node where nothing comes through in time."""

    queues = False
    queued: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.ended: list[int] = []

    def room(self, _: Cell) -> bool:
        return True

    def start(self, cell: Cell, job: Path) -> None: ...

    def poll(self) -> list[tuple[int, str | None]]:
        found, self.ended = self.ended, []
        return [(number, None) for number in found]

    def stop(self, number: int, *, kill: bool) -> None:
        self.ended += [number] * kill

    def close(self) -> None: ...


def test_a_cell_that_does_not_hear_ctrl_c_is_killed_and_not_left_as_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "GRACE_SECONDS", 0.1)
    (tmp_path / "cells").mkdir()
    one = cell()
    assert one.experiment is not None
    schedule = Schedule(Interrupted([one]), Deaf(), one.experiment.sweep, tmp_path, Silent())
    with pytest.raises(Stopped):
        schedule.run()
    assert [(outcome.cell.number, outcome.state) for outcome in schedule.outcomes] == [(0, "KILLED")]
    assert schedule.running == {}


class Short(Deaf):
    """Runs each cell from its beginning to its end between two looks at a queue."""

    queues = True

    def start(self, cell: Cell, job: Path) -> None:
        journal = Journal.begin(job.parent / "runs", "short", {})
        job.with_suffix(".run").write_text(str(journal.folder))
        time.sleep(0.3)
        journal.write_result(Result(()))
        journal.finish("FINISHED")
        self.ended.append(cell.number)


def test_a_cell_that_begins_and_ends_between_two_looks_has_its_time(tmp_path: Path) -> None:
    """It was 0.00 s, from which the ledger also says how long the others will take."""
    one = cell()
    assert one.experiment is not None
    schedule = Schedule(Listed([one]), Short(), one.experiment.sweep, tmp_path, Silent())
    assert schedule.run() is None
    (outcome,) = schedule.outcomes
    assert (outcome.state, outcome.seconds >= 0.2) == ("FINISHED", True)


def test_a_database_that_machines_share_has_no_write_ahead_log() -> None:
    mounts = {"/": "ext4", "/home": "nfs4", "/home/me/scratch": "xfs", "/proj": "lustre", "/mnt/s": "fuse.sshfs"}
    modes = {
        "/data/mlflow.db": "wal",
        "/home/me/mlflow.db": "delete",
        "/home/me/scratch/a/mlflow.db": "wal",
        "/homestead/mlflow.db": "wal",
        "/proj/x/mlflow.db": "delete",
        "/mnt/s/mlflow.db": "delete",
    }
    assert {path: journal_mode(Path(path), mounts) for path in modes} == modes


STAGES_OF_CELLS = (
    ("stage=amp", "stage.precisions=[fp32,bf16,tf32]"),
    ("stage=ladder", "dataset=digits", "stage.rungs.amp='precision=tf32'"),
    ("stage=pinn_comparison", "dataset=poisson_lshape", "model=fnn", "backend=jax"),
)


@pytest.mark.parametrize("words", STAGES_OF_CELLS, ids=lambda words: words[0])
def test_a_stage_of_cells_has_one_hash_on_every_machine(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login node of a cluster, which has no GPU, and the nodes agree on the code that decides."""
    hashes = {}
    for gpus in ((), (Gpu(0, "NVIDIA A100-SXM4-40GB", 40 << 30, (8, 0)),)):
        monkeypatch.setattr("pipeline.machine.device.gpus", lambda gpus=gpus: gpus)
        monkeypatch.setattr("pipeline.backends.Torch.no_gpu_because", lambda *_: None)
        for device in ("cpu", "gpu", "auto"):
            found = cell(*words, f"device={device}", kind="cpu" if device == "cpu" else "gpu")
            assert found.impossible is None
            assert found.experiment is not None
            monkeypatch.setattr(code, "_below", {})  # kept from the other machine
            hashes[device, len(gpus)] = code.code_sha256(found.experiment)
    assert [hashes[device, 0] for device in ("cpu", "gpu", "auto")] == [
        hashes[device, 1] for device in ("cpu", "gpu", "auto")
    ]
