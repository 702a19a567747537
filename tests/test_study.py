"""The study, by real DVC in a copy of the repository, on the digits: what reruns, what is proved, what is refused."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command import Done, environment, message
from hydra import initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pipeline.errors import UserError
from pipeline.report import comparison
from pipeline.runs.journal import Journal
from pipeline.runs.records import EPOCH
from pipeline.runs.result import Metric, Result, count, rate
from pipeline.runs.run import Run
from pipeline.study import composed, documents, lock, params
from pipeline.study import report as study_report
from pipeline.study.__main__ import parser, perform
from pipeline.study.check import Difference, Row, check, same_result, show
from pipeline.study.compose import compose, resolved_config
from pipeline.study.composed import read as read_composed
from pipeline.study.data import fetch
from pipeline.study.outcome import Outcome, flat, nested, timings, write_curves
from pipeline.study.report import differences as differences_of
from pipeline.study.report import draw, report
from pipeline.study.run import refuse_other_settings, run
from pipeline.study.watched import refuse_unwatched
from pipeline.study.writers import writers_of

pytestmark = pytest.mark.timeout(3600)

ROOT = Path(__file__).parents[1]
WHOLE_SECONDS = 3400.0  # for the whole study, beside other tests on a slow machine
EXPERIMENTS = ["devices", "classifier@torch", "classifier@tensorflow", "classifier@jax"]
OTHERS = ["amp", "transformer", "text", "physics", "graph", "matmul", "loading", "kernels"]
STAGES = ["compose", "data", *EXPERIMENTS, *OTHERS, "report"]
TESTED = ("loss", "accuracy", "macro_precision", "macro_recall", "macro_f1")
PARAMS = """\
devices: {stage: devices, tracking: {wait: 100.0}}
classifier_torch: &short
  stage: seeds
  backend: torch
  dataset: digits
  precision: fp32
  training: {epochs: 2}
  tracking: {wait: 100.0}
classifier_tensorflow: {<<: *short, backend: tensorflow, stage.repeats: 1}
classifier_jax: {<<: *short, backend: jax}
amp: {<<: *short, stage: amp, model: mlp, training: {epochs: 1}, stage.repeats: 1, stage.precisions: [fp32, mixed]}
transformer:
  experiment: gpt_tiny
  dataset: python_docs
  training: {steps: 4, validate_every: 2}
  schedule.warm_up: 1
  tracking: {wait: 100.0}
text: {stage: generate, run: transformer, stage.prompt: "def ", stage.tokens: 8, tracking: {wait: 100.0}}
graph:
  stage: graph
  stage.frameworks: [jax]
  stage.sizes: [8, 12, 6, 3]
  stage.steps: 20
  stage.repetitions: [1]
  stage.rounds: 1
  tracking: {wait: 100.0}
matmul:
  stage: matmul
  stage.frameworks: [numpy]
  stage.sizes: [32]
  stage.dtypes: [float32]
  stage.starts: 1
  stage.longest: 60
  stage.placed: null
  tracking: {wait: 100.0}
loading:
  stage: loading
  stage.frameworks: [torch]
  stage.sources: [memory]
  dataset: digits
  stage.examples: 64
  stage.batch_sizes: [16]
  stage.workers: [0]
  stage.rounds: 1
  stage.finals: 1
  stage.seconds: 0.01
  tracking: {wait: 100.0}
kernels:
  stage: wmma
  stage.kernels: [numpy, cpu_order, cpu_blocked]
  stage.sizes: [48, 64]
  stage.seconds: 0.02
  stage.architectures: []
  tracking: {wait: 100.0}
physics: {stage: pinn, backend: torch, precision: fp64, solver.steps: 200, tracking: {wait: 100.0}}
"""


class Copy:
    """A copy of what the study is made of, without git."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("conf", "src"):
            unfinished = shutil.ignore_patterns("*.pyc.*")  # what another process compiles at the moment
            shutil.copytree(ROOT / name, folder / name, ignore=unfinished)  # with what is compiled
        for name in ("dvc.yaml", ".dvcignore", ".gitignore"):
            shutil.copyfile(ROOT / name, folder / name)
        (folder / "params.yaml").write_text(PARAMS)

    def command(self, *words: str, **changes: str) -> Done:
        """A command of Python's -m in the copy, as its user gives it."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        result = environment(PYTHONPATH=str(self.folder / "src"), PATH=path, DVC_NO_ANALYTICS="1", **changes)
        command = [sys.executable, "-m", *words]
        return subprocess.run(
            command, cwd=self.folder, env=result, capture_output=True, text=True, timeout=WHOLE_SECONDS, check=False
        )

    def dvc(self, *words: str) -> str:
        """What a DVC command that succeeds says."""
        done = self.command("dvc", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def study(self, *words: str) -> Done:
        """A command of pipeline.study."""
        return self.command("pipeline.study", *words)

    def stale(self) -> set[str]:
        """The stages beside compose that `dvc repro` would rerun. composed.yaml is put back."""
        before = self.read("composed.yaml")
        done = self.study("compose")
        assert done.returncode == 0, done.stderr
        try:
            return set(json.loads(self.dvc("status", "--json"))) - {"compose"}
        finally:
            (self.folder / "composed.yaml").write_bytes(before)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    @contextmanager
    def edited(self, name: str, old: str, new: str) -> Iterator[None]:
        """A file with `old` replaced, for a while."""
        path = self.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        try:
            yield
        finally:
            path.write_text(text)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """The whole study, reproduced."""
    return reproduced(tmp_path_factory.mktemp("study"))


SOME = ["compose", "data", "classifier@torch"]


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """The study, of which one training and what it needs are reproduced."""
    return reproduced(tmp_path_factory.mktemp("some"), *SOME[2:])


def reproduced(folder: Path, *stages: str) -> Copy:
    copy = Copy(folder)
    copy.dvc("init", "--no-scm", "--quiet")
    copy.dvc("repro", *stages)
    return copy


def results(study: Copy) -> dict[str, bytes]:
    """What must be the same to the byte when the study runs again."""
    files = [*study.folder.glob("study/*/*.csv"), *study.folder.glob("study/*/metrics.json")]
    return {str(path.relative_to(study.folder)): path.read_bytes() for path in files}


def test_a_repro_makes_what_is_asked_for_and_the_next_does_nothing(some: Copy) -> None:
    metrics = json.loads((some.folder / "study/classifier_torch/metrics.json").read_text())
    assert 0.5 < metrics["test"]["accuracy_low"] < metrics["test"]["accuracy"] < metrics["test"]["accuracy_high"] <= 1
    assert len(list((some.folder / "study/classifier_torch/figures").glob("*.png"))) == 3
    assert {path.name for path in some.folder.glob("study/*/")} == {"classifier_torch"}
    assert some.dvc("repro", *SOME[2:]).count("didn't change, skipping") == len(SOME)


def test_a_refusal_leaves_the_files_of_the_study_as_they_were(some: Copy) -> None:
    """DVC removes a stage's outputs before it runs the stage: composed.yaml was gone after a mistake in params.yaml."""
    names = ("composed.yaml", "study/data.json", "dvc.lock")
    before = [some.read(name) for name in names]
    with some.edited("params.yaml", "stage.tokens: 8", "stage.tokens: -8"):
        done = some.command("dvc", "repro")
    assert done.returncode != 0 and "error: params.yaml: text: stage.tokens=-8: " in done.stderr
    assert [some.read(name) for name in names] == before
    broken = some.folder / "conf/broken.npz"
    broken.write_bytes(b"no archive")
    with some.edited("params.yaml", "dataset: digits", "dataset: npz\n  dataset.file: conf/broken.npz"):
        done = some.command("dvc", "repro")
    assert done.returncode != 0 and "error: dataset.file=conf/broken.npz: " in done.stderr
    assert some.read("study/data.json") == before[1]
    broken.unlink()
    some.dvc("repro", *SOME[2:])
    assert [some.read(name) for name in names[:2]] == before[:2]


def test_an_edit_reruns_what_it_decides_and_nothing_else(some: Copy) -> None:
    never_run = set(STAGES) - set(SOME)
    with some.edited("src/pipeline/models/mlp.py", "= (128,)", "= (129,)"):
        assert some.stale() == {*never_run, "classifier@torch"}


@pytest.mark.wide
def test_one_repro_makes_everything_and_the_next_does_nothing(study: Copy) -> None:
    for stage in EXPERIMENTS[1:]:
        folder = study.folder / "study" / lock.block_of(stage)
        metrics, timings = (json.loads((folder / f"{name}.json").read_text()) for name in ("metrics", "timings"))
        seeds, ends = (1, ("",)) if stage.endswith("tensorflow") else (3, ("", "_low", "_high"))
        assert set(metrics["test"]) == {f"{name}{end}" for name in TESTED for end in ends}
        assert 0.5 < metrics["test"]["accuracy"] <= 1
        if seeds == 3:
            assert metrics["test"]["accuracy_low"] < metrics["test"]["accuracy"] < metrics["test"]["accuracy_high"]
        assert len({metrics[f"seed_{seed}"]["test_loss"] for seed in range(seeds)}) == seeds
        assert timings["training_rate"]["median"] > 0
        assert (folder / "curves.csv").read_text().count("\n") == 3  # the names and two epochs
        assert (folder / "seeds.csv").read_text().count("\n") == 1 + seeds
        assert (folder / "predictions.csv").read_text().count("\n") == 361
        assert len(list((folder / "figures").glob("*.png"))) == 3
    report = study.read("study/report/report.md").decode()
    assert all(lock.block_of(stage) in report for stage in EXPERIMENTS)
    assert "| classifier_torch - classifier_jax |" in report
    assert "- classifier_tensorflow |" not in report  # one seed is too few for an interval
    assert "It does not show what another machine, other versions or a longer training would give." in report
    assert "in one pair of runs: too few runs for an interval" in report  # what precision=mixed buys: the verdict
    assert "| precision | images/s | speed-up |" in report
    assert study.read("study/report/comparison.png").startswith(b"\x89PNG")
    shown = json.loads(study.dvc("metrics", "show", "--json"))[""]["data"]
    assert len(shown) == len([*EXPERIMENTS, *OTHERS])
    assert study.dvc("repro").count("didn't change, skipping") == len(STAGES)  # how fast: docs/study.md


@pytest.mark.wide
def test_a_comment_reruns_nothing_but_compose(study: Copy) -> None:
    before = study.read("composed.yaml")
    with (
        study.edited("src/pipeline/models/mlp.py", '"""A multi-layer', '# seen by nobody\n"""One more multi-layer'),
        study.edited("conf/model/mlp.yaml", "# ", "# in other words: "),
        study.edited("src/pipeline/study/report.py", '"""One row', '"""As Markdown: one row'),
    ):
        result = study.dvc("repro")
        assert "Running stage 'compose'" in result
        assert result.count("Running stage") == 1
    study.dvc("repro", "compose")
    assert study.read("composed.yaml") == before


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("src/pipeline/models/mlp.py", "= (128,)", "= (129,)", {*EXPERIMENTS[1:], "amp"}),
        ("src/pipeline/report/comparison.py", '"epoch"', '"epochs"', {"report"}),
        ("src/pipeline/models/cnn.py", "\nfrom ", "\nNEW = 1\nfrom ", set()),
        ("params.yaml", "backend: jax", "backend: jax, optimizer.learning_rate: 1e-2", {"classifier@jax"}),
        ("conf/backend/tensorflow.yaml", "xla: null", "xla: false", {"classifier@tensorflow"}),
        ("src/pipeline/backends/keras/engine_jax.py", "\nimport ", "\nNEW = 1\nimport ", {"classifier@jax"}),
        ("src/pipeline/backends/keras/fit.py", "\nimport ", "\nNEW = 1\nimport ", {*EXPERIMENTS[2:]}),
        (
            "src/pipeline/datasets/digits.py",
            "TEST_SIZE = 360",
            "TEST_SIZE = 361",
            {"data", *EXPERIMENTS[1:], "amp", "loading"},
        ),
        ("src/pipeline/tracking/tracker.py", "POLL_SECONDS = 0.05", "POLL_SECONDS = 0.06", set()),
        (
            "src/pipeline/report/figures.py",
            '"predicted class"',
            '"predicted"',
            {*EXPERIMENTS, "amp", "transformer", "loading"},  # devices times a classifier, whose task draws
        ),
        ("src/pipeline/study/outcome.py", '"run_s"', '"seconds_s"', {*EXPERIMENTS, *OTHERS, "report"}),
        ("conf/model/mlp.yaml", "[128]", "[64]", {*EXPERIMENTS[1:], "amp"}),
        ("conf/tracking/mlflow.yaml", "experiment: pipeline", "experiment: other", set()),
    ],
)
def test_an_edit_reruns_exactly_what_it_decides(study: Copy, name: str, old: str, new: str, expected: set[str]) -> None:
    with study.edited(name, old, new):
        assert study.stale() == expected


@pytest.mark.wide
def test_the_same_stage_again_gives_the_same_bytes(study: Copy) -> None:
    before, timings = results(study), study.read("study/classifier_torch/timings.json")
    study.dvc("repro", "--force", "--single-item", "classifier@torch")
    assert results(study) == before
    assert {f"study/{lock.block_of(stage)}/metrics.json" for stage in [*EXPERIMENTS, *OTHERS]} <= set(before)
    result = study.study("check")
    assert result.returncode == 1
    assert [line.partition(": expected")[0] for line in result.stderr.splitlines()] == [
        "differs: report: dvc.lock: md5 of study/classifier_torch, which it read"
    ]
    assert study.read("study/classifier_torch/timings.json") != timings
    study.dvc("repro")


Ask = Callable[[], list[str]]


@pytest.fixture
def differences(study: Copy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """What `check` names."""
    monkeypatch.chdir(study.folder)
    monkeypatch.setenv("COLUMNS", "200")

    def ask() -> list[str]:
        status = check()
        result = capsys.readouterr()
        lines = [line.removeprefix("differs: ") for line in result.err.splitlines()]
        assert status == (1 if lines else 0)
        wrong = [row for row in result.out.splitlines()[1:] if not row.rstrip().endswith("agree")]
        assert {row.split()[0] for row in wrong} == {line.partition(":")[0] for line in lines}
        return lines

    return ask


@pytest.mark.wide
def test_lock_config_and_mlflow_tell_of_the_same_execution(study: Copy, differences: Ask) -> None:
    result = study.study("check")
    assert result.returncode == 0, result.stdout + result.stderr
    heading, *rows = result.stdout.splitlines()
    assert heading.split() == ["stage", "files", "config", "code", "data", "MLflow", "run"]
    assert [row.split()[0] for row in rows] == STAGES
    assert all(row.rstrip().endswith("agree") for row in rows)
    with study.edited("composed.yaml", "learning_rate: 0.001", "learning_rate: 0.002"):
        found = differences()
    assert any(
        line.startswith("classifier@jax: composed.yaml: config (at optimizer.learning_rate: dvc.lock 0.001, ")
        for line in found
    )


def test_no_hash_is_cut_where_the_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("files", "config", "code", "data", "MLflow run")
    agreed = dict(zip(names, ("6", "162e56bb", "3d0008e2", "e82adc0c", "7dce68e1"), strict=True))
    differs = tuple(Difference("classifier@tensorflow", where, "md5", "a", "b") for where in ("the folder", "dvc.lock"))
    show([Row("classifier@tensorflow", agreed, differs)])
    heading, first, *more = capsys.readouterr().out.splitlines()
    assert heading.split() == ["stage", "files", "config", "code", "data", "MLflow", "run"]
    assert first.split()[:6] == ["classifier@tensorflow", *agreed.values()]
    assert "".join([*first.split()[6:], *" ".join(more).split()]) == "differs:thefolder,dvc.lock"  # folded
    assert all(len(line) <= 80 for line in (first, *more))


def found_under(change: AbstractContextManager[None], differences: Ask) -> list[str]:
    """What differs while `change` holds; once it is taken back, nothing does."""
    with change:
        found = differences()
    assert differences() == []
    return found


@pytest.mark.wide
def test_a_lock_that_was_tampered_with_is_named(some: Copy) -> None:
    def rows() -> set[str]:
        result = some.study("check")
        assert result.returncode == 1  # the others have not run
        return set(result.stderr.splitlines())

    before = rows()
    assert not any(row.startswith("differs: classifier@torch") for row in before)
    with some.edited("dvc.lock", "learning_rate: 0.001", "learning_rate: 0.002"):
        (row,) = rows() - before
    assert row.startswith("differs: classifier@torch: dvc.lock: config (at optimizer.learning_rate")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("dvc.lock", "learning_rate: 0.001", "learning_rate: 0.002", "dvc.lock: config (at optimizer.learning_rate"),
        ("study/classifier_torch/metrics.json", '"test"', '"Test"', "dvc.lock: md5 of study/classifier_torch/met"),
        ("composed.yaml", "learning_rate: 0.001", "learning_rate: 0.002", "composed.yaml: config (at optimizer.lear"),
        ("composed.yaml", "pipeline.models.mlp: ", "pipeline.models.mlp: 0", "composed.yaml: code (at pipeline.mode"),
    ],
)
def test_a_tampered_record_is_named(
    study: Copy, differences: Ask, name: str, old: str, new: str, expected: str
) -> None:
    found = found_under(study.edited(name, old, new), differences)
    assert any(line.startswith(f"classifier@torch: {expected}") for line in found), found


@pytest.mark.wide
@pytest.mark.parametrize(
    ("table", "key", "value", "expected"),
    [
        ("latest_metrics", "result/test/accuracy", "0.5", "MLflow run: result test/accuracy: expected "),
        *(
            ("tags", name, "0000", expected)
            for name, expected in (
                ("receipt.data_sha256", "MLflow run: data: expected {data} (dvc.lock and study/data.json)"),
                ("receipt.config_sha256", "MLflow run: config: expected {config} (dvc.lock and composed.yaml)"),
                ("receipt.code_sha256", "MLflow run: code: expected {code} (dvc.lock and composed.yaml)"),
                ("pipeline.run", "MLflow run: the run: expected the run of this execution, found none"),
            )
        ),
    ],
)
def test_a_tampered_mlflow_run_is_named(
    study: Copy, differences: Ask, table: str, key: str, value: str, expected: str
) -> None:
    receipt = json.loads(study.read("study/classifier_jax/receipt.json"))
    found = found_under(tampered(study.folder / "mlflow.db", receipt["run"], table, key, value), differences)
    hashes = {what: receipt[f"{what}_sha256"][:8] for what in ("config", "code", "data")}
    assert [line.startswith(f"classifier@jax: {expected.format(**hashes)}") for line in found] == [True], found


@contextmanager
def tampered(database: Path, run: str, table: str, key: str, value: str) -> Iterator[None]:
    """One entry of the MLflow run of a run's folder changed, for a while."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        ask = "SELECT run_uuid FROM tags WHERE key = 'pipeline.run' AND value = ?"
        (mlflow_id,) = connection.execute(ask, (run,)).fetchone()
        place = (key, mlflow_id)
        (before,) = connection.execute(f"SELECT value FROM {table} WHERE key = ? AND run_uuid = ?", place).fetchone()
        put = f"UPDATE {table} SET value = ? WHERE key = ? AND run_uuid = ?"
        connection.execute(put, (value, *place))
        try:
            yield
        finally:
            connection.execute(put, (before, *place))


@pytest.mark.wide
def test_a_stage_that_only_one_file_has_is_named(study: Copy, differences: Ask) -> None:
    with study.edited("params.yaml", "classifier_jax:", "classifier_more: *short\nclassifier_jax:"):
        (line,) = (line for line in differences() if not line.startswith("compose"))
        assert line == "classifier_more: dvc.yaml: stage: expected one that runs classifier_more, found none"
    with study.edited("params.yaml", "classifier_jax: {<<: *short, backend: jax}", ""):
        assert differences() == ["classifier@jax: params.yaml: block: expected classifier_jax, found none"]
    with study.edited("dvc.yaml", "[torch, tensorflow, jax]", "[torch, tensorflow, jax, more]"):
        (line,) = differences()
        assert line.startswith("classifier@more: dvc.lock: stage: expected an entry")


@pytest.mark.wide
def test_a_report_by_other_code_is_named(study: Copy, differences: Ask) -> None:
    name = "pipeline.report.comparison: "
    compose, line = found_under(study.edited("composed.yaml", name, f"{name}0"), differences)
    assert compose.startswith("compose: dvc.lock: md5 of composed.yaml: ")
    assert line.startswith("report: dvc.lock: composed.yaml: report.code.pipeline.report.comparison, which it read: ")


def test_the_modules_that_draw_and_write_are_tracked(some: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of pipeline.report that the study's stages draw with, each by those that import it."""
    monkeypatch.chdir(some.folder)
    found = {name: entry.writers for name, entry in composed.read().items()}
    report = documents.read(some.folder / "composed.yaml", "")["report"]["code"]
    drawn = {"figures", "canvas", "table"}
    assert {f"pipeline.report.{name}" for name in drawn} <= found["classifier_jax"].keys()
    assert {"pipeline.pinn.figures", "pipeline.report.canvas"} <= found["physics"].keys()
    assert {f"pipeline.report.{name}" for name in ("comparison", "canvas", "table")} <= report.keys()
    assert {"pipeline.study.report", "pipeline.study.outcome", "pipeline.study.documents"} <= report.keys()
    kept = {
        "pipeline.study.outcome",
        "pipeline.runs.receipt",
        "pipeline.machine.host",
        "pipeline.runs.journal",
        "pipeline.runner",
    }
    assert all(kept <= writers.keys() for writers in found.values())
    every = {f"pipeline.report.{path.stem}" for path in (ROOT / "src/pipeline/report").glob("[a-z]*.py")}
    tracked = {name for writers in (*found.values(), report) for name in writers}
    # Of comparisons that the study does not make, and of grids, which no stage draws.
    not_made = {"pipeline.report.long_range", "pipeline.report.fold_intervals"}
    assert every - tracked - {"pipeline.report.grid_figure"} == not_made


def test_the_module_that_notes_how_cells_were_timed_is_tracked() -> None:
    """study/<stage>/receipt.json has these notes."""
    assert {"pipeline.sweep.notes", "pipeline.machine.others"} <= writers_of(["pipeline.stages.cells"]).keys()


def test_the_times_are_all_that_the_receipt_has(tmp_path: Path) -> None:
    """When the first block had ended, and how long compiling took, were left out on TensorFlow and JAX."""
    run = Run(Journal.begin(tmp_path, "seeds", {}), Console(file=io.StringIO()))
    receipt = {"training_s": 2.0, "first_block_s": 1.5, "compile_s": 0.5, "samples_s": 0.25, "fit_s": 3.0}
    found = timings(run.folder, {**receipt, "seed": 1}, ())
    assert found == {"run_s": found["run_s"], **receipt}


@pytest.mark.parametrize("last", [{"val_loss": 0.25}, {}])
def test_an_epoch_that_lacks_a_metric_has_an_empty_field(tmp_path: Path, last: dict[str, float]) -> None:
    """With check_val_every_n_epoch=2 the last epoch decided the columns: a KeyError, or no val_loss at all."""
    run = Run(Journal.begin(tmp_path, "lightning", {}), Console(file=io.StringIO()))
    every = ({"train_loss": 1.0, "val_loss": 0.5}, {"train_loss": 0.5}, {"train_loss": 0.25, **last})
    for epoch, found in enumerate(every, 1):
        metrics = (count(EPOCH, epoch), *(Metric(name, value) for name, value in found.items()), rate("speed", 9, "x"))
        run.end_epoch(epoch, metrics, epoch * 10)
    run.journal.write_result(Result((), last_epoch=run.last_epoch))
    write_curves(tmp_path / "curves.csv", run.folder)
    lines = ["epoch,step,train_loss,val_loss", "1,10,1.0,0.5", "2,20,0.5,", f"3,30,0.25,{last.get('val_loss', '')}"]
    assert (tmp_path / "curves.csv").read_text().splitlines() == lines


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (math.inf, sys.float_info.max, True),  # as MLflow keeps it
        (-math.inf, -sys.float_info.max, True),
        (math.inf, -sys.float_info.max, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (0.5, 0.5, True),
        (0.5, 0.25, False),
        (None, 0.5, False),
    ],
)
def test_infinite_results_agree_with_what_mlflow_keeps(one: float | None, other: float | None, same: bool) -> None:
    assert same_result(one, other) is same


def test_what_dvc_does_not_watch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs in another folder, and modules of the user's."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "conf", elsewhere / "conf")
    (elsewhere / "somebodys.py").write_text("")
    home = tmp_path / "home"
    shutil.copytree(ROOT / "conf", home / "conf")
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(elsewhere)
    Path("dvc.yaml").write_text("stages: {compose: {cmd: x, deps: [conf, ../elsewhere/other.py]}}")
    (tmp_path / "dist-packages").mkdir()  # of the system's Python, or of the user's own ~/.local
    (tmp_path / "dist-packages" / "somewhere_installed.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "dist-packages")
    refuse_unwatched(["omegaconf.base", "somewhere_installed"])  # installed packages
    with pytest.raises(UserError) as result:
        refuse_unwatched(["somebodys"])
    assert str(result.value).startswith(
        f"somebodys: it is imported from {elsewhere / 'somebodys.py'}, which DVC does not "
    )
    assert str(result.value).endswith("deps of the stage compose (dvc.yaml has conf, ../elsewhere/other.py)")
    (elsewhere / "x.npz").touch()
    refuse_unwatched([], [Path("conf/config.yaml"), tmp_path / "dist-packages/somewhere_installed.py"])
    with pytest.raises(UserError) as result:
        refuse_unwatched([], [elsewhere / "x.npz"])
    assert str(result.value).startswith(f"{elsewhere / 'x.npz'}: DVC does not watch this file, so that with other ")
    monkeypatch.setenv("PIPELINE_CONF", str(elsewhere / "conf"))
    with pytest.raises(UserError) as result:
        refuse_unwatched([])
    assert str(result.value).startswith(f"PIPELINE_CONF={elsewhere / 'conf'}: DVC does not watch this folder, ")
    Path("dvc.yaml").write_text("stages: {compose: {cmd: x, deps: [../elsewhere]}}")
    refuse_unwatched(["somebodys"])


def refused(study: Copy, *words: str, **changes: str) -> str:
    """The message of a command that is refused."""
    return message(study.command("pipeline.study", *words, **changes))


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("{backend: troch}", "one: backend=troch: no such choice (did you mean torch?); choose from jax, tensorflow, "),
        ("{modle: mlp}", "one: modle: no such key (did you mean model?); choose from augmentation, backend, "),
        ("{training: {epoch: 3}}", "one: training.epoch: no such key (did you mean training.epochs?); choose from "),
        ("{training.epochs: many}", "one: training.epochs='many': should be a valid integer"),
        ("{training.epochs: 3, training: {epochs: 4}}", "one: training.epochs is set twice; write it once"),
        ("{model: null}", "one: model=None: needs one of the choices of conf/model/"),
        ("{precision: tf32, device: cpu}", "one: precision=tf32 with backend=torch on cpu: TF32 exists only in "),
        ("{stage: evaluate}", "one: stage=evaluate: starts from a saved run, and DVC tracks that of a block alone; "),
        ("[1, 2]", "one=[1, 2]: needs a mapping of overrides, such as one: {backend: torch}"),
        ("{name: another}", "one: name: no such key; choose from "),
        ("{model: [mlp", "not YAML: "),
        ("{experiment: layer_dtypes, model.layer_dtypes: {}}", "one: model.layer_dtypes={}: an empty mapping changes "),
        ("{stage: matmul, stage.sizes: {big: 64}}", "one: stage.sizes.big=64: stage.sizes is a list; write [...]"),
        ("{dataset: digits, seed: 2026-11-27}", "one: seed=2026-11-27: YAML reads a date in it; put it in quotes"),
        ("{model: cnn, +model.units: [3]}", "one: model.units: no such key"),
        ("{+model: cnn}", "one: +model: this group already has a choice; write model: <choice>"),
    ],
)
def test_a_mistake_in_params_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(f"one: {block}\n")
    with pytest.raises(UserError) as result:
        compose()
    assert str(result.value).startswith(f"params.yaml: {expected}")
    assert not Path("composed.yaml").exists()


def test_params_may_add_what_a_command_may_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of a mapping that any entry fits in, and with a + one of another mapping."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(
        "one: {dataset: digits, stage: lightning, stage.module: mine.Lit, stage.arguments: {rate: 0.5}}\n"
        "two: {stage: pinn_comparison, +stage.rows.mine: solver=adam solver.steps=20}\n"
    )
    one, two = params.read()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        assert resolved_config(one)["stage"]["arguments"] == {"rate": 0.5}
        assert resolved_config(two)["stage"]["rows"]["mine"] == "solver=adam solver.steps=20"


def test_json_keeps_characters_beyond_the_first_plane(tmp_path: Path) -> None:
    """Of its escapes, YAML makes two halves, which nothing can write."""
    (tmp_path / "one.json").write_text(json.dumps({"note": "\U0001f600"}))
    assert documents.read(tmp_path / "one.json", "")["note"] == "\U0001f600"
    (tmp_path / "two.json").write_text("{")
    with pytest.raises(UserError, match=r"two.json: not JSON: "):
        documents.read(tmp_path / "two.json", "")


def test_what_the_environment_holds_is_not_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """composed.yaml is committed. A password stays out of it, and a variable that decides a result is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_SECRET", "mysql://me:s3cr3t@host/db")
    Path("params.yaml").write_text("one: {dataset: digits, tracking.uri: '${oc.env:A_SECRET}'}\n")
    compose()
    written = Path("composed.yaml").read_text()
    assert "${oc.env:A_SECRET}" in written
    assert "s3cr3t" not in written
    monkeypatch.setenv("EPOCHS", "3")
    Path("params.yaml").write_text("one: {dataset: digits, training.epochs: '${oc.decode:${oc.env:EPOCHS}}'}\n")
    with pytest.raises(UserError, match="DVC does not watch the environment") as refusal:
        compose()
    assert str(refusal.value).startswith("params.yaml: one: training.epochs=${oc.decode:${oc.env:EPOCHS}}: DVC ")


def test_a_study_of_a_file_that_dvc_does_not_watch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file of that name reran nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_CONF", str(ROOT / "conf"))
    np.savez(tmp_path / "x.npz", x=np.zeros((40, 4, 4), np.uint8), y=np.arange(40) % 2)
    Path("params.yaml").write_text("one: {dataset: npz, dataset.file: x.npz, training.batch_size: 8}\n")
    watched = f"{ROOT / 'conf'}, {ROOT / 'src'}"
    for deps, said in ((f"[{watched}]", "DVC does not watch this file"), (f"[{watched}, x.npz]", None)):
        Path("dvc.yaml").write_text(f"stages: {{compose: {{cmd: x, deps: {deps}}}}}")
        if said is None:
            compose()
            continue
        with pytest.raises(UserError, match=said):
            compose()


def test_what_decides_the_data_reruns_their_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that draws the data, or a file of theirs with other contents: study/data.json kept the hash of before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_CONF", str(ROOT / "conf"))

    def tracked(seed: int, number: int) -> Any:
        np.savez(tmp_path / "x.npz", x=np.full((40, 4, 4), number, np.uint8), y=np.arange(40) % 2)
        Path("params.yaml").write_text(f"one: {{dataset: npz, dataset.file: x.npz, seed: {seed}}}\n")
        compose()
        return yaml.safe_load(Path("composed.yaml").read_text())["data"]["one"]

    before = tracked(0, 0)
    assert tracked(0, 0) == before
    assert tracked(1, 0) != before and tracked(0, 1) != before


def test_a_study_of_code_that_reads_a_variable_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PIPELINE_MODULES", "reads_a_variable")
    (tmp_path / "reads_a_variable.py").write_text(
        "import os\nfrom pipeline.models.mlp import Mlp\nfrom pipeline.spec import spec\n"
        "WIDTH = os.environ.get('LAB_WIDTH')\n\n@spec\nclass Mine(Mlp):\n    pass\n"
    )
    Path("params.yaml").write_text("one: {dataset: digits, model: mlp, model._target_: reads_a_variable.Mine}\n")
    with pytest.raises(UserError, match="one: LAB_WIDTH: your code reads it, and DVC does not watch the environment"):
        compose()


@pytest.mark.parametrize("words", ["compose", "data", "run devices", "report", "check"])
def test_a_checkout_whose_package_is_not_the_one_that_is_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """In a clone, the environment of another checkout composed the stages from that one's code."""
    monkeypatch.chdir(tmp_path)
    asked = parser().parse_args(words.split())
    with pytest.raises(UserError, match=r"^(params|composed|dvc)\.yaml: "):  # a project folder: nothing is there
        perform(asked)
    (tmp_path / "src/pipeline/study").mkdir(parents=True)
    (tmp_path / "src/pipeline/study/__main__.py").touch()
    with pytest.raises(UserError) as result:
        perform(asked)
    assert str(result.value) == (
        f"pipeline: imported from {ROOT / 'src/pipeline'}, and this folder has its own in src/pipeline; `make study` "
        "runs that in an environment of this folder, `PYTHONPATH=src dvc repro` does in the present one"
    )


def test_a_refusal_is_one_line_and_exit_status_2(some: Copy) -> None:
    assert refused(some, "run", "classifier_trch").startswith(
        "stage=classifier_trch: no such choice (did you mean classifier_torch?); choose from amp, classifier_jax, "
    )
    with some.edited("src/pipeline/models/mlp.py", "= (128,)", "= (129,)"):
        result = refused(some, "run", "classifier_torch")
    assert result.startswith("composed.yaml: classifier_torch: the code has changed since it was written (pipeline.mod")


@pytest.mark.wide
def test_a_mistake_in_a_file_of_the_study_names_the_file(some: Copy) -> None:
    with some.edited("params.yaml", "backend: jax", "backend: jaxx"):
        assert refused(some, "compose").startswith("params.yaml: classifier_jax: backend=jaxx: no such choice (did ")
    result = refused(some, "compose", PIPELINE_CONF=str(ROOT / "conf"))
    assert result.startswith(f"PIPELINE_CONF={ROOT / 'conf'}: DVC does not watch this folder, so an edit there would ")


def test_a_file_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tasks: dict[Callable[[], int], str] = {
        compose: "params.yaml: not there; it holds ",
        fetch: "composed.yaml: not there; `dvc repro compose` or ",
        report: "composed.yaml: not there; `dvc repro compose` or ",
        lambda: run("one"): "composed.yaml: not there; `dvc repro compose` or ",
    }
    for task, expected in tasks.items():
        with pytest.raises(UserError) as result:
            task()
        assert str(result.value).startswith(expected)


def test_what_ships_composes_and_fits_dvc_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lock.stages() == STAGES
    blocks = {block.name for block in params.read(ROOT / "params.yaml")}
    assert blocks == {lock.block_of(stage) for stage in STAGES} - set(params.OWN_STAGES)
    compose(ROOT / "params.yaml", tmp_path / "composed.yaml")
    assert "FashionMnist" in (tmp_path / "composed.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    for name, entry in read_composed().items():
        refuse_other_settings(name, entry.config)  # as each stage asks: the same, read back from YAML


@pytest.mark.slow
def test_the_whole_again_and_an_experiment_that_reaches_the_run(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.name", "somebody")
    git(tmp_path, "config", "user.email", "somebody@localhost")
    copy.dvc("init", "--quiet")
    copy.dvc("repro")
    before = results(copy)
    copy.dvc("repro", "--force")
    assert results(copy) == before
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "The study")
    other = copy.read("study/classifier_jax/receipt.json")
    copy.dvc("exp", "run", "--set-param", "classifier_torch.precision=fp64")
    receipt = json.loads(copy.read("study/classifier_torch/receipt.json"))
    assert receipt["precision"]["effective"] == "fp64"
    assert set(receipt["precision"]["observed"]["matrix_products"]) == {"float64"}
    assert copy.read("study/classifier_jax/receipt.json") == other
    changed = json.loads(copy.dvc("metrics", "diff", "--json"))
    assert list(changed) == ["study/classifier_torch/metrics.json"]
    assert "test.loss" in changed["study/classifier_torch/metrics.json"]
    copy.dvc("plots", "diff")
    page = copy.read("dvc_plots/index.html").decode()
    assert "validation_accuracy" in page
    assert all(f'"rev": "{side}"' in page for side in ("HEAD", "workspace"))
    assert (copy.folder / "dvc_plots/static/HEAD_study_classifier_torch_figures_training_curves.png").is_file()
    assert copy.study("check").returncode == 0


def git(folder: Path, *words: str) -> None:
    """A git command that succeeds."""
    subprocess.run(["git", *words], cwd=folder, check=True)


def test_stages_of_other_data_or_units_are_not_subtracted_and_have_their_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accuracies on two datasets were said to differ and stood on one axis, as tokens did on one of images."""

    def outcome(data: str, unit: str, accuracy: float) -> Outcome:
        seeds = {f"seed_{seed}/test_accuracy": accuracy + seed / 1000 for seed in range(3)}
        rate = {"median": 2000.0, "min": 1900.0, "max": 2100.0, "unit": unit}
        roles = dict.fromkeys(seeds, "seed")
        curves = [{"epoch": "1", "validation_accuracy": "0.5"}]
        metrics = {"test/accuracy": accuracy, **seeds}
        tested = {"data_sha256": data, "held_out": {"test": data}} if data else {}  # else each seed has others
        return Outcome(metrics, {"training_rate": rate}, {**tested, "roles": roles}, curves, "")

    made = {"a": outcome("one", "images/s", 0.8), "b": outcome("two", "images/s", 0.9)}
    assert differences_of(made) == ""
    assert differences_of({name: outcome("", "images/s", 0.8) for name in "ab"}) == ""
    alike = made | {"c": outcome("one", "tokens/s", 0.7)}
    assert [line for line in differences_of(alike).splitlines() if " - " in line and "|" in line][-1].startswith(
        "| a - c |"
    )
    monkeypatch.setattr(study_report, "FOLDER", tmp_path)
    sides: list[list[str]] = []
    monkeypatch.setattr(comparison, "draw", lambda _, shown, __: sides.append([side.name for side in shown]))
    assert draw([alike | {"d": outcome("one", "images/s", 0.6)}]) == [
        f"comparison{end}.png" for end in ("", "_1", "_2")
    ]
    assert sides == [["a", "d"], ["b"], ["c"]]
    monkeypatch.undo()
    monkeypatch.setattr(study_report, "FOLDER", tmp_path)
    assert all((tmp_path / name).is_file() for name in draw([alike]))


NAMES = ["/".join(words) for length in range(1, 5) for words in itertools.product("abc", repeat=length)]


@given(st.lists(st.sampled_from(NAMES), unique=True, max_size=8))
def test_metrics_are_kept_whatever_their_names(names: list[str]) -> None:
    """`loss` beside `loss/mse` ended in a traceback, or one of them was lost."""
    metrics = {name: float(number) for number, name in enumerate(names)}
    assert flat(nested(metrics)) == metrics
    assert flat(nested(dict(reversed(metrics.items())))) == metrics
    assert json.loads(json.dumps(nested({"test/loss": 1.0, "test/f1/0": 2.0}))) == {"test": {"loss": 1, "f1": {"0": 2}}}
