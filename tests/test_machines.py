"""Processes that a launcher has started, on one machine and on two: network namespaces with a cable between them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import done, environment, refused, runs, status, write_files
from test_processes import ALWAYS, PLAIN, check_same, two_cores
from test_resume import CHECKPOINTS, killed, outcome

from pipeline.errors import Impossible, UserError
from pipeline.machine.capability import check_count
from pipeline.machine.device import Device, Place
from pipeline.machine.launched import Launched, alone, check_launched, launched
from pipeline.runs.json_files import read_json

PORT = "29611"
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a"}
TORCHRUN |= {"MASTER_PORT": PORT, "TORCHELASTIC_RUN_ID": "none"}
SRUN = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "1", "SLURM_NODEID": "2"}
SRUN |= {"SLURM_STEP_TASKS_PER_NODE": "1,2(x2),1"}
LONG = (
    *("dataset=digits", "model=mnist_cnn", "tracking=none", "training.batch_size=33", "schedule=cosine"),
    *("training.validate_every=37", "training.log_every_n_steps=1", "training.checkpoint.every=5"),
    *("loader.steps_per_execution=7", "training.steps=200", "device.processes=2", "output_dir=runs"),
)

TEXT = (
    *("stage=transformer", "dataset=text", "dataset.path=text.txt", "dataset.tokens=bytes", "dataset.context=8"),
    *("model.layers=1", "training.steps=5", "schedule.warm_up=2", "tracking=none", "device.processes=2"),
)
OWN = "from pipeline.models.mlp import Mlp\nfrom pipeline.spec import spec\n\n\n@spec\nclass Mine(Mlp):"


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        (TORCHRUN, Launched(3, 4, 1, 2, "torchrun")),
        (SRUN, Launched(5, 6, 1, 2, "srun")),
        ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, None),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"RANK": "0", "WORLD_SIZE": "2"}, None),  # of something else: nobody says where to meet
        ({}, None),
    ],
)
def test_who_is_who_is_what_the_launcher_says(variables: dict[str, str], found: Launched | None) -> None:
    assert launched(4, variables) == found


def test_one_process_that_srun_runs_several_times_is_no_group() -> None:
    assert launched(1, SRUN) is None


def test_what_would_not_train_together_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, "dataset=digits", **TORCHRUN)
    assert said == "device.processes=1: torchrun has started 4 processes for one training; use device.processes=4"


@pytest.mark.wide
def test_a_grid_is_refused_by_each_of_several_processes(tmp_path: Path) -> None:
    said = refused(tmp_path, "dataset=digits", "-m", "seed=0,1", **TORCHRUN)
    assert said.startswith("-m: torchrun has started 4 processes, and each would do all of it; start it alone")


def test_what_a_launcher_has_started_must_suit() -> None:
    four, cpu = Launched(0, 4, 0, 4096, "torchrun"), Place("cpu")
    with pytest.raises(Impossible, match=r"torchrun has started 4 processes, but backend=jax trains in one; start it"):
        check_launched(four, Device(processes=4), "jax", distributes=False)
    with pytest.raises(Impossible, match=r"device.processes=2: torchrun has started 4 .* use device.processes=4"):
        check_launched(four, Device(processes=2), "torch", distributes=True)
    with pytest.raises(Impossible, match=r"device.processes=4, 4096 of them on this machine, on cpu: more than the"):
        check_count(Device(processes=4), cpu, 0, four)
    with pytest.raises(UserError, match=r"RANK=one in the environment: not a whole number"):
        launched(4, {**TORCHRUN, "RANK": "one"})


def test_a_grid_that_srun_starts_several_times_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, "dataset=digits", "-m", "seed=0,1", "device.processes=2", **SRUN)
    assert said.startswith("-m: srun has started 6 processes, and each would do all of it; start it alone")


def test_a_launched_process_without_a_place_on_its_machine_is_refused() -> None:
    with pytest.raises(UserError, match=r"^WORLD_SIZE=4 is in the environment without LOCAL_RANK: which process"):
        launched(4, {name: value for name, value in TORCHRUN.items() if name != "LOCAL_RANK"})


def test_what_a_process_starts_alone_is_of_no_group() -> None:
    assert launched(4, alone(TORCHRUN | SRUN)) is None
    assert alone({"HOME": "a"}) == {"HOME": "a"}


def pair(folders: Sequence[Path], *words: str, **known: str) -> list[tuple[int, str]]:
    """How two processes end on this machine, started as torchrun does, and what each says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command, log = [sys.executable, "-m", "pipeline", *words], subprocess.PIPE
        started.append(
            subprocess.Popen(
                command,
                cwd=folder,
                env=environment(**variables, **known),
                stdout=subprocess.DEVNULL,
                stderr=log,
                text=True,
            )
        )
    return ended(*started)


@two_cores
@pytest.mark.wide
def test_the_others_learn_why_the_first_trains_nothing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_files(tmp_path / name, {"text.txt": "ab"})
    (first, said), (second, other) = pair((tmp_path / "a", tmp_path / "b"), *TEXT)
    assert first and "has 2 tokens" in said, said
    assert second == 1 and "process 1: nothing to train, because process 0 ended" in other and "has 2 tokens" in other


@two_cores
@pytest.mark.wide
def test_a_run_of_one_process_does_not_go_on_in_two(tmp_path: Path) -> None:
    assert killed(tmp_path, (*LONG[:-2], "output_dir=runs"), 0.1) == -signal.SIGKILL
    (first, said), (second, other) = pair((tmp_path, tmp_path / "b"), "resume=latest")
    assert first and "the launcher that set WORLD_SIZE has started 2 processes" in said
    assert second == 1 and "nothing to train, because process 0 ended" in other


@two_cores
@pytest.mark.wide
def test_other_code_on_another_machine_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        code = f"{OWN}\n    def of_{name}(self) -> None: ...\n"
        write_files(
            tmp_path / name, {"mine.py": code, "conf/model/mine.yaml": "defaults: [mlp]\n_target_: mine.Mine\n"}
        )
    words = ("--config-dir", "conf", "dataset=digits", "model=mine", "tracking=none", "training.steps=3")
    known = {"PIPELINE_MODULES": "mine", "PYTHONPATH": "."}
    (_, said), (status_of, other) = pair((tmp_path / "a", tmp_path / "b"), *words, "device.processes=2", **known)
    assert status_of == 1 and "its code differs from that of process 0" in other
    assert "process 1 of 2 of the training" in said and "its code differs from that of process 0" in said


@two_cores
@pytest.mark.wide
def test_a_run_that_several_have_trained_is_repeated_and_measured_by_one(tmp_path: Path) -> None:
    words = ("dataset=digits", "tracking=none", "training.steps=3", "device.processes=2", "training.batch_size=64")
    for status_of, said in pair((tmp_path, tmp_path / "b"), *words):
        assert status_of == 0, said
    (run,) = runs(tmp_path)
    account = read_json(run / "receipt.json")["processes"]
    assert [one["products_on"] for one in account["each"]] == [["cpu"], ["cpu"]]
    assert all(one["host"] == os.uname().nodename and one["versions"]["torch"] for one in account["each"])
    for stage in ("rerun", "evaluate"):
        for status_of, said in pair((tmp_path, tmp_path), f"stage={stage}", "run=latest"):
            assert status_of == 2 and "has started 2 processes, and each would do all of it" in said
    assert runs(tmp_path) == [run]


@dataclass
class Machine:
    """A network namespace, its address, and the folder in which it works."""

    namespace: str
    address: str
    folder: Path

    def start(
        self, rank: int, first: Machine, words: Sequence[str], command: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start a rank of a training by two machines, the first of which is where they meet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": first.address, "MASTER_PORT": PORT}
        variables |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *(command or (sys.executable, "-m")), "pipeline", *words],
            cwd=self.folder,
            env=environment(**({} if command else variables)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=600)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two hosts with a cable between them, and nothing else; skipped where `ip netns` is not permitted."""
    if shutil.which("ip") is None:
        pytest.skip("needs ip (iproute2)")
    two = tuple(
        Machine(f"pipeline-{os.getpid()}-{name}", f"10.213.7.{number}", tmp_path / name)
        for number, name in enumerate("ab", start=1)
    )
    made: list[str] = []
    try:
        try:
            for one in two:
                ip("netns", "add", one.namespace)
                made.append(one.namespace)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"`ip netns add` is not permitted: {error.stderr.decode().strip()}")
        first, second = two
        ip("link", "add", "cable", "netns", first.namespace, "type", "veth", "peer", "cable", "netns", second.namespace)
        for one in two:
            ip("-n", one.namespace, "address", "add", f"{one.address}/24", "dev", "cable")
            for link in ("cable", "lo"):
                ip("-n", one.namespace, "link", "set", link, "up")
        yield first, second
    finally:
        for name in made:
            ip("netns", "delete", name)


def ended(*processes: subprocess.Popen[str]) -> list[tuple[int, str]]:
    """How each ends, and what it says."""
    try:
        return [(process.wait(timeout=600), process.communicate()[1]) for process in processes]
    finally:
        for process in processes:
            process.kill()


def both(machines: tuple[Machine, Machine], *words: str) -> Path:
    """The run of a training by both machines, which must succeed. Only the first has it."""
    first, second = machines
    for status_of, said in ended(*(one.start(rank, first, words) for rank, one in enumerate(machines))):
        assert status_of == 0, said
    assert not list(second.folder.iterdir())
    (run,) = runs(first.folder)
    return run


@pytest.mark.wide
def test_two_machines_train_as_one_process(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    words = (*ALWAYS, *PLAIN)
    run = both(machines, *words, "device.processes=2")
    check_same(done(tmp_path, *words), run)
    assert read_json(run / "receipt.json")["processes"]["count"] == 2


@pytest.mark.wide
def test_torchrun_starts_the_processes_of_two_machines(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    words = (*ALWAYS, *PLAIN, "device.processes=2")
    first, second = machines
    where = (f"--master-addr={first.address}", f"--master-port={PORT}", "--nnodes=2", "--nproc-per-node=1")
    torchrun = (sys.executable, "-m", "torch.distributed.run", *where)
    processes = [
        one.start(rank, first, words, (*torchrun, f"--node-rank={rank}", "-m")) for rank, one in enumerate(machines)
    ]
    for status_of, said in ended(*processes):
        assert status_of == 0, said
    (run,) = runs(first.folder)
    assert not runs(second.folder)
    assert read_json(run / "receipt.json")["processes"]["count"] == 2
    check_same(done(tmp_path, *ALWAYS, *PLAIN), run)


@pytest.mark.wide
def test_a_machine_that_dies_ends_the_training_with_a_checkpoint(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    first, second = machines
    leads, follows = (one.start(rank, first, LONG) for rank, one in enumerate(machines))
    while leads.poll() is None and not list(first.folder.glob(CHECKPOINTS)):
        time.sleep(0.01)
    follows.send_signal(signal.SIGKILL)
    (_, said), _ = ended(leads, follows)
    (run,) = runs(first.folder)
    assert (leads.returncode, status(run).state) == (1, "FAILED"), said
    assert f"process 1 of 2 of the training (on {os.uname().nodename}, {second.address}) is gone, after step" in said
    assert "resumes from there" in said and "Traceback" not in said
    both(machines, "resume=latest")
    whole = tmp_path / "whole"
    whole.mkdir()
    done(whole, *LONG)
    assert outcome(first.folder) == outcome(whole)


@pytest.mark.wide
def test_a_machine_with_other_data_says_so_on_the_first(machines: tuple[Machine, Machine]) -> None:
    first, second = machines
    for one, text in zip(machines, ("aab" * 900, "aba" * 900), strict=True):
        one.folder.mkdir()
        (one.folder / "text.txt").write_text(text)
    (lead, said), (follower, _) = ended(*(one.start(rank, first, TEXT) for rank, one in enumerate(machines)))
    assert (lead, follower) == (1, 1), said
    assert f"{second.address}) ended: its data differ from those of process 0 (another sha256)" in said
