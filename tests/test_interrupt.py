"""Runs that end before their time: by a signal, or for lack of memory. Each says so, and its journal is whole."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import COMMAND, DIGITS, TORCH_THEN_WIDE, environment, message, pipeline, refused, runs, status

from pipeline.contracts import Model
from pipeline.models import largest_setting
from pipeline.models.gpt import Gpt
from pipeline.models.linear import Linear
from pipeline.models.mlp import Mlp
from pipeline.models.mnist_cnn import MnistCnn
from pipeline.runs.checkpoint import newest_step
from pipeline.runs.records import read_config, read_metrics
from pipeline.spec import spec

ENDLESS = ("dataset=digits", "training.epochs=1000000", "tracking=none")
LONG = 600.0

# A dataset that says when it is being loaded, and that takes its time to stop.
SLOW = """
import time
from pathlib import Path
from typing import ClassVar
from pipeline.contracts import Dataset
from pipeline.spec import spec
from pipeline.tasks.classification import Classification

@spec
class Slow(Dataset):
    task: ClassVar = Classification
    validation: int = 0

    def load(self, root, seed):
        try:
            Path("loading").touch()
            time.sleep(100)
        finally:
            Path("stopping").touch()
            time.sleep(100)
"""


def begin(folder: Path, *arguments: str, **changes: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


def trained_for(folder: Path, records: int) -> Callable[[], bool]:
    """Whether a run of `folder` has so many records in its journal."""
    return lambda: any(len(list(read_metrics(run))) >= records for run in runs(folder))


def check_journal(run: Path) -> None:
    """Every line is whole, and no step is missing up to the last."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert all(line.endswith("\n") and json.loads(line) for line in lines)
    records = list(read_metrics(run))
    assert len(records) == len(lines)
    steps = [record.step for record in records if "train/loss" in record.metrics]
    assert steps == list(range(10, 10 * len(steps) + 1, 10))
    assert json.loads((run / "receipt.json").read_text())["seed"] == 0
    assert read_config(run)["training"]["epochs"] == 1000000


@pytest.mark.parametrize(
    ("backend", "number", "exit_status"),
    [
        ("torch", signal.SIGINT, 130),
        pytest.param("tensorflow", signal.SIGINT, 130, marks=pytest.mark.wide),
        pytest.param("jax", signal.SIGINT, 130, marks=pytest.mark.wide),
        pytest.param("jax", signal.SIGTERM, 143, marks=pytest.mark.wide),
        pytest.param("torch", signal.SIGHUP, 129, marks=pytest.mark.wide),
    ],
)
def test_a_signal_in_training(backend: str, number: signal.Signals, exit_status: int, tmp_path: Path) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as nohup has it, and so it is in what is started")
    with begin(tmp_path, *ENDLESS, f"backend={backend}", "training.batch_size=32") as process:
        wait_until(trained_for(tmp_path, 30), process)
        process.send_signal(number)
        out, err = process.communicate(timeout=LONG)
    assert (process.returncode, out) == (exit_status, ""), err
    assert err.splitlines()[-1] == f"stopped by {number.name}"
    assert "Traceback" not in err
    (run,) = runs(tmp_path)
    assert (status(run).state, status(run).error) == ("KILLED", f"stopped by {number.name}")
    check_journal(run)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_a_signal_while_deepxde_trains(backend: str, tmp_path: Path) -> None:
    words = ("stage=pinn", "solver.steps=10000000", "solver.every=10", "tracking=none", f"backend={backend}")
    with begin(tmp_path, *words) as process:
        wait_until(trained_for(tmp_path, 20), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LONG)
    assert (process.returncode, out) == (130, ""), err
    assert err.splitlines()[-1] == "stopped by SIGINT"
    (run,) = runs(tmp_path)
    assert (status(run).state, status(run).error) == ("KILLED", "stopped by SIGINT")
    steps = [record.step for record in read_metrics(run)]
    assert steps == list(range(0, 10 * len(steps), 10))


@pytest.mark.wide
def test_mlflow_learns_of_a_killed_run(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    with begin(tmp_path, *ENDLESS[:2]) as process:
        wait_until(trained_for(tmp_path, 1), process)
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 130
    (run,) = runs(tmp_path)
    end = time.monotonic() + LONG
    while not json.loads((run / "mlflow.json").read_text())["synced"]:
        assert time.monotonic() < end
        time.sleep(0.1)
    found = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").get_run(
        json.loads((run / "mlflow.json").read_text())["run_id"]
    )
    assert found.info.status == "KILLED"
    assert found.data.tags["error"] == "stopped by SIGINT"
    assert "train/loss" in found.data.metrics


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """The environment in which dataset._target_=slow.Slow may be named."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/slow.py").write_text(SLOW)
    (tmp_path / "conf_slow/dataset").mkdir(parents=True)
    (tmp_path / "conf_slow/dataset/slow.yaml").write_text("_target_: slow.Slow\nvalidation: 0\n")
    return {"PIPELINE_MODULES": "slow", "PYTHONPATH": str(tmp_path / "modules")}


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(slow: dict[str, str], second: signal.Signals, tmp_path: Path) -> None:
    arguments = ("--config-dir", "conf_slow", "dataset=slow", "tracking=none")
    with begin(tmp_path, *arguments, **slow) as process:
        wait_until((tmp_path / "loading").exists, process)
        process.send_signal(signal.SIGINT)
        wait_until((tmp_path / "stopping").exists, process)
        process.send_signal(second)
        assert process.wait(LONG) == -second
    assert not runs(tmp_path)  # a user's own data are loaded before a run begins


@pytest.mark.wide
def test_a_cell_that_does_not_stop_in_time_is_not_out_of_memory(slow: dict[str, str], tmp_path: Path) -> None:
    """The grid kills it after 30 s, which was shown as what the system does when memory runs out."""
    slow["PYTHONPATH"] += f":{environment().get('PYTHONPATH', '')}"
    with begin(
        tmp_path, "-m", "seed=0,1", "--config-dir", "conf_slow", "dataset=slow", "tracking=none", **slow
    ) as process:
        wait_until((tmp_path / "loading").exists, process)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=LONG)
    assert process.returncode == 130, err
    assert "did not stop within 30 s, so it was killed" in err and "memory" not in err


def test_ctrl_c_stops_a_grid_and_its_cell(tmp_path: Path) -> None:
    with begin(tmp_path, "-m", *ENDLESS, "model=mlp,linear") as process:
        wait_until(trained_for(tmp_path, 5), process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=LONG)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert err.count("stopped by SIGINT") == 1
    assert "killed  model=mlp  its grid was interrupted (SIGINT)" in err  # and not the SIGTERM that it sends its cells
    assert "[2/2]" not in err
    grid, run = runs(tmp_path)
    assert (status(grid).state, status(run).state) == ("KILLED", "KILLED")
    assert (status(grid).error, status(run).error) == ("stopped by SIGINT", "its grid was interrupted (SIGINT)")
    check_journal(run)


# A worker's import of torch takes until it is interrupted, however fast or slow the machine is.
LONG_IMPORT = """
import sys, time
from pathlib import Path

class Wait:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and sys.argv[0].endswith("worker.py"):
            Path("importing").touch()
            while not Path("go on").exists():
                time.sleep(0.05)

sys.meta_path.insert(0, Wait())
"""


def test_ctrl_c_while_a_grid_imports(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LONG_IMPORT)
    with begin(tmp_path, "-m", *ENDLESS, "model=mlp,linear", PYTHONPATH=str(tmp_path)) as process:
        wait_until((tmp_path / "importing").exists, process)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=LONG)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "stopped by SIGINT"
    assert "Traceback" not in err
    assert "memory runs out" not in err
    assert "killed  model=mlp  its worker: stopped before its cells began" in err
    assert "0 done · 0 failed · 1 killed · 0 skipped · 0 running · 1 waiting" in err
    assert "; the same command resumes" in err
    (grid, *_) = runs(tmp_path)
    assert status(grid).state == "KILLED"


@pytest.mark.wide
def test_a_grid_that_was_suspended_stops_a_cell_that_began_meanwhile(tmp_path: Path) -> None:
    """Ctrl-Z reaches the grid alone: its worker goes on, and starts the cell that it was asked for."""
    (tmp_path / "sitecustomize.py").write_text(LONG_IMPORT)
    with begin(tmp_path, "-m", *ENDLESS, "model=mlp,linear", PYTHONPATH=str(tmp_path)) as process:
        wait_until((tmp_path / "importing").exists, process)
        process.send_signal(signal.SIGSTOP)
        (tmp_path / "go on").touch()
        wait_until(trained_for(tmp_path, 5), process)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=LONG)
    assert process.returncode == 143, err
    assert "killed  model=mlp  its grid was interrupted (SIGTERM)" in err
    _, run = runs(tmp_path)
    assert newest_step(run) is not None
    check_journal(run)


STOP_AT_AN_IMPORT = """
import os, signal, sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["STOP_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Stop())
"""


@pytest.mark.parametrize(
    ("module", "exit_status", "result"),
    [
        ("pipeline.cli.linux", -signal.SIGINT, ""),
        ("pipeline.cli.exits", -signal.SIGINT, ""),
        ("pipeline.command_line", 130, "stopped by SIGINT\n"),
        ("pydantic", 130, "stopped by SIGINT\n"),
    ],
)
def test_ctrl_c_at_once(module: str, exit_status: int, result: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STOP_AT_AN_IMPORT)
    with begin(tmp_path, "model=nope", PYTHONPATH=str(tmp_path), STOP_AT=module) as process:
        out, err = process.communicate(timeout=LONG)
    assert (process.returncode, out, err) == (exit_status, "", result)


ENDS = """
import os, signal, sys
from pipeline import __main__ as command

def stopped():
    os.kill(os.getpid(), signal.SIGHUP)

def stopped_twice_at_once():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])

def stopped_twice_by_one_sender():  # as timeout(1) does: the process, and then its group
    from pipeline.cli import exits
    exits.time.sleep = lambda _: os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)

def stopped_again_later():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)

def stopped_in_a_finalizer():
    class Dying:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
    Dying()
    from pipeline.cli.exits import raise_if_stopped
    raise_if_stopped()

def stopped_and_undone_badly():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        raise AttributeError("half undone")

def another_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    os.write(writing, b"x")

def nohup():
    os.kill(os.getpid(), signal.SIGHUP)
    return 7

# as a shell starts it, however these tests were started themselves
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
command.compose_and_run = globals()[sys.argv[1]]
command.main()
"""


@pytest.mark.parametrize(
    ("how", "exit_status", "last"),
    [
        ("stopped", 129, "stopped by SIGHUP"),
        ("stopped_twice_at_once", 130, "stopped by SIGINT"),
        ("stopped_twice_by_one_sender", 143, "stopped by SIGTERM"),
        ("stopped_again_later", -signal.SIGTERM, ""),
        ("stopped_in_a_finalizer", 143, "stopped by SIGTERM"),
        ("stopped_and_undone_badly", 143, "stopped by SIGTERM"),
        ("another_pipe", 1, "BrokenPipeError: [Errno 32] Broken pipe"),
        ("nohup", 7, ""),
    ],
)
def test_how_a_command_ends(how: str, exit_status: int, last: str) -> None:
    result = subprocess.run([sys.executable, "-c", ENDS, how], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.rpartition("\n")[0].rpartition("\n")[2]) == (exit_status, last), (
        result.stderr
    )
    assert ("Traceback" in result.stderr) == (how == "another_pipe")


STUCK = """
import os, signal, sys, time
from pipeline.cli.exits import stop_held_back, stop_on_signals
from pipeline.errors import Stopped

stop_on_signals(grace=0.5)
with stop_held_back():
    for _ in range(2):  # of which the second is ignored
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(100)
"""

PUT_BACK = """
import os, signal
from pipeline.cli.exits import stop_on_signals
from pipeline.errors import Stopped

stop_on_signals()
ours = signal.getsignal(signal.SIGTERM)
try:
    os.kill(os.getpid(), signal.SIGTERM)
except Stopped:
    signal.signal(signal.SIGTERM, ours)
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(("program", "by"), [(STUCK, signal.SIGALRM), (PUT_BACK, signal.SIGTERM)])
def test_what_does_not_stop_is_ended(program: str, by: signal.Signals) -> None:
    """A cell whose sweep is gone ran on after its first signal; a second one raised again where a library had put the
    handler back."""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == -by, result.stderr


BROKEN = """
import os
from typing import ClassVar
from pipeline.contracts import Dataset
from pipeline.spec import spec
from pipeline.tasks.classification import Classification

@spec
class Broken(Dataset):
    task: ClassVar = Classification
    validation: int = 0

    def load(self, root, seed):
        reading, writing = os.pipe()
        os.close(reading)
        os.write(writing, b"x")
"""


def test_a_pipe_that_breaks_is_no_reader_that_has_left(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "mine/dataset").mkdir(parents=True)
    (tmp_path / "mine/dataset/broken.yaml").write_text("_target_: broken.Broken\n")
    words = ("--config-dir", "mine", "dataset=broken", "tracking=none")
    with begin(tmp_path, *words, PIPELINE_MODULES="broken", PYTHONPATH=str(tmp_path)) as process:
        _, err = process.communicate(timeout=LONG)
    assert process.returncode == 2
    said = "error: dataset=broken: load raises BrokenPipeError: [Errno 32] Broken pipe, in load ("
    assert err.splitlines()[-1].startswith(said)
    assert not runs(tmp_path)


def test_a_terminal_that_is_gone_takes_what_is_printed() -> None:
    """A real terminal whose other end is closed answers EIO."""
    code = """
import os, sys
from pipeline.cli.streams import outlive_readers
outlive_readers()
sys.stdin.readline()
print("one", flush=True)
print("two", file=sys.stderr, flush=True)
sys.exit(7)
"""
    ours, theirs = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.close(ours)
    process.communicate(b"go\n", timeout=LONG)
    assert process.returncode == 7


# Memory


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_model_too_large_is_refused_before_the_run_is_made(backend: str, tmp_path: Path) -> None:
    """It is not built for that either: 84 GiB of weights."""
    said = refused(tmp_path, "dataset=digits", f"backend={backend}", "model.units=[300000000]")
    parameters = 300_000_000 * (64 + 1 + 10) + 10
    gib = parameters * 4 * 4 / 2**30  # weights, gradients and Adam's two moments in float32
    assert said.startswith(
        f"out of memory: {parameters:,} parameters with gradients and optimizer state need {gib:.1f} GiB; cpu has "
    )
    found = re.search(
        r" has ([\d.]+) GiB free, room for ([\d,]+) parameters; "
        r"make model.units=\[300000000\] smaller, or use a smaller precision$",
        said,
    )
    assert found is not None, said
    assert int(found[2].replace(",", "")) == pytest.approx(float(found[1]) * 2**30 / 16, rel=0.05)


@spec
class Derives(Mlp):
    """It has a number beside its settings."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_bytes", 10**9)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (Gpt(layers=2, heads=4, width=100_000, dropout=0.5), "model.width=100000"),
        (Mlp(units=(64, 5000)), "model.units=[64, 5000]"),
        (MnistCnn(filters=(32, 64), units=128), "model.units=128"),
        (Linear(), "the model"),
        (Derives(), "model.units=[128]"),
    ],
)
def test_the_largest_setting_of_a_model_is_named(model: Model, named: str) -> None:
    assert largest_setting(model) == named


@pytest.mark.wide
def test_a_model_too_large_of_a_cell_fails_before_it_is_built(tmp_path: Path) -> None:
    """A cell keeps its run, by which the same grid, given again, knows that it failed."""
    result = pipeline(tmp_path, "-m", "dataset=digits", "model.units=[300000000]", "training.epochs=1")
    assert result.returncode == 1
    assert "failed  the one cell  out of memory: 22,500,000,010 parameters" in result.stderr


@pytest.mark.parametrize(
    ("backend", "width", "gib", "asked"),
    [
        ("torch", 20000, 3, "Unable to allocate"),
        pytest.param("tensorflow", 30000, 5, "OOM when allocating", marks=pytest.mark.wide),
    ],
)
@pytest.mark.wide
def test_an_allocation_that_fails(backend: str, width: int, gib: int, asked: str, tmp_path: Path) -> None:
    """A matrix of 1.5 or 3.4 GiB, beside what the framework maps for itself."""
    limit = gib * 2**30

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    result = subprocess.run(
        [*COMMAND, *DIGITS, f"backend={backend}", "optimizer=sgd", f"model.units=[{width},{width}]", "tracking=none"],
        cwd=tmp_path,
        env=environment(),
        preexec_fn=bounded,  # ulimit -v, without a shell
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    said = message(result)
    assert said.startswith("out of memory: ")
    assert "GiB free" in said
    if "parameters with gradients" not in said:  # on a machine with too little memory to begin with
        assert f"this process may use {gib}.0 GiB in all (ulimit -v); asked for: " in said
        assert asked in said
    (run,) = runs(tmp_path)
    assert (status(run).state, status(run).error) == ("FAILED", said)


def test_a_stop_that_a_callback_swallowed_is_raised_again() -> None:
    """What a garbage collector's callback raises is ignored, also our stop; the next step of a loop has it again."""
    code = (
        "import gc, os, signal\n"
        "from pipeline.cli import exits\n"
        "from pipeline.errors import Stopped\n"
        "exits.stop_on_signals()\n"
        "exits.raise_if_stopped()\n"
        "gc.callbacks.append(lambda phase, _: phase == 'start' and os.kill(os.getpid(), signal.SIGTERM))\n"
        "gc.collect(); gc.callbacks.clear()\n"
        "try:\n"
        "    exits.raise_if_stopped()\n"
        "except Stopped as stop:\n"
        "    print(stop.exit_status)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == "143\n", result


HUNDREDS_OF_STOPS = """
import random, signal, sys, threading
from pathlib import Path
from pipeline.cli import exits
from pipeline.errors import Stopped
from pipeline.profilers.event_files import EventFiles

for number in range(1000):
    events, step = EventFiles(Path(str(number))), 0
    exits._asked = None  # as a new process begins: a second stop of the same would end it at once
    exits.stop_on_signals()
    stop = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGALRM, lambda _, frame: stop(signal.SIGTERM, frame))
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.003))
        while True:
            events.scalars({"loss": 1.0}, step)
            step += 1
    except Stopped:
        pass
    closing = threading.Thread(target=events.close, daemon=True)
    closing.start()
    closing.join(30)
    if closing.is_alive():
        sys.exit(f"the events of stop {number} do not close")
print("stopped and closed")
"""


@pytest.mark.wide
def test_a_stop_leaves_no_lock_locked(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", HUNDREDS_OF_STOPS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.stdout == "stopped and closed\n", result.stderr
