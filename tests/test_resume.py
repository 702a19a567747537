"""A training that is killed goes on from its checkpoint, and ends as the one that nobody killed, to the bit."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command import (
    TORCH_THEN_WIDE,
    begun,
    environment,
    pipeline,
    refused,
    runs,
    status,
    with_small_disk,
    write_files,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.experiment.training import Checkpoints
from pipeline.runs import resume
from pipeline.runs.checkpoint import Writer, newest, newest_step
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_config, read_metrics

TIMED = "per_s"
TIMED_ROWS = ("wall time", "training rate", "utilization", "compilation", "peak memory")  # of the table at the end
CHECKPOINTS = "runs/*/checkpoints/step-*"
GOES_ON = ("resume=latest",)
# Dropout, and normalised and augmented batches from a loader; gradients of a step that has begun, an average, the best
# weights so far.
EVERYTHING = (
    *("dataset=digits", "model=mnist_cnn", "loader=threads", "precision=mixed_fp16", "training.batch_size=16"),
    *("training.accumulate=3", "training.ema=0.95", "training.weights=best", "schedule=cosine"),
    *("training.steps=40", "training.validate_every=13", "training.log_every_n_steps=1"),  # an epoch has 27
    *("dataset.normalise=true", "augmentation=images", "augmentation.crop=0.8", "augmentation.cutout=2"),
    *("training.checkpoint.every=5", "loader.steps_per_execution=7"),
)

LANGUAGE = (
    *("stage=transformer", "dataset=python_docs", "dataset.context=32", "model.layers=2", "model.heads=2"),
    *("model.width=16", "model.dropout=0.1", "model.positions=rotary", "training.steps=150", "schedule.warm_up=5"),
    *("training.validate_every=37", "training.log_every_n_steps=1", "training.checkpoint.every=5"),
    *("stage.attention=false", "stage.baselines=false", "loader.steps_per_execution=7"),
)

OF_150_STEPS = (
    *("training.steps=150", "training.validate_every=37", "training.log_every_n_steps=1", "training.batch_size=16"),
    *("training.checkpoint.every=5", "loader.steps_per_execution=7"),
)
SEQUENCES = {
    "pairs": (
        *("stage=seq2seq", "dataset=reversals", "dataset.train=400", "dataset.test=50", "dataset.longest=8"),
        *("model.layers=1", "model.heads=2", "model.width=16", "model.dropout=0.1", "training.accumulate=2"),
        *("schedule.warm_up=5", *OF_150_STEPS),
    ),
    "gru": (
        "stage=train",
        "dataset=recall",
        "dataset.distance=9",
        "dataset.train=256",
        "model=gru",
        "model.width=8",
        *OF_150_STEPS,
    ),
    "conv1d": (
        "stage=train",
        "dataset=recall",
        "dataset.distance=9",
        "dataset.train=256",
        "model=conv1d",
        *OF_150_STEPS,
    ),
}
COMPARED = (
    *("stage=long_range", "stage.models.gru=null", "stage.models.attention=null", "stage.distances=[9]"),
    *("stage.lengths=[4]", "stage.seeds=1", "dataset.train=256", "tracking=none"),
)


def written(checkpoint: Path) -> float:
    """When; 0 of one that has been replaced meanwhile."""
    try:
        return checkpoint.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def killed(folder: Path, words: tuple[str, ...], after: float, number: int = signal.SIGKILL, **changes: str) -> int:
    """Start a command, and send it a signal so many seconds after its first checkpoint or its resumption.

    On a busy machine a new training may have ended by then: it is given again, with a signal at once.
    """
    ended = _killed_once(folder, words, after, number, **changes)
    for _ in range(9):
        if ended != 0 or words == GOES_ON:
            break
        shutil.rmtree(folder / "runs")
        ended = _killed_once(folder, words, 0.0, number, **changes)
    return ended


def _killed_once(folder: Path, words: tuple[str, ...], after: float, number: int, **changes: str) -> int:
    folder.mkdir(exist_ok=True)
    started = time.time()
    process = begun(folder, *words, **changes)
    while process.poll() is None and not any(written(path) > started for path in folder.glob(CHECKPOINTS)):
        time.sleep(0.01)
    time.sleep(after)
    process.send_signal(number)
    return process.wait(timeout=600)


def result_of(run: Path) -> dict[str, Any]:
    """All of result.json but for times, memory and rates."""
    result = read_json(run / "result.json")
    of_machine = {name for name, one in result["declared"].items() if one["kind"] in ("time", "memory")}
    for part in ("scalars", "last_epoch", "declared"):  # of a part of its training no run gives a peak of memory
        result[part] = {name: value for name, value in result[part].items() if name not in of_machine}
    result["table"] = [row for row in result["table"] if row[0] not in TIMED_ROWS]
    return result


def outcome(folder: Path) -> tuple[str, list[tuple[int, dict[str, float]]], dict[str, Any], dict[str, Any]]:
    """The weights' digest, every record and the result but for their times, and what was observed."""
    (run,) = runs(folder)
    receipt = read_json(run / "receipt.json")
    records = [
        (record.step, {name: value for name, value in record.metrics.items() if TIMED not in name})
        for record in read_metrics(run)
    ]
    return receipt["weights_sha256"], records, receipt["precision"]["observed"], result_of(run)


def resumed(folder: Path) -> Path:
    result = pipeline(folder, "resume=latest")
    assert result.returncode == 0, result.stderr
    (run,) = runs(folder)
    return run


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_killed_training_ends_as_one_that_nobody_killed(tmp_path: Path, backend: str) -> None:
    check_ends_as_whole(tmp_path, (*EVERYTHING, f"backend={backend}", "tracking=none"))


@pytest.mark.wide
@pytest.mark.timeout(3000)
def test_a_compiled_training_that_goes_on_does_not_take_its_compilers_import_off_its_time(tmp_path: Path) -> None:
    """Batches that accumulate, of which an epoch's last is smaller and not compiled."""
    words = (
        *("dataset=digits", "model=linear", "backend.compile=true", "training.steps=100", "training.batch_size=30"),
        *("training.accumulate=2", "training.validate_every=15", "training.checkpoint.every=5", "tracking=none"),
        *("training.checkpoint.every_s=0", "loader.steps_per_execution=1"),
    )
    assert killed(tmp_path, words, 0.0) == -signal.SIGKILL
    run = resumed(tmp_path)
    assert read_json(run / "receipt.json")["resumed"][0]["step"] < 100
    rates = [one.metrics["epoch/images_per_s"] for one in read_metrics(run) if "epoch/images_per_s" in one.metrics]
    assert len(rates) == 7 and min(rates) > 0


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_a_killed_language_model_ends_as_one_that_nobody_killed(tmp_path: Path, backend: str) -> None:
    check_ends_as_whole(tmp_path, (*LANGUAGE, f"backend={backend}", "tracking=none"))


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
@pytest.mark.parametrize("kind", SEQUENCES)
def test_a_killed_model_of_sequences_ends_as_one_that_nobody_killed(tmp_path: Path, kind: str, backend: str) -> None:
    check_ends_as_whole(tmp_path, (*SEQUENCES[kind], f"backend={backend}", "tracking=none"))


@pytest.mark.wide
def test_a_training_of_a_comparison_that_was_killed_goes_on(tmp_path: Path) -> None:
    """The comparison itself is given again: its trainings are timed against each other."""
    words = (*COMPARED, *(word for word in OF_150_STEPS if "batch_size" not in word), "training.batch_size=8")
    (tmp_path / "whole").mkdir()
    assert pipeline(tmp_path / "whole", *words).returncode == 0
    assert killed(tmp_path / "killed", words, 0.1) == -9
    result = pipeline(tmp_path / "killed", "resume=latest")
    assert result.returncode == 0, result.stderr
    whole, again = (
        read_json(run / "receipt.json")
        for folder in ("whole", "killed")
        for run in runs(tmp_path / folder)
        if not (run / "cells").exists() and read_config(run)["dataset"]["distance"] == 9
    )
    assert again["weights_sha256"] == whole["weights_sha256"]
    assert again["resumed"]
    comparison = next(run for run in runs(tmp_path / "killed") if (run / "cells").exists())
    said = refused(tmp_path / "killed", f"resume={comparison.name}")
    assert said.endswith(f"{comparison.name} has no checkpoint; run it again")


def check_ends_as_whole(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Kill and stop a training, and hold what goes on against the one that nobody killed."""
    (tmp_path / "whole").mkdir()
    assert pipeline(tmp_path / "whole", *words).returncode == 0
    for number, name in ((signal.SIGKILL, "killed"), (signal.SIGTERM, "stopped")):
        assert killed(tmp_path / name, words, random.uniform(0, 0.3), number) in (-9, 143)
        run = resumed(tmp_path / name)
        assert outcome(tmp_path / name) == outcome(tmp_path / "whole")
        receipt = read_json(run / "receipt.json")
        assert [one["step"] for one in receipt["resumed"]] == [receipt["resumed"][0]["step"]]
        assert not (run / "checkpoints").exists()


@pytest.mark.wide
def test_gradients_in_16_bits_of_a_step_that_has_begun_go_on(tmp_path: Path) -> None:
    """They are added up in float32, beside those that torch holds."""
    words = ("precision=bf16", "training.accumulate=7", "training.steps=60", "backend=torch", "tracking=none")
    changed = {word.partition("=")[0] for word in words}
    check_ends_as_whole(tmp_path, (*(word for word in EVERYTHING if word.partition("=")[0] not in changed), *words))


# The real command, which writes every checkpoint that is due, and gets a signal before its validation of one step.
IN_A_VALIDATION = """
import os, sys
from pipeline.backends.shared.keeper import Keeper
from pipeline.backends.shared.progress import Watch

after_block, pause, number, step = Keeper.after_block, Watch.pause, int(sys.argv.pop()), int(sys.argv.pop())
def waited(self, **words):
    self.keeping.writer.wait()
    after_block(self, **words)
    self.keeping.writer.wait()
Keeper.after_block = waited
def paused(self):
    pause(self)
    if self.step == step:
        os.kill(os.getpid(), number)
Watch.pause = paused

from pipeline.__main__ import main
sys.exit(main())
"""


@pytest.mark.wide
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_an_end_before_the_last_validation_loses_no_step(tmp_path: Path, backend: str, number: int) -> None:
    """Also where the last period is shorter than the others: 40 steps, validated every 15."""
    words = (
        *("dataset=digits", "model=linear", "training.epochs=1", "training.steps=40", "training.weights=best"),
        *("training.validate_every=15", "training.checkpoint.every=5", f"backend={backend}", "tracking=none"),
        "precision=mixed_fp16",
    )
    command = [sys.executable, "-c", IN_A_VALIDATION, *words, "40", str(int(number))]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    (run,) = runs(tmp_path)
    said = f"resume={run.name} resumes from there" in ended.stderr
    assert (ended.returncode, said) == ((143, True) if number == signal.SIGTERM else (-9, False))
    assert resumed(tmp_path) == run
    result = read_json(run / "result.json")
    assert "training.epochs=1: training.steps=40 replaces it" in result["notes"]
    found = {"epoch/number", "epoch/images_per_s", "validation/accuracy", "loss_scale/scale"}
    assert result["last_epoch"].keys() >= found
    rate = read_json(run / "receipt.json")["training_rate"]
    assert rate["n"] == (2 if number == signal.SIGTERM else 1)  # of three periods: the first of each process is cold
    listed = pipeline(tmp_path, "stage=runs", "stage.best=validation/accuracy")
    assert listed.returncode == 0, listed.stderr
    again = outcome(tmp_path)
    shutil.rmtree(tmp_path / "runs")
    assert pipeline(tmp_path, *words).returncode == 0
    assert again == outcome(tmp_path)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_a_stop_in_a_validation_loses_no_step(tmp_path: Path, backend: str) -> None:
    """Lightning ends a fit itself on SIGTERM, between two batches of a validation."""
    words = (
        *("dataset=digits", "model=linear", "training.steps=40", "training.validate_every=10", f"backend={backend}"),
        *("training.evaluation_batch_size=8", "tracking=none"),
    )
    command = [sys.executable, "-c", IN_A_VALIDATION, *words, "20", str(int(signal.SIGTERM))]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 143, ended.stderr
    (run,) = runs(tmp_path)
    assert f"stopped at step 20; resume={run.name} resumes from there" in ended.stderr
    assert newest_step(run) == 20


# The real command, which gets a signal after a period's end, when it has just looked whether one had come.
AFTER_A_LOOK = """
import os, signal, sys
from pipeline.backends.shared.keeper import Keeper

after_block = Keeper.after_block
def looked(self, **words):
    after_block(self, **words)
    if self.watch.step == 20 and not self.watch.in_period:
        os.kill(os.getpid(), signal.SIGINT)
Keeper.after_block = looked

from pipeline.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_stop_at_the_end_of_a_period_loses_no_step(tmp_path: Path, backend: str) -> None:
    """It was stopped without a checkpoint, and without a word of one."""
    words = ("dataset=digits", "model=linear", "training.steps=40", "training.validate_every=10", f"backend={backend}")
    command = [sys.executable, "-c", AFTER_A_LOOK, *words, "tracking=none"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 130, ended.stderr
    (run,) = runs(tmp_path)
    step = newest_step(run)
    assert step is not None and step >= 20
    assert f"stopped at step {step}; resume={run.name} resumes from there" in ended.stderr
    assert resumed(tmp_path) == run


# The real command, which gets a signal when its result is written, before its status is.
AT_THE_END = """
import os, signal, sys
from pipeline.runs.journal import Journal

close = Journal._close_metrics
def stopped(self):
    os.kill(os.getpid(), signal.SIGTERM)
    return close(self)
Journal._close_metrics = stopped

from pipeline.__main__ import main
sys.exit(main())
"""


@pytest.mark.wide
def test_a_stop_while_a_run_finishes_leaves_it_finished(tmp_path: Path) -> None:
    """It said RUNNING, and was then one that `ended without a word`."""
    words = ("dataset=digits", "model=linear", "training.steps=40", "training.checkpoint.every=5", "tracking=none")
    command = [sys.executable, "-c", AT_THE_END, *words]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (143, "stopped by SIGTERM"), ended.stderr
    (run,) = runs(tmp_path)
    assert status(run).state == "FINISHED"
    assert not (run / "checkpoints").exists()


@pytest.mark.wide
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_killed_at_twenty_moments(tmp_path: Path, backend: str) -> None:
    """In the middle of writing a checkpoint too, which happens at every block."""
    changed = ("training.checkpoint", "training.steps", "training.validate_every")
    kept = (word for word in EVERYTHING if not word.startswith(changed))
    longer = ("training.steps=120", "training.validate_every=37", "training.checkpoint.every=1")
    words: tuple[str, ...] = (*kept, *longer, f"backend={backend}", "tracking=none")
    (tmp_path / "whole").mkdir()
    assert pipeline(tmp_path / "whole", *words).returncode == 0
    generator, kills = random.Random(7), 0
    command = words
    while kills < 20 and killed(tmp_path / "killed", command, generator.uniform(0, 0.15)) == -9:
        kills, command = kills + 1, GOES_ON
    if kills == 20:
        resumed(tmp_path / "killed")
    assert kills > 3
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.wide
def test_mlflow_has_each_point_once(tmp_path: Path) -> None:
    words = (
        *(
            "dataset=digits",
            "model=linear",
            "training.steps=20000",
            "training.batch_size=8",
        ),  # ten seconds of a fast machine
        *("training.log_every_n_steps=200", "training.validate_every=1000", "training.checkpoint.every=200"),
        *("loader.steps_per_execution=10", "tracking.wait=600"),
    )
    killed(tmp_path, words, 1.0)
    run = resumed(tmp_path)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        (state,) = database.execute("select status from runs").fetchone()
        points = database.execute("select step from metrics where key = 'train/loss'").fetchall()
    assert state == "FINISHED"
    logged = list(range(200, 20001, 200))
    assert sorted(points) == [(step,) for step in logged]
    assert [record.step for record in read_metrics(run) if "train/loss" in record.metrics] == logged


GRID = ("-m", "seed=0,1", "dataset=digits", "model=linear", "training.steps=3000", "training.checkpoint.every=50")


@pytest.mark.wide
def test_a_grid_goes_on_with_the_cell_that_was_killed(tmp_path: Path) -> None:
    words = (*GRID, "loader.steps_per_execution=5", "tracking=none", "sweep.jobs=1")
    killed(tmp_path, words, 0.3, signal.SIGTERM)
    result = pipeline(tmp_path, *words)
    assert result.returncode == 0, result.stderr
    cells = [run for run in runs(tmp_path) if (run / "artifacts/model/weights.npz").exists()]
    again = [read_json(run / "receipt.json").get("resumed") for run in cells]
    assert [bool(one) for one in again] == [True, False]
    assert len(cells) == 2  # the killed one was not run anew


@pytest.mark.wide
def test_a_job_that_slurm_starts_again_goes_on(tmp_path: Path) -> None:
    words = ("dataset=digits", "model=linear", "training.steps=3000", "training.checkpoint.every=50", "tracking=none")
    killed(tmp_path, words, 0.2)
    result = pipeline(tmp_path, *words, "name=two", SLURM_RESTART_COUNT="1")
    assert result.returncode == 0, result.stderr
    (run,) = runs(tmp_path)
    said = f"name=two: resumes {run.name}, which keeps its name, linear-digits-torch-fp32"
    assert said in result.stderr.splitlines()
    assert read_json(run / "receipt.json")["resumed"]
    result = pipeline(tmp_path, *words, "resume=auto")  # which is finished: there is nothing to go on with
    assert len(runs(tmp_path)) == 2


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was killed, with two checkpoints."""
    folder = tmp_path_factory.mktemp("stopped")
    words = ("dataset=digits", "model=linear", "training.steps=100000", "training.checkpoint.every=50", "tracking=none")
    killed(folder, words, 0.5, signal.SIGINT)
    return folder


def copied(stopped: Path, folder: Path) -> Path:
    shutil.copytree(stopped / "runs", folder / "runs")
    (run,) = runs(folder)
    return run


def test_latest_names_what_it_passes_over(stopped: Path, tmp_path: Path) -> None:
    """A newer run without a checkpoint, and the stage that the run is a cell of."""
    run = copied(stopped, tmp_path)
    root = str(tmp_path / "runs")
    asked = {"resume": "latest", "output_dir": root}
    assert resume.resumed(asked, ())[3] == []
    shutil.copytree(run, run.with_name(f"{run.name}.bak"))  # which is not the run that is meant
    assert resume.resumed(asked, ())[0] == run
    status = read_json(run / "status.json")
    for name, later in (("1-stage", -1), ("newer", 1), ("newest", 2)):
        (tmp_path / "runs" / name).mkdir()
        text = json.dumps(status | {"id": name, "started": status["started"] + later})
        (tmp_path / "runs" / name / "status.json").write_text(text)
    (tmp_path / "runs" / "1-stage" / "cells").mkdir()
    (tmp_path / "runs" / "1-stage" / "cells" / "0000.run").write_text(str(run))
    folder, _, _, notes = resume.resumed(asked, ())
    assert folder == run
    passed = "passed over, having no checkpoint: newest, the newest run that was killed or failed, and 1 more"
    cell = "a cell of 1-stage, which was killed or failed and has no checkpoint: only the cell is resumed"
    assert notes == [passed, cell]
    receipt = read_json(run / "receipt.json")
    (run / "receipt.json").write_text(json.dumps(receipt | {"code_sha256": "0"}))
    result = pipeline(tmp_path, "resume=latest")
    assert result.returncode == 2
    assert result.stderr.splitlines()[:2] == [f"resume={run.name}: {note}" for note in notes]


def test_a_damaged_checkpoint_falls_back_to_the_one_before(stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path)
    before, last = sorted((run / "checkpoints").iterdir())
    with (last / "state").open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    found, notes = newest(run)
    assert found is not None
    assert found.folder == before
    assert notes == [f"{last.name} is damaged (state has another sha256); the one before it is used"]
    shutil.rmtree(before)
    assert refused(tmp_path, f"resume={run.name}") == (
        f"resume={run.name}: {run.name} has no checkpoint; {last.name} is damaged (state has another sha256); "
        "run it again"
    )


def test_a_copy_beside_the_checkpoints_is_none(tmp_path: Path) -> None:
    for name in ("step-0000000008", "step-0000000008.bak", "step-0000005080 (copy)", "step-9"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert newest_step(tmp_path) == 8
    assert [note.partition(" is damaged")[0] for note in newest(tmp_path)[1]] == ["step-0000000008"]
    Writer(tmp_path, Checkpoints(), 7, print)
    kept = {folder.name for folder in (tmp_path / "checkpoints").iterdir()}
    assert kept == {"step-0000000008.bak", "step-0000005080 (copy)", "step-9"}


def test_what_a_training_began_from_has_to_be_there(stopped: Path, tmp_path: Path) -> None:
    """As after the run was deleted, or the whole folder moved; whatever strict is."""
    run = copied(stopped, tmp_path)
    config = (run / "config.yaml").read_text()
    assert "\n  start: null\n" in config
    (run / "config.yaml").write_text(config.replace("\n  start: null\n", "\n  start: /gone/weights.npz\n", 1))
    before = (run / "status.json").read_text()
    said = f"resume={run.name}: model.start=/gone/weights.npz is gone: put it back"
    assert refused(tmp_path, "resume=latest") == said
    assert refused(tmp_path, "resume=latest", "training.checkpoint.strict=false") == said
    assert (run / "status.json").read_text() == before


TOO_LARGE = """
import sys
from pathlib import Path
from pipeline.experiment.training import Checkpoints
from pipeline.runs.checkpoint import Writer
run = Path(sys.argv[1])
writer = Writer(run, Checkpoints(every=1), 0, print)
for step, size in ((1, 1_000), (2, 1_000_000)):
    writer.write(step, {}, {"state": lambda path: path.write_bytes(bytes(size))}, first=int)
    writer.wait()
(run / "metrics.jsonl").write_bytes(bytes(100_000))  # there is room for it again
print(*(path.name for path in (run / "checkpoints").iterdir()))
"""


def test_a_checkpoint_that_has_no_room_leaves_it_to_the_training(tmp_path: Path) -> None:
    prefix = with_small_disk("200k", tmp_path)
    if prefix is None:
        pytest.skip("no user namespace with mounts here")
    command = [*prefix, sys.executable, "-c", TOO_LARGE, str(tmp_path)]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600, check=False)
    assert result.stdout.splitlines() == ["no checkpoint of step 2: No space left on device", "step-0000000001"]


def test_other_code_is_refused_unless_asked_for(stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path)
    receipt = read_json(run / "receipt.json")
    receipt["code_sha256"] = "0"
    receipt["versions"]["torch"] = "1.0"
    (run / "receipt.json").write_text(json.dumps(receipt))
    said = refused(tmp_path, "resume=latest")
    assert said.startswith(f"resume={run.name}: not the same as when it was killed (code; torch 1.0, now ")
    assert said.endswith("training.checkpoint.strict=false resumes anyway")


def test_a_machine_of_the_same_name_is_another(stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path)
    receipt = read_json(run / "receipt.json")
    hardware = receipt["device"]["hardware"]
    receipt["device"]["hardware"] = {**hardware, "model": "0"}
    (run / "receipt.json").write_text(json.dumps(receipt))
    said = refused(tmp_path, "resume=latest")
    wanted = f"(the device ({hardware['name']}: model 0 -> {hardware.get('model')}))"
    assert said.startswith(f"resume={run.name}: not the same as when it was killed {wanted}; ")


COMPUTED = """
import importlib
from pipeline.contracts import Model
from pipeline.spec import spec

@spec
class Mine(Model):
    def torch(self, shapes):
        from torch import nn
        part = importlib.import_module("_".join(["the", "part"]))
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), part.Activation())
"""


@pytest.mark.wide
def test_a_module_of_a_computed_name_that_was_edited_is_another(tmp_path: Path) -> None:
    """Known by the checkpoint, also where the run was killed before its receipt had it."""
    part = "from torch import nn\nActivation = nn."
    write_files(
        tmp_path,
        {"mine.py": COMPUTED, "the_part.py": f"{part}Identity\n", "conf/model/mine.yaml": "_target_: mine.Mine\n"},
    )
    time.sleep(1.1)  # else they may seem to be written after the process began, whose start is known to a second
    own = {"PIPELINE_MODULES": "mine", "PYTHONPATH": f"{tmp_path}:{environment().get('PYTHONPATH', '')}"}
    words = ("--config-dir", "conf", "model=mine", "dataset=digits", "training.steps=20000", "tracking=none")
    often = ("training.checkpoint.every=20", "loader.steps_per_execution=10")
    assert killed(tmp_path, (*words, *often), 0.2, signal.SIGKILL, **own) == -9
    (tmp_path / "the_part.py").write_text(f"{part}ReLU\n")
    result = pipeline(tmp_path, "resume=latest", **own)
    assert result.returncode == 2, result.stderr
    assert "not the same as when it was killed (code of the_part); " in result.stderr


def test_the_part_that_has_changed_is_named(stopped: Path, tmp_path: Path) -> None:
    """By the module's hash, to which a text that a setting names counts too."""
    run = copied(stopped, tmp_path)
    for file, name in (("receipt.json", "code_sha256"), ("code.json", "pipeline.models.linear")):
        then = read_json(run / file)
        assert name in then
        (run / file).write_text(json.dumps({**then, name: "0"}))
    said = refused(tmp_path, "resume=latest")
    assert "(code of pipeline.models.linear, or files that it reads); training.checkpoint.strict" in said


@pytest.mark.wide
def test_another_environment_is_another_run(stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path)
    result = pipeline(tmp_path, "resume=latest", MKL_CBWR="COMPATIBLE")
    assert result.returncode == 2
    wanted = f"error: resume={run.name}: not the same as when it was killed (MKL_CBWR=, now COMPATIBLE); "
    assert result.stderr.splitlines()[-1].startswith(wanted)


UNSEEDED = """
from dataclasses import replace
import numpy as np
from pipeline.datasets import Split
from pipeline.datasets.digits import Digits
from pipeline.spec import spec


@spec
class Unseeded(Digits):
    def load(self, root, seed):
        data = Digits.load(self, root, seed)
        rows = np.random.default_rng().permutation(len(data.train))
        return replace(
            data,
            train=Split(data.train.x[rows[100:]], data.train.y[rows[100:]]),
            validation=Split(data.train.x[rows[:100]], data.train.y[rows[:100]]),
        )
"""


@pytest.mark.wide
def test_other_examples_for_validation_are_refused(tmp_path: Path) -> None:
    """The data had the same hash, and the run went on, its validation of examples that it had been trained on."""
    (tmp_path / "unseeded.py").write_text(UNSEEDED)
    path = f"{tmp_path}:{environment().get('PYTHONPATH', '')}"
    own: dict[str, Any] = {"PIPELINE_MODULES": "unseeded", "PYTHONPATH": path}
    words = ("dataset=digits", "dataset._target_=unseeded.Unseeded", "training.epochs=200", "tracking=none")
    assert killed(tmp_path, (*words, "training.checkpoint.every=5"), 0.0, **own) == -9
    (run,) = runs(tmp_path)
    result = pipeline(tmp_path, "resume=latest", **own)
    assert result.returncode == 2, result.stderr
    assert result.stderr.splitlines()[-1] == (
        f"error: resume={run.name}: the examples for validation or test now differ from those it began with, though "
        "the data are the same, or come in another order: it may have been trained on them; let load(root, seed) split "
        "by its seed alone (training.checkpoint.strict=false resumes anyway)"
    )
    result = pipeline(tmp_path, "resume=latest", "training.checkpoint.strict=false", **own)
    assert result.returncode == 0, result.stderr
    assert f"resume={run.name}: not exact: the examples for validation or test" in result.stderr
    (entry,) = read_json(run / "receipt.json")["resumed"]
    assert entry["differences"] == ["the examples for validation or test"]
    planned = pipeline(tmp_path, "-m", "seed=0", *words, "sweep.dry_run=true", **own)
    assert "half of it was trained elsewhere" in planned.stdout


UNSEEDED_NOISE = """
import keras
from pipeline.contracts import Model
from pipeline.spec import spec


class Noise(keras.layers.Layer):
    def call(self, x, training=False):
        return x + {draw}(keras.ops.shape(x)) if training else x


@spec
class Noisy(Model):
    def keras(self, shapes):
        layers = [keras.layers.Flatten(), Noise(), keras.layers.Dense(shapes.classes)]
        return keras.Sequential([keras.Input(shapes.image), *layers])
"""


@pytest.mark.wide
@pytest.mark.parametrize("draw", ["keras.random.normal", "__import__('tensorflow').random.normal"])
def test_noise_of_a_layer_without_a_seed_goes_on_or_is_noted(tmp_path: Path, draw: str) -> None:
    (tmp_path / "noisy.py").write_text(UNSEEDED_NOISE.replace("{draw}", draw))
    path = f"{tmp_path}:{environment().get('PYTHONPATH', '')}"
    own: dict[str, Any] = {"PIPELINE_MODULES": "noisy", "PYTHONPATH": path}
    model = ("model=linear", "model._target_=noisy.Noisy", "backend=tensorflow")
    words = ("dataset=digits", *model, "tracking=none", *OF_150_STEPS)
    (tmp_path / "whole").mkdir()
    assert pipeline(tmp_path / "whole", *words, **own).returncode == 0
    assert killed(tmp_path / "killed", words, 0.0, **own) == -9
    result = pipeline(tmp_path / "killed", "resume=latest", **own)
    assert result.returncode == 0, result.stderr
    same = outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    noted = "draws from a generator of TensorFlow's (RandomStandardNormal)" in result.stderr
    assert (same, noted) == ((True, False) if draw.startswith("keras") else (False, True)), result.stderr


@pytest.mark.wide
def test_other_tokens_are_refused_whatever_strict_is(tmp_path: Path) -> None:
    """As many characters, and others: the saved embeddings would be those of other tokens."""
    left = [word for word in LANGUAGE if not word.startswith(("dataset=", "training.steps="))]
    text = tmp_path / "text.txt"
    words = (*left, "dataset=text", f"dataset.path={text}", "training.steps=600", "tracking=none")
    text.write_text("a word or two " * 1000)
    assert killed(tmp_path, words, 0.0) == -9
    (run,) = runs(tmp_path)
    text.write_text("a worx or two " * 1000)
    result = pipeline(tmp_path, "resume=latest", "training.checkpoint.strict=false")
    said = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.returncode == 2, result.stderr
    assert "resuming at step" in result.stderr and "resumes" not in result.stderr  # what is refused has not resumed
    assert len(said) == 1
    assert said[0].startswith(
        f"error: resume={run.name}: the vocabulary learned from the data now differs from the one it was trained with, "
        "which training.checkpoint.strict=false does not allow; "
    )
    text.write_text("two or a word " * 1000)  # other text of the same characters
    result = pipeline(tmp_path, "resume=latest", "training.checkpoint.strict=false")
    assert result.returncode == 0, result.stderr
    assert "the data (another sha256)" in read_json(run / "receipt.json")["resumed"][0]["differences"]


def test_lost_records_are_a_damage(stopped: Path, tmp_path: Path) -> None:
    """Of a machine whose power was cut: the checkpoint was on the disk, and the journal not."""
    run = copied(stopped, tmp_path)
    journal = run / "metrics.jsonl"
    journal.write_bytes(journal.read_bytes()[:100])
    found, notes = newest(run)
    assert found is None and notes
    assert all("metrics.jsonl has lost records" in note for note in notes)


@pytest.mark.wide
def test_a_cell_that_took_too_long_goes_on_where_that_is_asked_for(tmp_path: Path) -> None:
    """It had left a checkpoint, and sweep.retry=failed began at the first step."""
    words: tuple[str, ...] = ("-m", "dataset=digits", "model=linear", "seed=0", "tracking=none")
    words = (*words, "training.steps=1000000", "training.checkpoint.every=50", "loader.steps_per_execution=5")
    assert pipeline(tmp_path, *words, "sweep.timeout=10").returncode == 1
    (run,) = (run for run in runs(tmp_path) if not (run / "cells").exists())
    assert status(run).state == "FAILED"
    first = [record.step for record in read_metrics(run)]
    assert pipeline(tmp_path, *words, "sweep.timeout=10", "sweep.retry=failed").returncode == 1
    assert [one for one in runs(tmp_path) if not (one / "cells").exists()] == [run]
    steps = [record.step for record in read_metrics(run)]
    assert steps[-1] > first[-1] and steps == sorted(steps)


@pytest.mark.wide
def test_what_went_on_elsewhere_says_so_and_is_no_grids_cell(tmp_path: Path) -> None:
    words = ("dataset=digits", "model=linear", "training.steps=4000", "training.checkpoint.every=50", "tracking=none")
    killed(tmp_path, words, 0.2)
    (run,) = runs(tmp_path)
    receipt = read_json(run / "receipt.json")
    (run / "receipt.json").write_text(json.dumps({**receipt, "code_sha256": "0"}))
    result = pipeline(tmp_path, "resume=latest", "training.checkpoint.strict=false")
    assert result.returncode == 0, result.stderr
    assert f"resume={run.name}: not exact: code" in result.stderr
    (entry,) = read_json(run / "receipt.json")["resumed"]
    assert entry["differences"] == ["code"] and 0 < entry["earlier_s"] < 600
    planned = pipeline(tmp_path, "-m", "seed=0", *words, "sweep.dry_run=true")
    assert "half of it was trained elsewhere" in planned.stdout


def test_mistakes(stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path)
    assert refused(tmp_path, "resume=latest", "model=mlp") == (
        "model with resume=latest: a run resumes with its own settings; leave it out"
    )
    assert refused(tmp_path, "resume=latest", "dataset.tokens=bytes") == (  # no key of the dataset of the defaults
        "dataset.tokens with resume=latest: a run resumes with its own settings; leave it out"
    )
    said = refused(tmp_path, "resume=${oc.env:PIPELINE_GOES_ON,latest}", "model=mlp")  # known once it is composed
    assert said == "model with resume=latest: a run resumes with its own settings; leave it out"
    assert refused(tmp_path, "-m", "resume=latest", "seed=1,2") == (
        "resume with -m: resumes a single run; a grid resumes when its command is given again"
    )
    assert refused(tmp_path, "resume=nothing").startswith("resume=nothing: no such run in ")
    status = read_json(run / "status.json")
    (run / "status.json").write_text(json.dumps({**status, "state": "FINISHED"}))
    assert refused(tmp_path, f"resume={run.name}") == f"resume={run.name}: {run.name} is FINISHED"
    none = f"resume=latest: no run in {tmp_path.absolute() / 'runs'} that was killed or failed has a checkpoint"
    assert refused(tmp_path, "resume=latest") == none
    (run / "status.json").write_text(json.dumps(status))
    shutil.rmtree(run / "checkpoints")
    assert refused(tmp_path, f"resume={run.name}") == f"resume={run.name}: {run.name} has no checkpoint; run it again"


@pytest.mark.wide
def test_a_checkpoint_changes_no_bit(tmp_path: Path) -> None:
    words = ("dataset=digits", "model=mnist_cnn", "training.epochs=1", "tracking=none")
    for cadence in ("training.checkpoint.every=1", "training.checkpoint.every_s=0"):
        assert pipeline(tmp_path, *words, cadence).returncode == 0
    first, second = (read_json(run / "receipt.json") for run in runs(tmp_path))
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["config_sha256"] == second["config_sha256"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 40), st.integers(0, 15))
def test_a_journal_that_goes_on_has_every_record_once(tmp_path: Path, at: int, until: int, torn: int, end: int) -> None:
    """Killed after `until` records, the last line torn; a checkpoint was at record `at`.

    It may end before it was killed, as by training.max_time: what it then never came to was shown as its own.
    """
    root = tmp_path / f"{at}-{until}-{torn}-{random.random()}"
    journal = Journal.begin(root, "killed", {})
    size = 0
    for step in range(max(at, until)):
        if step == at:
            journal.flush()
            size = journal.size
        journal.log({"loss": step / 3, "number": float(step)}, step)
    if at >= until:
        journal.flush()
        size = journal.size
    journal.finish("KILLED", "killed")
    path = journal.folder / "metrics.jsonl"
    written = path.read_bytes()
    path.write_bytes(written[: max(len(written) - torn, size)])
    again = Journal.reopen(journal.folder, size)
    for step in range(at, end):
        again.log({"loss": step / 3, "number": float(step)}, step)
    again.finish("FINISHED")
    count = max(at, end)
    assert [record.step for record in read_metrics(journal.folder)] == list(range(count))
    assert len(path.read_bytes().splitlines()) == count
