"""hydra/sweeper=optuna: the space, what is asked and told, pruning, resuming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import TORCH_THEN_WIDE, pipeline, refused, status
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from test_sweep import trained

from pipeline import journal as journals
from pipeline.sweep import space

OPTUNA = ("-m", "hydra/sweeper=optuna", "dataset=digits", "model=mlp", "training.batch_size=64", "tracking=none")
SPACE = ("optimizer.learning_rate=tag(log,interval(1e-4,1e-1))", "model.units=[8],[64]", "optimizer=adam,sgd")


def study(folder: Path, name: str = "search") -> list[object]:
    from optuna import load_study
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(folder / "runs" / f"{name}.optuna")))
    return list(load_study(study_name=name, storage=storage).get_trials())


def session(folder: Path) -> Path:
    return sorted(path.parent for path in (folder / "runs").glob("*/status.json") if "-search-" in path.parent.name)[-1]


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_hyperband_prunes_in_every_backend_and_the_study_goes_on(backend: str, tmp_path: Path) -> None:
    words = (*OPTUNA, f"backend={backend}", *SPACE, "training.epochs=9", "hydra.sweeper.pruner=hyperband")
    told = pipeline(tmp_path, *words, "hydra.sweeper.trials=6")
    assert told.returncode == 0, told.stderr
    trials = study(tmp_path)
    states = [trial.state.name for trial in trials]  # type: ignore[attr-defined]
    assert len(trials) == 6 and set(states) == {"COMPLETE", "PRUNED"}
    pruned = [run for run in trained(tmp_path) if status(run).state == "PRUNED"]
    assert len(pruned) == states.count("PRUNED") > 0
    for run in pruned:
        epochs = [record for record in journals.read_metrics(run) if "epoch/number" in record.metrics]
        assert 1 <= len(epochs) < 9
        assert (status(run).error or "").startswith(f"pruned after epoch {len(epochs)}: validation/accuracy ")
    told = pipeline(tmp_path, *words, "hydra.sweeper.trials=8")
    assert told.returncode == 0, told.stderr
    assert "8 trials, 6 of them done before" in told.stderr
    assert len(study(tmp_path)) == 8
    best = max(trial.values[0] for trial in study(tmp_path) if trial.state.name == "COMPLETE")  # type: ignore[attr-defined]
    assert f"{best:.4f}" in told.stdout
    assert "epochs trained" in told.stderr


def test_values_are_those_of_the_runs(tmp_path: Path) -> None:
    words = (*OPTUNA, *SPACE, "training.epochs=2", "hydra.sweeper.trials=3", "hydra.sweeper.sampler=random")
    told = pipeline(
        tmp_path, *words, "hydra.sweeper.metric=test/loss", "hydra.sweeper.direction=minimize", "sweep.jobs=2"
    )
    assert told.returncode == 0, told.stderr
    losses = [json.loads((run / "result.json").read_text())["scalars"]["test/loss"] for run in trained(tmp_path)]
    assert sorted(trial.values[0] for trial in study(tmp_path)) == sorted(losses)  # type: ignore[attr-defined]
    result = json.loads((session(tmp_path) / "result.json").read_text())["scalars"]
    assert result == {"best/test/loss": min(losses)}
    assert (session(tmp_path) / "artifacts" / "trials.png").stat().st_size > 5000
    rows = [dict(line) for line in _csv(session(tmp_path) / "artifacts" / "trials.csv")]
    assert {row["state"] for row in rows} == {"done"} and len(rows) == 3


@pytest.mark.wide
def test_several_objectives(tmp_path: Path) -> None:
    metrics = ("hydra.sweeper.metric=[test/accuracy,images_per_s]", "hydra.sweeper.direction=[maximize,maximize]")
    told = pipeline(tmp_path, *OPTUNA, *metrics, "model.units=[8],[256]", "training.epochs=2", "hydra.sweeper.trials=3")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("trials that no other beats in every metric")
    assert all(len(trial.values) == 2 for trial in study(tmp_path))  # type: ignore[attr-defined]


def test_a_point_that_has_run_is_not_run_again(tmp_path: Path) -> None:
    words = (
        *OPTUNA,
        "optimizer=adam,sgd",
        "training.epochs=1",
        "hydra.sweeper.trials=6",
        "hydra.sweeper.sampler=random",
    )
    told = pipeline(tmp_path, *words)
    assert told.returncode == 0, told.stderr
    assert len(study(tmp_path)) == 6
    assert len(trained(tmp_path)) <= 4  # two points; those that ran at the same time may have run twice


def test_mistakes(tmp_path: Path) -> None:
    assert refused(tmp_path, *OPTUNA).startswith("hydra/sweeper=optuna: nothing to search; ")
    one = (*OPTUNA, "optimizer=adam,sgd")
    assert refused(tmp_path, *one, "hydra.sweeper.pruner=best").startswith("hydra.sweeper.pruner='best': should be ")
    assert refused(tmp_path, *one, "hydra.sweeper.direction=[maximize,minimize]").endswith(
        "give one for each of the 1 metrics"
    )
    assert refused(tmp_path, *one, "training.epochs=-1").startswith("training.epochs=-1: ")
    assert refused(tmp_path, "-m", "training.epochs=interval(1,5)").startswith(
        "training.epochs=interval(1,5): an interval"
    )
    told = pipeline(tmp_path, *one, "training.epochs=1", "hydra.sweeper.metric=test/beauty")
    assert told.returncode == 2
    assert "hydra.sweeper.metric=test/beauty: a run has no such figure; choose from " in told.stderr


@given(low=st.floats(1e-6, 1.0), width=st.floats(1e-3, 1e3), log=st.booleans())
def test_an_interval_is_its_distribution(low: float, width: float, log: bool) -> None:
    text = f"interval({low!r},{low + width!r})"
    (override,) = OverridesParser.create().parse_overrides([f"key={f'tag(log,{text})' if log else text}"])
    found = space.distribution(override)
    assert (found.low, found.high, found.log) == (low, low + width, log)  # type: ignore[attr-defined]


@given(start=st.integers(-50, 50), count=st.integers(1, 30), step=st.integers(1, 7))
def test_a_range_is_its_values(start: int, count: int, step: int) -> None:
    values = list(range(start, start + count, step))
    (override,) = OverridesParser.create().parse_overrides([f"key=range({start},{start + count},{step})"])
    found = space.distribution(override)
    assert (found.low, found.high, found.step) == (values[0], values[-1], step)  # type: ignore[attr-defined]


def _csv(path: Path) -> list[dict[str, str]]:
    import csv

    with path.open() as file:
        return list(csv.DictReader(file))
