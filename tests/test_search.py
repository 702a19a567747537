"""hydra/sweeper=optuna: the space, what is proposed and reported, pruning, resuming."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command import TORCH_THEN_WIDE, done, environment, message, pipeline, refused, status, write_files
from filelock import FileLock
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from test_sweep import trained

from pipeline.errors import UserError
from pipeline.runs.journal import Journal
from pipeline.runs.listing import listed
from pipeline.runs.records import read_metrics
from pipeline.runs.result import Metric, Result
from pipeline.sweep import search_claim, search_report, search_study, space
from pipeline.sweep.search_checks import check_comparable
from pipeline.sweep.search_metric import value_of
from pipeline.sweep.search_settings import Search
from pipeline.sweep.search_study import samplers

OPTUNA = ("-m", "hydra/sweeper=optuna", "dataset=digits", "model=mlp", "training.batch_size=64", "tracking=none")
SPACE = ("optimizer.learning_rate=tag(log,interval(1e-4,1e-1))", "model.units=[8],[64]", "optimizer=adam,sgd")


def opened(folder: Path, name: str = "search") -> Any:
    from optuna import load_study
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(folder / "runs" / f"{name}.optuna")))
    return load_study(study_name=name, storage=storage)


def study(folder: Path, name: str = "search") -> list[Any]:
    return list(opened(folder, name).get_trials())


def session(folder: Path) -> Path:
    return sorted(path.parent for path in (folder / "runs").glob("*/status.json") if "-search-" in path.parent.name)[-1]


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_hyperband_prunes_in_every_backend_and_the_study_goes_on(backend: str, tmp_path: Path) -> None:
    words = (
        *(*OPTUNA, f"backend={backend}", *SPACE, "training.epochs=9", "training.checkpoint.every=1"),
        "hydra.sweeper.pruner=hyperband",
    )
    result = pipeline(tmp_path, *words, "hydra.sweeper.trials=6")
    assert result.returncode == 0, result.stderr
    trials = study(tmp_path)
    states = [trial.state.name for trial in trials]
    assert len(trials) == 6 and set(states) == {"COMPLETE", "PRUNED"}
    pruned = [run for run in trained(tmp_path) if status(run).state == "PRUNED"]
    assert len(pruned) == states.count("PRUNED") > 0
    for run in pruned:
        epochs = [record for record in read_metrics(run) if "epoch/number" in record.metrics]
        assert 1 <= len(epochs) < 9
        assert (status(run).error or "").startswith(f"pruned after epoch {len(epochs)}: validation/accuracy ")
        assert not (run / "checkpoints").exists()
    result = pipeline(tmp_path, *words, "hydra.sweeper.trials=8")
    assert result.returncode == 0, result.stderr
    assert "8 trials, 6 of them done before" in result.stderr
    assert len(study(tmp_path)) == 8
    best = max(trial.values[0] for trial in study(tmp_path) if trial.state.name == "COMPLETE")
    assert f"{best:.4f}" in result.stdout
    assert "epochs trained" in result.stderr
    assert " of 2 trials cut short" in result.stderr


@pytest.mark.wide
def test_values_are_those_of_the_runs(tmp_path: Path) -> None:
    words = (*OPTUNA, *SPACE, "training.epochs=2", "hydra.sweeper.trials=3", "hydra.sweeper.sampler=random")
    outcome = pipeline(tmp_path, *words, "hydra.sweeper.metric=test/loss", "sweep.jobs=2")
    assert outcome.returncode == 0, outcome.stderr
    losses = [json.loads((run / "result.json").read_text())["scalars"]["test/loss"] for run in trained(tmp_path)]
    assert sorted(trial.values[0] for trial in study(tmp_path)) == sorted(losses)
    result = json.loads((session(tmp_path) / "result.json").read_text())["scalars"]
    assert result == {"best/test/loss": min(losses)}
    assert (session(tmp_path) / "artifacts" / "trials.png").stat().st_size > 5000
    rows = [dict(line) for line in _csv(session(tmp_path) / "artifacts" / "trials.csv")]
    assert {row["state"] for row in rows} == {"done"} and len(rows) == 3


@pytest.mark.wide
def test_several_objectives(tmp_path: Path) -> None:
    metrics = ("hydra.sweeper.metric=[test/accuracy,images_per_s]", "hydra.sweeper.direction=[maximize,maximize]")
    result = pipeline(
        tmp_path, *OPTUNA, *metrics, "model.units=[8],[256]", "training.epochs=2", "hydra.sweeper.trials=3"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("trials that no other beats in every metric")
    assert [len(trial.values) for trial in study(tmp_path)] == [2, 2]  # of as many points


@pytest.mark.wide
def test_a_point_is_proposed_when_all_before_it_are_known(tmp_path: Path) -> None:
    """One at a time, a trial's point was drawn while the one before it ran, from a result less."""
    words = (*OPTUNA, SPACE[0], "training.epochs=1", "hydra.sweeper.trials=3", "sweep.jobs=1")
    result = pipeline(tmp_path, *words)
    assert result.returncode == 0, result.stderr
    trials = study(tmp_path)
    assert len(trials) == 3
    assert all(before.datetime_complete <= after.datetime_start for before, after in pairwise(trials))


@pytest.mark.wide
def test_a_trial_without_a_pruner_has_its_curve_for_a_later_one(tmp_path: Path) -> None:
    """The first trial under a pruner was held against none of those before, the next one against that one alone."""
    words = (*OPTUNA, "optimizer=adam,sgd", "training.epochs=2", "hydra.sweeper.trials=1")
    assert pipeline(tmp_path, *words).returncode == 0
    (trial,) = study(tmp_path)
    (run,) = trained(tmp_path)
    records = [record.metrics for record in read_metrics(run)]
    logged = [record["validation/accuracy"] for record in records if "validation/accuracy" in record]
    assert trial.intermediate_values == dict(enumerate(logged, start=1))


@pytest.mark.wide
def test_points_at_which_nothing_runs_do_not_end_a_search(tmp_path: Path) -> None:
    words = ("optimizer=sgd,adam", "optimizer.momentum=interval(0.0,0.9)", "training.epochs=1")
    result = pipeline(tmp_path, *OPTUNA, *words, "hydra.sweeper.trials=5", "hydra.sweeper.seed=3")
    assert "gave up" not in result.stderr, result.stderr
    states = [trial.state.name for trial in study(tmp_path)]
    assert states[:3] == ["FAIL"] * 3 and "COMPLETE" in states[3:]


@pytest.mark.wide
@pytest.mark.parametrize("same", [True, False])
def test_a_trial_that_ended_when_its_search_was_gone_is_not_lost(same: bool, tmp_path: Path) -> None:
    """It was killed when a run had finished and its study did not know; a cluster's jobs outlive their search, too. The
    next command trained at another point, and the run's value was in no ranking. A run of other code is not taken: its
    point is trained again."""
    words = (*OPTUNA, SPACE[0], "training.epochs=1", "hydra.sweeper.trials=2")
    first = pipeline(tmp_path, *words)
    assert first.returncode == 0, first.stderr
    journal = tmp_path / "runs" / "search.optuna"
    lines = journal.read_text().splitlines(keepends=True)
    ends = {"trial_id": 1, "state": 1}.items()
    journal.write_text("".join(lines[: next(at for at, line in enumerate(lines) if ends <= json.loads(line).items())]))
    assert [trial.state.name for trial in study(tmp_path)] == ["COMPLETE", "RUNNING"]
    receipt = trained(tmp_path)[1] / "receipt.json"
    if not same:
        receipt.write_text(json.dumps({**json.loads(receipt.read_text()), "code_sha256": "another"}))
    again = pipeline(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    runs = [run for run in trained(tmp_path) if (run / "receipt.json").exists()]
    trials = study(tmp_path)
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert trials[2].params == trials[1].params
    assert len(runs) == (2 if same else 3)
    if not same:
        return
    assert opened(tmp_path).user_attrs["run 2"] == runs[1].name
    third = pipeline(tmp_path, *words)
    assert "study search: 2 trials, 2 of them done before" in third.stderr
    assert len(study(tmp_path)) == 3


@pytest.mark.wide
def test_a_point_that_has_run_is_not_run_again(tmp_path: Path) -> None:
    words = (
        *OPTUNA,
        "optimizer=adam,sgd",
        "training.epochs=1",
        "hydra.sweeper.trials=6",
        "hydra.sweeper.sampler=random",
        "sweep.jobs=2",
    )
    result = pipeline(tmp_path, *words)
    assert result.returncode == 0, result.stderr
    assert sorted(trial.params["optimizer"] for trial in study(tmp_path)) == ["adam", "sgd"]
    assert len(trained(tmp_path)) == 2
    assert "the space has 2 points, 0 of them tried: the search ends when all are\n" in result.stderr
    assert "2 done · 0 failed · 0 skipped · 0 running · 0 waiting" in result.stderr
    assert result.stdout.startswith("the best of 2 finished trials\n")
    assert "validation/accuracy 0." in result.stderr and "test/" not in result.stderr  # the test images stay unseen
    rows = [dict(line) for line in _csv(session(tmp_path) / "artifacts" / "trials.csv")]
    assert [row["state"] for row in rows] == ["done"] * 2
    other = pipeline(tmp_path, *words, "hydra.sweeper.study=other")
    assert other.stderr.count("(run before as ") == 2, other.stderr
    assert "2 points, 2 of them tried" in pipeline(tmp_path, *words).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("seed=0,1",), "seed: no seed is the best one; leave it out of the space"),
        (("++seed=0,1",), "++seed: no seed is the best one; leave it out of the space"),
        (("dataset.validation=10,100",), "dataset.validation: each trial would be judged by other examples"),
        (
            ("loss.label_smoothing=0.0,0.3", "hydra.sweeper.metric=validation/loss"),
            "loss.label_smoothing: validation/loss would be of another loss in each trial; give another hydra.sweeper",
        ),
        (
            ("optimizer.learning_rate=interval(0.1,1600)",),
            "optimizer.learning_rate=1600.0: should be less than or equal",
        ),
        (("optimizer=adam,foo",), "optimizer=foo: no such choice"),
        (("optimizer.learning_rate=0.1,2000",), "optimizer.learning_rate=2000: should be less than or equal to 1000"),
    ],
)
def test_a_space_whose_trials_cannot_be_ranked_or_run_is_refused(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """Seeds, losses and validation examples had a best one, and an end, or a choice, that cannot run showed after
    hours."""
    assert said in refused(tmp_path, *OPTUNA, *words)
    assert not list(tmp_path.rglob("*.optuna"))


@pytest.mark.wide
def test_a_point_at_which_nothing_can_run_loses_no_other(tmp_path: Path) -> None:
    """It ended the search: what ran was killed, and nothing was kept of what had run. Each value is right by itself."""
    words = ("optimizer=sgd,adam", "optimizer.momentum=0.9,0.9", "hydra.sweeper.trials=2", "training.epochs=1")
    result = pipeline(tmp_path, *OPTUNA, *words)
    assert result.returncode == 1, result.stderr
    assert "optimizer.momentum: no such key" in result.stderr
    assert "1 done · 1 failed · 0 skipped · 0 running · 0 waiting" in result.stderr
    assert sorted(trial.state.name for trial in study(tmp_path)) == ["COMPLETE", "FAIL"]
    assert json.loads((session(tmp_path) / "result.json").read_text())["scalars"].keys() == {"best/validation/accuracy"}
    assert "the best of 1 finished trials" in result.stdout


@pytest.mark.wide
def test_a_choice_that_is_right_beside_some_of_the_others_is_not_refused(tmp_path: Path) -> None:
    """`optimizer.nesterov=true` is a mistake beside the first momentum, and by itself."""
    words = ("optimizer=sgd", "optimizer.momentum=0.0,0.9", "optimizer.nesterov=false,true")
    result = pipeline(tmp_path, *OPTUNA, *words, "hydra.sweeper.trials=1", "training.epochs=1")
    assert "no run" not in result.stderr and study(tmp_path), result.stderr
    assert result.returncode in (0, 1), result.stderr  # 1: the one trial was at the combination that is a mistake


@pytest.mark.wide
def test_what_has_run_runs_again_where_that_is_asked_for(tmp_path: Path) -> None:
    words = ("optimizer.learning_rate=0.1,0.2", "hydra.sweeper.trials=2", "training.epochs=1")
    assert pipeline(tmp_path, *OPTUNA, *words).returncode == 0
    again = pipeline(tmp_path, *OPTUNA, *words, "hydra.sweeper.study=other", "sweep.retry=all")
    assert again.returncode == 0 and "run before as" not in again.stderr
    assert len(trained(tmp_path)) == 4
    cells = pipeline(tmp_path, *(word for word in OPTUNA if "sweeper" not in word), *words[::2], "sweep.dry_run=true")
    assert "2 finished before" in cells.stdout


@pytest.mark.wide
def test_without_a_metric_the_tasks_score_judges(tmp_path: Path) -> None:
    """A regression has no accuracy; and finished trials stay, whatever is to be run again."""
    words = (
        "-m",
        "hydra/sweeper=optuna",
        "experiment=diabetes",
        "training.epochs=2",
        "optimizer.learning_rate=0.1,0.2",
    )
    result = pipeline(tmp_path, *words, "hydra.sweeper.trials=2", "loss=squared_error,huber")
    assert result.returncode == 0 and "validation/mean_absolute_error" in result.stdout, result.stderr
    again = pipeline(tmp_path, *words, "hydra.sweeper.trials=2", "loss=squared_error,huber", "sweep.retry=all")
    assert "sweep.retry=all: the trials of search that have finished stay" in again.stderr


@pytest.mark.wide
def test_evaluations_are_judged_by_what_they_measure(tmp_path: Path) -> None:
    """The message asked for a direction of a validation, and with one the first evaluation had no such metric."""
    runs = pipeline(tmp_path, *OPTUNA[:1], *OPTUNA[2:], "training.epochs=1", "seed=0,1")
    assert runs.returncode == 0, runs.stderr
    accuracies = {run.id: run.metrics["test/accuracy"] for run in listed(tmp_path / "runs") if "-grid-" not in run.id}
    words = (*OPTUNA[:2], "stage=evaluate", f"run={','.join(accuracies)}", "tracking=none", "hydra.sweeper.trials=2")
    said = refused(tmp_path, *words, "hydra.sweeper.metric=validation/accuracy")
    assert "hydra.sweeper.metric=validation/accuracy: no such choice (did you mean test/accuracy?)" in said
    found = pipeline(tmp_path, *words)
    assert found.returncode == 0, found.stderr
    best, accuracy = max(accuracies.items(), key=lambda one: one[1])
    title, heads, first, *_ = found.stdout.splitlines()
    assert title == "the best of 2 finished trials" and heads.split() == ["trial", "test/accuracy", "run"]
    assert first.split()[1:] == [f"{accuracy:.4f}", best]
    assert "the trials are ranked by test/accuracy, so chosen on the test data" in found.stderr


@pytest.mark.parametrize(
    ("stage", "metric"),
    [("matmul", "best/rate"), ("graph", "largest_difference"), ("transformer", "validation/accuracy")],
)
def test_a_stage_without_a_validation_is_judged_by_its_headline(stage: str, metric: str, tmp_path: Path) -> None:
    """A direction was asked for of a validation that such a stage never measures."""
    said = refused(tmp_path, *OPTUNA[:2], f"stage={stage}", "seed=0,1")
    assert said.startswith(f"hydra.sweeper.metric={metric}: nothing declares before the first trial")


def a_study(folder: Path, values: dict[str, tuple[float, dict[str, Any] | None]]) -> Any:
    """A study in memory of finished trials: run -> its value, and its receipt where the run is there."""
    from optuna import create_study
    from optuna.distributions import IntDistribution
    from optuna.trial import create_trial

    made = create_study(direction="minimize")
    for number, (run, (value, receipt)) in enumerate(values.items()):
        searched: space.Space = {"width": IntDistribution(0, 9)}
        made.add_trial(create_trial(value=value, params={"width": number}, distributions=searched))
        made.set_user_attr(f"run {number}", run)
        if receipt is not None:
            (folder / run).mkdir()
            (folder / run / "receipt.json").write_text(json.dumps(receipt))
    return made


def test_small_values_keep_their_digits(tmp_path: Path) -> None:
    """Errors of a millionth were all 0.0000."""
    found = a_study(tmp_path, {"a": (1.4e-6, {}), "b": (5.2e-6, {})})
    (table,) = search_report.best_trials(found, Search(metric="test/relative_l2", direction="minimize"))
    assert [row[1] for row in table.rows] == ["1.4e-06", "5.2e-06"]


def test_pruning_has_saved_what_it_cut_short_in_this_command() -> None:
    """A trial that stopped early by itself counted as saved, and one whose run there was before as trained."""
    from optuna import create_study
    from optuna.trial import TrialState, create_trial

    made = create_study(direction="minimize")
    complete, pruned = TrialState.COMPLETE, TrialState.PRUNED
    for state, epochs in ((pruned, 1), (complete, 0), (complete, 2), (pruned, 5), (complete, 20)):
        values = dict.fromkeys(range(1, epochs + 1), 1.0)
        value = 1.0 if state == complete else None
        made.add_trial(create_trial(state=state, value=value, intermediate_values=values))
    said = search_report.saved_by_pruning(made, 20, {2, 3, 4})
    assert said == "pruning: 1 of 3 trials cut short (the median after epoch 5); 27 epochs trained, 15 saved (36%)"
    said = search_report.saved_by_pruning(made, 20, {2})
    assert said == "pruning: 0 of 1 trials cut short; 2 epochs trained, 0 saved (0%)"


def test_the_figure_has_whole_numbers_of_trials_and_says_how_many_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from optuna.trial import TrialState, create_trial

    drawn: list[Any] = []
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, _: drawn.append(self.figure))
    search, found = Search(metric="loss", direction="minimize"), a_study(tmp_path, {"a": (3.0, None), "b": (2.0, None)})
    search_report.draw(tmp_path / "trials.png", found, search)
    found.add_trial(create_trial(state=TrialState.PRUNED, intermediate_values={1: 4.0}))
    search_report.draw(tmp_path / "trials.png", found, search)
    before, after = (figure.axes[0] for figure in drawn)
    assert list(after.lines[0].get_xdata()) == [1, 2]
    assert all(tick == int(tick) for tick in after.get_xticks())
    assert before.get_title() == found.study_name
    assert after.get_title() == f"{found.study_name}: 2 finished trials; not drawn: 1 cut short"


def test_runs_that_are_gone_and_trials_of_other_examples_are_noted(tmp_path: Path) -> None:
    search = Search(metric="validation/loss", direction="minimize")
    alike = {"held_out": {"validation": "a", "test": "t"}}
    found = a_study(tmp_path, {"a": (1.0, alike), "b": (2.0, alike), "c": (3.0, None)})
    assert search_report.notes(found, search, tmp_path) == [
        "trial 3: the run was deleted, and the study alone has its value"
    ]
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "receipt.json").write_text(json.dumps({"held_out": {"validation": "b", "test": "t"}}))
    assert search_report.notes(found, search, tmp_path) == [
        "validation/loss is of 2 different sets of examples: the trials cannot be compared by it"
    ]


@pytest.mark.wide
def test_another_question_is_another_study(tmp_path: Path) -> None:
    words = (*OPTUNA, "optimizer=adam,sgd", "training.epochs=1")
    first = pipeline(tmp_path, *words, "hydra.sweeper.trials=2", "hydra.sweeper.sampler=random")
    assert first.returncode == 0, first.stderr
    more = pipeline(tmp_path, *words, "hydra.sweeper.trials=3", "sweep.jobs=1")
    assert "study search: 3 trials, 2 of them done before" in more.stderr, more.stderr
    for change, reason in (
        ("training.epochs=2", "training.epochs 1 -> 2"),
        ("model=linear", "model._target_ pipeline.models.mlp.Mlp -> pipeline.models.linear.Linear, model.units"),
        ("optimizer=adam,sgd,rmsprop", "the space of optimizer adam,sgd -> adam,sgd,rmsprop"),
        ("hydra.sweeper.metric=test/accuracy", "metric ['validation/accuracy'] -> ['test/accuracy']"),
    ):
        key = change.partition("=")[0]
        kept = [word for word in words if not word.startswith(f"{key}=")]
        said = message(pipeline(tmp_path, *kept, change, "hydra.sweeper.study=search"))
        assert said.startswith(f"hydra.sweeper.study=search: its trials had other settings ({reason}")
        assert said.endswith("hydra.sweeper.study=<another name> begins another")
    other = pipeline(tmp_path, *words, "hydra.sweeper.trials=1", "seed=1")
    assert other.returncode == 0, other.stderr
    assert "search was asked something else: seed 0 -> 1\nstudy search-2: 1 trials\n" in other.stderr
    assert other.stdout.startswith("the best of 1 finished trials")
    assert len(study(tmp_path)) == 2  # the space has no third point


@pytest.mark.wide
def test_trials_of_other_code_software_or_data_are_not_taken(tmp_path: Path) -> None:
    words = (*OPTUNA, "optimizer=adam,sgd", "training.epochs=1", "hydra.sweeper.trials=1", "hydra.sweeper.study=search")
    assert pipeline(tmp_path, *words).returncode == 0
    known = opened(tmp_path).user_attrs
    versions = known["asked"]["cells"]["first"]["receipt"]["versions"]
    (data,) = [name for name in known if name.startswith("data ")]
    for label, change, reason in (
        ("first", {"code_sha256": "0"}, "the code"),
        ("optimizer=sgd", {"code_sha256": "0"}, "the code"),
        (
            "first",
            {"versions": {**versions, "torch": "1.0"}},
            "torch 1.0",
        ),
        ("first", {"device": {"hardware": {"name": "an abacus"}}}, "the device (an abacus -> "),
    ):
        asked = json.loads(json.dumps(known["asked"]))
        asked["cells"][label]["receipt"] |= change
        opened(tmp_path).set_user_attr("asked", asked)
        assert f"had other settings ({reason}" in message(pipeline(tmp_path, *words))
    opened(tmp_path).set_user_attr("asked", known["asked"])
    opened(tmp_path).set_user_attr(data, "0")
    assert "had other settings (the data)" in message(pipeline(tmp_path, *words))
    opened(tmp_path).set_user_attr(data, known[data])
    assert pipeline(tmp_path, *words).returncode == 0


@pytest.mark.wide
def test_a_variable_with_another_value_is_another_question(tmp_path: Path) -> None:
    """The space's further choice of a class is compared too: it brings code that the first cell has not."""
    classes = ("pipeline.optimizers.adam.Adam", "pipeline.optimizers.adamw.AdamW")
    words: tuple[str, ...] = (*OPTUNA, f"optimizer._target_={','.join(classes)}", "model.activation=${oc.env:ACT}")
    words += ("training.epochs=1", "hydra.sweeper.trials=1", "hydra.sweeper.study=search")
    first = pipeline(tmp_path, *words, ACT="relu")
    assert first.returncode == 0, first.stderr
    said = message(pipeline(tmp_path, *words, ACT="tanh"))
    assert "had other settings (the value of model.activation ${oc.env:ACT})" in said
    asked = opened(tmp_path).user_attrs["asked"]
    other = f"optimizer._target_={classes[1]}"
    assert list(asked["cells"]) == ["first", other]
    asked["cells"][other]["receipt"]["code_sha256"] = "0"
    opened(tmp_path).set_user_attr("asked", asked)
    assert "had other settings (the code)" in message(pipeline(tmp_path, *words, ACT="relu"))


@pytest.mark.wide
def test_one_session_at_a_time_works_on_a_study(tmp_path: Path) -> None:
    words = (*OPTUNA, "optimizer=adam,sgd", "training.epochs=1")
    assert pipeline(tmp_path, *words, "hydra.sweeper.trials=1").returncode == 0
    trial = opened(tmp_path).ask()  # of the session that this process plays
    opened(tmp_path).set_user_attr("session", search_claim.this_process())
    with FileLock(tmp_path / "runs" / "search.claim"):
        said = message(pipeline(tmp_path, *words, "hydra.sweeper.trials=3"))
        assert said.startswith(
            f"hydra.sweeper.study=search: process {os.getpid()} on {socket.gethostname()} works on it"
        )
        assert study(tmp_path)[trial.number].state.name == "RUNNING"
    result = pipeline(tmp_path, *words, "hydra.sweeper.trials=2")
    assert result.returncode == 0, result.stderr
    assert study(tmp_path)[trial.number].state.name == "FAIL"  # it died: nobody holds the study


def test_every_key_of_every_trial_has_a_column() -> None:
    from optuna import create_study
    from optuna.distributions import IntDistribution

    made = create_study(direction="maximize")
    for value, key in ((0.5, "one"), (0.25, "++two")):
        made.tell(made.ask({key: IntDistribution(1, 1)}), value)
    written = io.StringIO()  # numbered from 1 on, as in trials.csv and in the ledger
    search_report.show(
        Console(file=written, width=80), made, Search(metric="validation/accuracy", direction="maximize")
    )
    assert [line.split() for line in written.getvalue().splitlines()[1:]] == [
        ["trial", "validation/accuracy", "one", "two"],
        ["1", "0.5000", "1"],
        ["2", "0.2500", "1"],
    ]


def proposed(sampler: Any, searched: space.Space, trials: int) -> list[tuple[Any, ...]]:
    """The points of a study's trials, of which the larger values are the better."""
    import optuna

    made = optuna.create_study(direction="maximize", sampler=sampler)
    for _ in range(trials):
        trial = made.ask(searched)
        made.tell(trial, sum(value for value in trial.params.values() if isinstance(value, int)))
    return [space.point_of(trial.params, searched) for trial in made.get_trials()]


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
@given(count=st.integers(1, 7), step=st.integers(1, 3), choices=st.integers(1, 3))
@settings(max_examples=5)
def test_no_point_of_a_discrete_space_comes_twice_while_others_are_left(
    sampler: str, count: int, step: int, choices: int
) -> None:
    import optuna

    from pipeline.sweep.search_sampler import Unrepeated

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    texts = [f"model.units=range(2,{2 + count * step},{step})", f"optimizer=choice({','.join('abc'[:choices])})"]
    parsed = OverridesParser.create().parse_overrides(texts)
    searched = {str(one.key_or_group): space.distribution(one) for one in parsed}
    every = space.size(searched)
    assert every == count * choices
    points = proposed(Unrepeated(samplers(0)[sampler](), searched, 0, 0), searched, every + 2)
    assert len(set(points[:every])) == every  # then any
    # What is proposed for the first time is the base's own point.
    assert points[0] == proposed(samplers(0)[sampler](), searched, 1)[0]


INTERVALS = {
    "tag(log,interval(0,1))": "both ends are whole numbers, so that whole numbers are searched, and a ",
    "tag(log,interval(0.0,1.0))": "a logarithmic scale begins above 0",
    "interval(1,0)": "begins above its end; write the lower number first",
    "range(5,1)": "no values",
}


@pytest.mark.parametrize("interval", INTERVALS)
def test_what_cannot_be_searched_says_why(interval: str) -> None:
    (override,) = OverridesParser.create().parse_overrides([f"model.dropout={interval}"])
    with pytest.raises(UserError) as caught:
        space.distribution(override)
    assert str(caught.value).startswith(f"model.dropout={interval}: {INTERVALS[interval]}")


def test_a_pruner_is_refused_trials_of_unlike_lengths(tmp_path: Path) -> None:
    assert refused(tmp_path, *OPTUNA, "training.epochs=1,6", "hydra.sweeper.pruner=median") == (
        "training.epochs with hydra.sweeper.pruner=median: trials of different lengths would be compared after the "
        "same number of validations; leave it out of the space, or use hydra.sweeper.pruner=none"
    )


@pytest.mark.parametrize("fixed", ["training.epochs=choice(2)", "seed=choice(3)", "dataset.validation=choice(90)"])
def test_a_key_of_one_value_is_not_searched(fixed: str) -> None:
    """Beside a searched `experiment` a fixed value becomes the one choice of each cell, and was refused as searched."""
    parsed = OverridesParser.create().parse_overrides([fixed, "experiment=a,b"])
    searched = {str(one.key_or_group): space.distribution(one) for one in parsed}
    check_comparable(searched, Search(metric="validation/accuracy", pruner="median"))


def test_mistakes(tmp_path: Path) -> None:
    assert refused(tmp_path, *OPTUNA).startswith("hydra/sweeper=optuna: nothing to search; ")
    one = (*OPTUNA, "optimizer=adam,sgd")
    two = ("hydra.sweeper.metric=[validation/loss,test/loss]", "hydra.sweeper.sampler=cmaes")
    assert refused(tmp_path, *one, *two) == (
        "hydra.sweeper.sampler=cmaes: seeks the best by one metric; give one, or sampler=tpe or sampler=random"
    )
    assert refused(tmp_path, *one, "hydra.sweeper.pruner=best").startswith("hydra.sweeper.pruner='best': should be ")
    assert refused(tmp_path, *one, "hydra.sweeper.direction=max") == (
        "hydra.sweeper.direction='max': should be 'maximize' or 'minimize'"
    )
    assert refused(tmp_path, *one, "hydra.sweeper.direction=[maximize,minimize]").endswith(
        "give one for each of the 1 metrics"
    )
    assert refused(tmp_path, *one, "sweep.best=test/loss") == (
        "sweep.best=test/loss: of a grid's table; a search is given hydra.sweeper.metric"
    )
    assert refused(tmp_path, *one, "training.steps=50", "hydra.sweeper.pruner=median") == (
        "hydra.sweeper.pruner=median: counts validations; give training.steps and training.validate_every together, or "
        "neither"
    )
    assert refused(tmp_path, *one, "training.epochs=-1").startswith("training.epochs=-1: ")
    assert refused(tmp_path, "-m", "training.epochs=interval(1,5)").startswith(
        "training.epochs=interval(1,5): an interval"
    )
    assert refused(tmp_path, *one, "hydra.sweeper.metric=test/acuracy") == (
        "hydra.sweeper.metric=test/acuracy: no such choice (did you mean test/accuracy?); choose from "
        "cell_peak_memory, device_peak_memory, examples_per_s, images_per_s, peak_memory, "
        "test/accuracy, test/loss, test/macro_f1, test/macro_precision, "
        "test/macro_recall, train/accuracy, "
        "train/gradient_norm, train/learning_rate, train/loss, validation/accuracy, validation/loss"
    )


@pytest.mark.parametrize("damage", [b"\x00\x00\n", b"{}\n", b"[]\n", b"\xff\n"])
def test_a_damaged_journal_of_a_study_is_one_message(tmp_path: Path, damage: bytes) -> None:
    def begin() -> None:
        search_study.begin_study(tmp_path, "search", ["maximize"], {"asked": 1, "session": 2})

    begin()
    file = tmp_path / "search.optuna"
    begins, *rest = file.read_bytes().splitlines(keepends=True)
    for lines in ([begins, damage, *rest], [begins, *rest, damage]):
        file.write_bytes(b"".join(lines))
        with pytest.raises(UserError) as caught:
            begin()
        assert str(caught.value).startswith(f"{file}: damaged (")
        assert str(caught.value).endswith("; hydra.sweeper.study=<another name> begins another")


def test_a_wait_for_the_lock_of_a_studys_journal_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended search made the others wait without a word."""
    from pipeline.sweep import search_journal

    file, said = tmp_path / "search.optuna", list[str]()
    other = FileLock(f"{file}.writing")
    journal = search_journal.Journal(file)

    def free(_: object, text: str) -> None:
        said.append(text)
        other.release()

    monkeypatch.setattr(search_journal, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(search_journal, "say", free)
    with other:
        journal.append_logs([{"op_code": 1}])
    journal.append_logs([{"op_code": 2}])
    assert [one["op_code"] for one in journal.read_logs(0)] == [1, 2]
    assert said == [f"waiting for another process that holds {file}; is one suspended (Ctrl-Z)?"]


def test_half_a_line_at_the_end_of_a_studys_journal_does_not_end_it(tmp_path: Path) -> None:
    """A full disk leaves it. The next line was written behind it, and no trial of the study could be read again."""

    def begin() -> None:
        search_study.begin_study(tmp_path, "search", ["maximize"], {"asked": 1, "session": 2})

    begin()
    study = search_study.study_in(tmp_path, "search")
    assert study is not None
    study.tell(study.ask(), 0.5)
    file = tmp_path / "search.optuna"
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines()[-1][:-5])
    begin()
    study = search_study.study_in(tmp_path, "search")
    assert study is not None and [trial.value for trial in study.trials] == [0.5]
    assert file.read_bytes().startswith(whole)


def test_a_writer_that_was_killed_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna's own lock is a link in the folder: whoever came next waited for 30 seconds, without a word."""
    words = "Path.cwd(), 'search', ['maximize'], {'asked': 1, 'session': 2}"
    begin = f"from pathlib import Path; from pipeline.sweep.search_study import begin_study; begin_study({words})"
    dies = "import os, signal; os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL); "
    writer = [sys.executable, "-c", dies + begin]
    assert subprocess.run(writer, cwd=tmp_path, env=environment(), check=False).returncode == -9
    search_study.samplers(0)  # imports Optuna
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waits for a lock"))
    search_study.begin_study(tmp_path, "search", ["maximize"], {"asked": 1, "session": 2})


@pytest.mark.wide
@pytest.mark.parametrize("gone", ["the trial", "the study"])
def test_a_job_that_outlives_its_search_is_not_ended_by_a_closed_trial(tmp_path: Path, gone: str) -> None:
    """The next search closes what a killed one left open; the report of the next epoch ended the job as failed."""
    import optuna

    file = search_study.study_file(tmp_path, "s")
    search_study.begin_study(tmp_path, "s", ("maximize",), {"pruner": {"pruner": "median", "epochs": 9}})
    study = search_study.study_in(tmp_path, "s")
    assert study is not None
    trial = study.ask()
    message = {"file": str(file), "study": "s", "id": trial._trial_id, "metric": "a", "epochs": 9}
    pruner = search_study.Pruner(message)
    pruner(1, {"a": 0.5})
    if gone == "the study":
        optuna.delete_study(study_name="s", storage=study._storage)
    else:
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    pruner(2, {"a": 0.6})


@pytest.mark.wide
def test_mistakes_of_a_metric(tmp_path: Path) -> None:
    one = (*OPTUNA, "optimizer=adam,sgd")
    for metric in ("validation/loss", "test/brier"):
        wrong = (f"hydra.sweeper.metric={metric}", "hydra.sweeper.direction=maximize")
        said = refused(tmp_path, *one, *wrong, "training.metrics=[brier]")
        assert said == (
            f"hydra.sweeper.direction=maximize with hydra.sweeper.metric={metric}: less is better; "
            "use hydra.sweeper.direction=minimize"
        )
    sought = ("hydra.sweeper.metric=epoch/beauty", "hydra.sweeper.direction=maximize")
    result = pipeline(tmp_path, *one, "training.epochs=1", *sought)
    assert result.returncode == 2
    assert "hydra.sweeper.metric=epoch/beauty: a run has no such metric; choose from " in result.stderr
    mended = pipeline(tmp_path, *one, "training.epochs=1", "hydra.sweeper.trials=1")
    assert "study search: 1 trials\n" in mended.stderr, mended.stderr  # a study without a finished trial is begun anew
    lacking = message(pipeline(tmp_path, *one, "optimizer.nesterov=true,false"))
    assert lacking.startswith("optimizer.nesterov: no such key")
    assert lacking.endswith("(cell 1: optimizer=adam optimizer.nesterov=True)")


def test_a_direction_that_no_metric_declares_is_asked_for(tmp_path: Path) -> None:
    """Before the first trial, and of those metrics alone that declare none: less of a validation loss is better."""
    known = {"PIPELINE_MODULES": "own_lightning", "PYTHONPATH": str(Path(__file__).parent)}
    own = ("stage=lightning", "stage.module=own_lightning.Lit", "+stage.arguments.width=4,6", "tracking=none")
    said = refused(tmp_path, *OPTUNA[:2], *own, "hydra.sweeper.metric=val_loss", **known)
    asked = "nothing declares before the first trial whether more or less is better; give hydra.sweeper.direction="
    assert said == f"hydra.sweeper.metric=val_loss: {asked}maximize or minimize"
    several = "hydra.sweeper.metric=[validation/loss,train/learning_rate]"
    said = refused(tmp_path, *OPTUNA, "optimizer=adam,sgd", several)
    assert said == f"hydra.sweeper.metric=train/learning_rate: {asked}[maximize or minimize for each metric]"


def test_the_wrong_end_of_a_metric_is_refused_when_a_run_declares_it(tmp_path: Path) -> None:
    """Of a stage whose metrics nothing names before its first trial."""
    journal = Journal.begin(tmp_path, "declared", {})
    journal.write_result(Result((Metric("test/relative_l2", 0.5, direction="min"), Metric("other", 2.0))))
    assert value_of(journal.folder, "test/relative_l2", "minimize") == 0.5
    assert value_of(journal.folder, "other", "maximize") == value_of(journal.folder, "other", "minimize") == 2.0
    with pytest.raises(UserError) as caught:
        value_of(journal.folder, "test/relative_l2", "maximize")
    assert str(caught.value) == (
        "hydra.sweeper.direction=maximize with hydra.sweeper.metric=test/relative_l2: less is better; "
        "use hydra.sweeper.direction=minimize"
    )


@given(low=st.floats(1e-6, 1.0), width=st.floats(1e-3, 1e3), log=st.booleans())
def test_an_interval_is_its_distribution(low: float, width: float, log: bool) -> None:
    text = f"interval({low!r},{low + width!r})"
    (override,) = OverridesParser.create().parse_overrides([f"key={f'tag(log,{text})' if log else text}"])
    found = space.distribution(override)
    assert (found.low, found.high, found.log) == (low, low + width, log)  # type: ignore[attr-defined]
    (again,) = OverridesParser.create().parse_overrides([f"key={space.as_text(found)}"])
    assert space.distribution(again) == found


@given(low=st.integers(-50, 50), width=st.integers(0, 100), log=st.booleans())
def test_an_interval_of_integers_gives_integers(low: int, width: int, log: bool) -> None:
    low = max(1, low) if log else low
    text = f"interval({low},{low + width})"
    (override,) = OverridesParser.create().parse_overrides([f"key={f'tag(log,{text})' if log else text}"])
    found: Any = space.distribution(override)
    assert (type(found).__name__, found.low, found.high, found.log) == ("IntDistribution", low, low + width, log)
    (again,) = OverridesParser.create().parse_overrides([f"key={space.as_text(found)}"])
    assert space.distribution(again) == found


@given(start=st.integers(-50, 50), count=st.integers(1, 30), step=st.integers(1, 7), down=st.booleans())
def test_a_range_is_its_values(start: int, count: int, step: int, down: bool) -> None:
    sign = -1 if down else 1
    values = sorted(range(start, start + sign * count, sign * step))
    (override,) = OverridesParser.create().parse_overrides([f"key=range({start},{start + sign * count},{sign * step})"])
    found = space.distribution(override)
    assert (found.low, found.high, found.step) == (values[0], values[-1], step)  # type: ignore[attr-defined]
    (again,) = OverridesParser.create().parse_overrides([f"key={space.as_text(found)}"])
    assert space.distribution(again) == found


@pytest.mark.wide
def test_what_trials_note_is_kept_and_said_of_those_of_earlier_sessions_too(tmp_path: Path) -> None:
    words: tuple[str, ...] = (*OPTUNA, "model.units=[8],[16]", "training.epochs=1", "training.ema=0.99999")
    words = (*words, "sweep.jobs=1", "hydra.sweeper.metric=images_per_s")
    assert pipeline(tmp_path, *words, "hydra.sweeper.trials=1").returncode == 0
    for _ in range(2):  # the second time nothing is left to run
        said = pipeline(tmp_path, *words, "hydra.sweeper.trials=2").stderr.splitlines()
        (note,) = (line for line in said if line.startswith("2 of 2 cells: training.ema=0.99999: "))
        cold = "the rates of 2 of 2 cells are of one epoch, which starts cold; train for two or more"
        kept = json.loads((session(tmp_path) / "result.json").read_text())["notes"]
        assert {note, cold} <= {*kept} and cold in said


SCORE = """
import math
from pipeline.contracts import Stage
from pipeline.runs import receipt as receipts
from pipeline.runs.result import Metric, Result
from pipeline.spec import spec

@spec
class Score(Stage):
    rate: float = 0.1

    def run(self, experiment, resolved, run):
        run.journal.write_receipt(receipts.before(experiment, resolved))
        return Result((Metric("score", self.rate if self.rate < 1 else math.nan, direction="max"),))
"""


@pytest.mark.wide
def test_a_trial_without_a_number_has_failed(tmp_path: Path) -> None:
    """Optuna took it for a failure, and the search, which counted none, asked for another trial for ever."""
    write_files(tmp_path, {"mine.py": SCORE, "conf/stage/score.yaml": "_target_: mine.Score\nrate: 0.1\n"})
    own = ("--config-dir", "conf", "-m", "hydra/sweeper=optuna", "stage=score", "stage.rate=interval(0.4,1.4)")
    words = (*own, "hydra.sweeper.metric=score", "hydra.sweeper.direction=maximize", "sweep.stop_after=0")
    variables = {"PIPELINE_MODULES": "mine", "PYTHONPATH": "."}
    result = pipeline(tmp_path, *words, "hydra.sweeper.trials=4", **variables)
    assert result.returncode == 1, result.stderr
    trials = study(tmp_path)
    assert [one.state.name for one in trials] == [
        "FAIL" if one.params["stage.rate"] >= 1 else "COMPLETE" for one in trials
    ]
    failed = sum(one.state.name == "FAIL" for one in trials)
    assert len(trials) == 4 and 0 < failed < 4
    assert result.stderr.count("  score is NaN, which cannot be ranked") == failed
    assert f"\n{4 - failed} done · {failed} failed · " in result.stderr
    assert "UserWarning" not in result.stderr


def _csv(path: Path) -> list[dict[str, str]]:
    import csv

    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_value_of_validation_is_that_of_the_weights_that_were_kept(tmp_path: Path) -> None:
    """Which the run saves and a grid judges; the journal's last record is of the last epoch."""
    words = ("dataset=digits", "model=mlp", "model.units=[16]", "training.epochs=12", "optimizer.learning_rate=0.1")
    run = done(tmp_path, *words, "training.weights=best", "tracking=none")
    epochs = [record.metrics["validation/loss"] for record in read_metrics(run) if "epoch/number" in record.metrics]
    assert value_of(run, "validation/loss", "minimize") == min(epochs) < epochs[-1]


def test_a_pruner_is_refused_a_metric_that_no_epoch_has(tmp_path: Path) -> None:
    """Before the first trial, also of a stage that measures more than its task."""
    words = ("stage=transformer", "dataset=python_docs", "model.width=16,32", "hydra.sweeper.direction=minimize")
    bits = ("hydra.sweeper.metric=validation/bits_per_byte", "hydra.sweeper.pruner=median", "tracking=none")
    assert refused(tmp_path, *OPTUNA[:2], *words, *bits) == (
        "hydra.sweeper.metric=validation/bits_per_byte with hydra.sweeper.pruner=median: is measured at the end of a "
        "training, and a pruner asks after each epoch; choose from validation/loss, validation/accuracy, or "
        "hydra.sweeper.pruner=none"
    )
