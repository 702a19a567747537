"""stage=ladder: each rung a run below it, what it gained, and what becomes of rungs that fail or cannot run."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from command import COMMAND, Done, environment, pipeline, refused, runs, status

from pipeline.command_line import composed
from pipeline.models.gpt import Gpt
from pipeline.ready import load_checked
from pipeline.report.table import digits
from pipeline.runs.records import read_config, read_metrics
from pipeline.runs.result import Metric
from pipeline.stages.ladder import Ladder, Rung, at_rate, grid, notes

SMALL = ("dataset=digits", "dataset.train_size=320", "training.epochs=2", "training.batch_size=32")
LOADING = ("transfer", "threads", "resident")
SHORT = ("stage=ladder", *SMALL, "tracking=none", "model=linear", "~stage.rungs.compiled", "~stage.rungs.workers")


def ladder_of(folder: Path) -> Path:
    """The ladder's own run."""
    (found,) = [run for run in runs(folder) if (run / "cells").exists()]
    return found


def rungs(folder: Path) -> list[Path]:
    """The runs of the rungs, in the order in which they ran."""
    cells = [run for run in runs(folder) if not (run / "cells").exists()]
    return sorted(cells, key=lambda run: status(run).started)  # the names have whole seconds only


def table(run: Path, name: str) -> list[dict[str, str]]:
    with (run / "artifacts" / name).open() as file:
        return list(csv.DictReader(file))


def receipt(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "receipt.json").read_text())
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ladder")


@pytest.fixture(scope="module")
def climbed(place: Path) -> Done:
    """The recipe as it ships, but for a set of 320 images."""
    return pipeline(place, "experiment=amp_ladder", *SMALL, "tracking.wait=600")


@pytest.mark.wide
def test_each_rung_keeps_what_those_below_changed(climbed: Done, place: Path) -> None:
    assert climbed.returncode == 0, climbed.stderr
    configs = [read_config(run) for run in rungs(place)]
    loaders = [config["loader"]["_target_"].rpartition(".")[2] for config in configs]
    assert [config["name"] for config in configs] == [
        f"ladder-{name}" for name in ("baseline", "workers", "threads", "resident", "amp", "compiled")
    ]
    assert loaders == ["DataLoader", "DataLoader", "Threads", "Memory", "Memory", "Memory"]
    assert [config["loader"].get("workers") for config in configs[:2]] == [1, 2]
    assert [config["loader"]["steps_per_execution"] for config in configs] == [64] * 6  # losses are read as often
    assert [config["precision"]["name"] for config in configs] == ["fp32"] * 4 + ["mixed"] * 2
    assert [config["backend"]["compile"] for config in configs] == [False] * 5 + [True]
    same = ("model", "dataset", "optimizer", "training", "seed")
    assert all([config[key] for key in same] == [configs[0][key] for key in same] for config in configs)
    assert {config["stage"]["_target_"] for config in configs} == {"pipeline.stages.train.Train"}
    assert len({status(run).pid for run in rungs(place)}) == 6
    spans = [(status(run).started, status(run).ended or 0.0) for run in rungs(place)]
    assert all(before[1] <= after[0] for before, after in pairwise(spans)), "two at once"


@pytest.mark.wide
def test_page_locked_memory_is_left_out_on_a_cpu_and_noted(climbed: Done, place: Path) -> None:
    assert "impossible here: rung=transfer: loader.pin_memory=true on cpu: " in climbed.stderr
    assert [row["state"] for row in table(ladder_of(place), "tables/cells.csv")] == ["done", "skipped", *["done"] * 5]
    assert read_config(rungs(place)[1])["loader"]["pin_memory"] is False
    assert "skipped: loader.pin_memory=true on cpu" in climbed.stdout


@pytest.mark.wide
def test_its_figures_are_those_of_the_rungs(climbed: Done, place: Path) -> None:
    assert climbed.returncode == 0
    outcome = table(ladder_of(place), "ladder.csv")
    seconds = [receipt(run)["training_s"] for run in rungs(place)]
    assert [float(row["training_s"]) for row in outcome] == seconds
    gains = [float(row["gain"]) for row in outcome]
    assert gains == pytest.approx([1.0, *(a / b for a, b in pairwise(seconds))])
    assert [float(row["gain_in_total"]) for row in outcome] == pytest.approx([seconds[0] / each for each in seconds])
    assert [float(row["wall_time_s"]) for row in outcome] == [receipt(run)["wall_time_s"] for run in rungs(place)]
    assert all(
        float(row["process_bytes"]) == receipt(run)["peak_memory"]["process_bytes"]
        for row, run in zip(outcome, rungs(place), strict=True)
    )
    results = [json.loads((run / "result.json").read_text())["scalars"] for run in rungs(place)]
    assert [float(row["test_accuracy"]) for row in outcome] == [result["test/accuracy"] for result in results]
    # The order of the images is the seed's whatever the loader: the first four rungs train the very same net.
    assert len({receipt(run)["weights_sha256"] for run in rungs(place)[:4]}) == 1
    whole = json.loads((ladder_of(place) / "result.json").read_text())["scalars"]
    assert whole["gain"] == pytest.approx(seconds[0] / seconds[-1])
    assert whole["amp/images_per_s"] == results[4]["images_per_s"]


@pytest.mark.wide
def test_the_table_has_the_source_beside_it(climbed: Done, place: Path) -> None:
    lines = climbed.stdout.splitlines()
    heads = next(line for line in lines if line.startswith("rung"))
    assert heads.split()[-2:] == ["source", "s"]
    assert (
        "source s: seconds of training that the source reports (an A100, MNIST, 10 epochs)"
        in climbed.stderr.splitlines()
    )
    shown = {line.split()[0]: line.split() for line in lines[lines.index(heads) + 1 :] if line.strip()}
    assert (shown["baseline"][-1], shown["amp"][-1]) == ("113", "85")
    result = {row["name"]: row for row in table(ladder_of(place), "ladder.csv")}
    assert shown["resident"][1] == digits(float(result["resident"]["training_s"]))
    assert shown["resident"][4:6] == [f"{float(result['resident'][key]):.2f}x" for key in ("gain", "gain_in_total")]
    assert "s of compiling, in wall s only" in climbed.stdout
    assert (ladder_of(place) / "artifacts" / "ladder.png").stat().st_size > 5000


@pytest.mark.wide
def test_mlflow_has_the_rungs_below_the_ladder(climbed: Done, place: Path) -> None:
    from mlflow import MlflowClient

    assert climbed.returncode == 0
    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    experiment = client.get_experiment_by_name("pipeline")
    assert experiment is not None
    listed = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(listed) == {run.name for run in runs(place)}
    parent = listed[ladder_of(place).name]
    assert parent.data.metrics["result/gain"] > 0
    for run in rungs(place):
        assert listed[run.name].data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert listed[run.name].info.status == "FINISHED"


@pytest.mark.wide
def test_a_rung_that_fails_costs_no_other(tmp_path: Path) -> None:
    result = pipeline(tmp_path, *SHORT, "stage.rungs.threads='loader=threads training.batch_size=5000'")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("failed: ")
    states = [row["state"] for row in table(ladder_of(tmp_path), "tables/cells.csv")]
    assert states == ["done", "skipped", "failed", "failed", "failed"]  # what a rung changes holds above it
    own = status(ladder_of(tmp_path))
    assert (own.state, own.error) == (
        "FAILED",
        "3 of 5 cells have no result: rung=threads, rung=resident, rung=amp",
    )
    assert [row["name"] for row in table(ladder_of(tmp_path), "ladder.csv")] == ["baseline"]
    assert "failed: training.batch_size=5000: larger than the 320 training examples" in result.stdout


@pytest.mark.wide
def test_recomputation_is_a_rung_of_models_that_have_it(tmp_path: Path) -> None:
    words = (
        *("stage=ladder", "model=gpt", "dataset=python_docs", "dataset.context=128", "model.width=64", "tracking=none"),
        *("training.batch_size=128", "training.steps=2", "training.validate_every=2", "schedule=cosine"),
        *("training.evaluation_batch_size=32", "optimizer=adamw"),
    )
    left = [f"~stage.rungs.{name}" for name in ("baseline", "transfer", "workers", "threads", "amp", "compiled")]
    result = pipeline(tmp_path, *words, *left)
    assert result.returncode == 0, result.stdout + result.stderr
    kept, recomputed = table(ladder_of(tmp_path), "ladder.csv")
    assert (kept["name"], recomputed["name"]) == ("resident", "recompute")
    assert float(recomputed["process_bytes"]) < float(kept["process_bytes"]) - 60 * 2**20
    assert recomputed["test_accuracy"] == kept["test_accuracy"]


def test_a_models_rung_is_changed_or_left_out_by_its_name() -> None:
    gpt, recomputing = (cast(Any, SimpleNamespace(model=Gpt(recompute=recompute))) for recompute in (False, True))
    rungs: dict[str, str | None] = {"amp": "precision=mixed"}
    assert list(Ladder(rungs=rungs).all_rungs(gpt)) == ["amp", "recompute"]
    assert list(Ladder(rungs=rungs).all_rungs(recomputing)) == ["amp"]
    assert list(Ladder(rungs={**rungs, "recompute": None}).all_rungs(gpt)) == ["amp"]
    changed = {**rungs, "recompute": "model.layers=2"}
    assert Ladder(rungs=changed).all_rungs(gpt) == changed
    with pytest.raises(ValueError, match=r"rungs={'amp': None}: a ladder has at least one rung"):
        Ladder(rungs={"amp": None})


def test_a_rung_of_another_precision_keeps_what_is_set_beside_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rung's precision took the whole group's place: an observed dtype that had been let pass failed the rung."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    found: list[dict[str, Any]] = []

    def check(config: Any, _: Sequence[str]) -> int:
        experiment = load_checked(config)
        found.extend(one.config["precision"] for one in experiment.stage.kinds(experiment))
        return 0

    three = ("stage.rungs.amp='precision=mixed_bf16'", "+stage.rungs.scaled='precision=mixed_fp16'")
    own = "+stage.rungs.own='precision=mixed_fp16 precision.strict=true precision.initial_scale=2.0'"
    set_for_all = ("precision=mixed_fp16", "precision.initial_scale=8.0", "precision.strict=false")
    composed([*SHORT, *(f"~stage.rungs.{name}" for name in LOADING), *three, own, *set_for_all], check)
    assert [(one["name"], one["strict"], one.get("initial_scale")) for one in found] == [
        *(("mixed_fp16", False, 8.0), ("mixed_bf16", False, None)),
        *(("mixed_fp16", False, 8.0), ("mixed_fp16", True, 2.0)),
    ]


@pytest.mark.wide
def test_ctrl_c_stops_the_ladder_and_its_rung(tmp_path: Path) -> None:
    words = ("stage=ladder", "dataset=digits", "training.epochs=1000000", "tracking=none", "model=linear")
    begun = subprocess.Popen(
        [*COMMAND, *words], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True, process_group=0
    )
    with begun as process:
        end = time.monotonic() + 600
        while not any(list(read_metrics(run)) for run in rungs(tmp_path)):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert err.count("stopped by SIGINT") == 1 and "Traceback" not in err
    # A rung may hear the terminal's signal or that of its ladder first.
    assert ("1 failed" in err or "1 killed" in err) and err.rstrip().splitlines()[-2].endswith(
        "; the same command runs all cells again, resuming those that left a checkpoint"
    ), err
    assert [status(run).state for run in runs(tmp_path)] == ["KILLED", "KILLED"]


def test_a_profiled_ladder_is_refused_by_the_profilers_key_and_says_what_to_profile(tmp_path: Path) -> None:
    """The message began with the first rung's key, which is right."""
    assert refused(tmp_path, "experiment=amp_ladder", "profiler=torch") == (
        "profiler=torch with stage=ladder: this stage compares times; profile each rung as a single training by its "
        "words (baseline: loader=dataloader loader.workers=1), as docs/ladder.md shows"
    )


@pytest.mark.wide
def test_a_ladder_with_a_mistake_writes_nothing(tmp_path: Path) -> None:
    ladder = ("stage=ladder", "dataset=digits", "tracking=none")
    said = refused(tmp_path, *ladder, "stage.rungs.amp='precision=mixd'")
    assert said.startswith("stage.rungs.amp='precision=mixd': precision=mixd: no such choice (did you mean mixed?)")
    assert refused(tmp_path, *ladder, "stage.rungs.amp='sed=1'").startswith(
        "stage.rungs.amp='sed=1': sed: no such key (did you mean seed?); choose from "
    )
    assert refused(tmp_path, *ladder, "stage.rungs.amp='training.epochs=-1'").endswith("(cell 6: rung=amp)")
    assert refused(tmp_path, *ladder, "stage.rungs.amp='seed=1,2'").startswith(
        "stage.rungs.amp='seed=1,2': seed=1,2: several values; "
    )
    assert refused(tmp_path, *ladder, "+stage.rungs.more='output_dir=x'").endswith(
        "output_dir: this key is shared by the stage and all of its cells; set it for the stage"
    )
    assert refused(tmp_path, *ladder, '+stage.rungs.more="loader=memory \'a"').endswith(
        "loader=memory 'a: not overrides as on the command line (No closing quotation)"
    )
    assert refused(tmp_path, *ladder, "stage.rungs={}") == (
        "stage.rungs={}: an empty mapping changes nothing; ~stage.rungs.NAME removes an entry"
    )
    assert refused(tmp_path, *ladder, "+stage.source_s.ampp=3").startswith(
        "stage.source_s=ampp: no such choice (did you mean amp?)"
    )
    assert refused(tmp_path, *ladder, "loader=threads") == (
        "loader: set for every cell by stage.rungs.baseline='loader=dataloader loader.workers=1'; set it there"
    )
    assert refused(tmp_path, *ladder, "training.patience=2").startswith(
        "training.patience=2 with stage=ladder: could end each rung after another number of steps, and they are "
    )
    assert refused(tmp_path, *ladder, "training.max_time=3").startswith(
        "training.max_time=3.0 with stage=ladder: could"
    )
    assert refused(tmp_path, *ladder, "stage.rungs.amp='training.steps=7'").endswith(
        "and they train for 10 epochs and 224 examples; give each training.epochs alone"
    )
    assert refused(tmp_path, *ladder, "stage.rungs.amp='dataset.train_size=300'") == (
        "stage=ladder: its rungs are compared by the time of the same training, and dataset.train_size differs between "
        "them; set it for all"
    )
    none = [f"~stage.rungs.{name}" for name in ("workers", "threads", "resident", "amp", "compiled", "transfer")]
    assert refused(tmp_path, *ladder, *none, "stage.rungs.baseline='precision=tf32'").startswith(
        "the grid's one cell cannot run here: precision=tf32 with backend=torch on cpu: "
    )


def test_trainings_that_are_mostly_their_start_are_named(tmp_path: Path) -> None:
    """On an H200 a captured step had 13 times the rate, and a gain of 0.54 in two epochs."""
    lines = [
        json.dumps({"step": n, "time": 0.0, "metrics": {"epoch/images_per_s": rate}})
        for n, rate in enumerate((100, 900))
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    rate = Metric("images_per_s", 900.0, "images/s", "time", "max")
    seconds = at_rate(3.0, rate, tmp_path)
    assert seconds == pytest.approx(0.6)  # 2 of 9 + 1 parts
    assert at_rate(3.0, rate, tmp_path / "none") is None
    rungs = [
        Rung(
            name=name, training_s=3.0, rate=rate, wall_time_s=5.0, gain=1.0, gain_in_total=1.0, score=rate,
            process_bytes=1.0, device_bytes=None, compile_s=None, at_its_rate_s=at_its_rate,
        )
        for name, at_its_rate in (("baseline", 2.7), ("compiled", seconds), ("short", None))
    ]  # fmt: skip
    assert dict(notes([], rungs[:2]))["train s"] == (
        "the start (first steps, libraries, a capture) is more than half of it at compiled (0.60 s at its rate); "
        "a longer training shows what they gain"
    )
    assert "train s" not in dict(notes([], rungs[:1]))
    assert dict(notes([], rungs))["train s"].startswith("of one epoch, the start (")
    said = dict(notes([], rungs[:2]))
    assert said["images/s"] == (
        "the median without the first epoch, which starts cold; train s and gain are of the whole training"
    )
    assert said["gain"].startswith("of one run a rung (n=1), without a spread")
    assert "images/s" not in dict(notes([], rungs[2:])) and "gain" not in dict(notes([], rungs[2:]))


def test_a_short_training_has_its_digits() -> None:
    """A rung of 4 ms took 0.00 s."""
    rate = Metric("images_per_s", 100.0, "images/s")
    rung = Rung(
        name="baseline", training_s=0.0042, rate=rate, wall_time_s=5.0, gain=1.0, gain_in_total=1.0, score=rate,
        process_bytes=1.0, device_bytes=None, compile_s=None, at_its_rate_s=None,
    )  # fmt: skip
    entries: Any = [SimpleNamespace(cell=SimpleNamespace(swept={"rung": "baseline"}), state="done")]
    shown = grid(entries, [rung], cast(Ladder, SimpleNamespace(source_s={})))
    assert dict(zip(shown.columns, shown.rows[0], strict=True))["train s"] == "0.0042"


def test_a_gain_over_a_rung_without_a_result_says_what_is_in_it() -> None:
    """A rung stands on what the failed ones below it change, and its gain is over the last one that has a result."""
    states = {"baseline": "done", "transfer": "skipped", "amp": "failed", "resident": "failed", "compiled": "done"}
    entries: Any = [
        SimpleNamespace(cell=SimpleNamespace(swept={"rung": name}, experiment=None), state=state, reason="it raised")
        for name, state in states.items()
    ]
    assert dict(notes(entries, []))["gain of compiled"] == (
        "over baseline, including what amp and resident change, which have no result"
    )
    entries[2].state = entries[3].state = "skipped"  # what a skipped one changes is in none above it
    assert "gain of compiled" not in dict(notes(entries, []))


@pytest.mark.parametrize(
    ("direction", "first", "last", "worse"),
    [
        *(("max", 0.85, 0.07, True), ("max", 0.85, 0.8, False), ("min", 0.85, 1.0, True)),
        *(("max", -0.5, -0.5, False), ("max", -0.5, -0.6, True), ("min", 0.85, 0.1, False)),
    ],
)
def test_a_rung_that_learns_less_is_named(direction: Any, first: float, last: float, worse: bool) -> None:
    """A rung of 6.4 times the speed had 0.07 of accuracy in place of 0.85, and the ladder's gain was that."""
    rate, rungs = Metric("images_per_s", 100.0, "images/s"), []
    for name, value in (("baseline", first), ("ruined", last)):
        score = Metric("test/score", value, direction=direction)
        rungs.append(
            Rung(
                name=name, training_s=3.0, rate=rate, wall_time_s=5.0, gain=1.0, gain_in_total=1.0, score=score,
                process_bytes=1.0, device_bytes=None, compile_s=None, at_its_rate_s=2.7,
            )
        )  # fmt: skip
    said = f"worse than the first rung's {first:.4f} by more than a tenth at ruined ({last:.4f}): "
    assert dict(notes([], rungs)).get("test score", "").startswith(said) is worse
    assert ("test score" in dict(notes([], rungs))) is worse
