"""A search by Optuna: trials are cells, asked for when there is room, told when they end, pruned after an epoch.

The study lies in a journal file below output_dir, so that it is resumed by the same command, and so that a cell, in
whatever process, reports its epochs to it. Akiba et al., "Optuna" (KDD 2019); Li et al., "Hyperband" (JMLR 18, 2018).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from pipeline.errors import Pruned, UserError
from pipeline.journal import read_metrics
from pipeline.spec import spec
from pipeline.sweep import summary
from pipeline.sweep.compose import Composer
from pipeline.sweep.history import History
from pipeline.sweep.plan import Cell, check, decide_one
from pipeline.sweep.schedule import Outcome, figures_of
from pipeline.sweep.session import MakeExecutor, Session, say
from pipeline.sweep.space import Space, as_overrides

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial
    from rich.console import Console

    from pipeline.run import Run

Direction = Literal["maximize", "minimize"]
STEP = "epoch/number"  # in an epoch's record of the journal


@spec
class Search:
    """What Optuna is asked for; see conf/hydra/sweeper/optuna.yaml."""

    study: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,60}$")] = "search"
    trials: PositiveInt = 20
    metric: str | tuple[str, ...] = "validation/accuracy"
    direction: Direction | tuple[Direction, ...] = "maximize"
    sampler: Literal["tpe", "random", "cmaes"] = "tpe"
    pruner: Literal["none", "median", "hyperband"] = "none"
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        if len(self.metrics) != len(self.directions):
            raise UserError(
                f"hydra.sweeper.direction={self.direction}: give one for each of the {len(self.metrics)} metrics"
            )
        if self.pruner != "none" and len(self.metrics) > 1:
            raise UserError(
                f"hydra.sweeper.pruner={self.pruner}: Optuna prunes by one metric; give one, or pruner=none"
            )

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.metric,) if isinstance(self.metric, str) else self.metric

    @property
    def directions(self) -> tuple[Direction, ...]:
        return (self.direction,) if isinstance(self.direction, str) else self.direction


class Pruner:
    """In a trial's process: after each epoch, report the metric and ask whether to go on."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        from optuna.trial import Trial

        self.metric: str = told["metric"]
        self.last: int = told["epochs"]
        self.trial = Trial(load_study(Path(told["file"]), told["study"]), told["id"])

    def __call__(self, epoch: int, metrics: Mapping[str, float]) -> None:
        if self.metric not in metrics:
            known = ", ".join(sorted(metrics))
            raise UserError(f"hydra.sweeper.metric={self.metric}: no epoch has it; choose from {known}")
        self.trial.report(metrics[self.metric], epoch)
        if epoch < self.last and self.trial.should_prune():  # at the end there is nothing left to save
            raise Pruned(f"pruned after epoch {epoch}: {self.metric} {metrics[self.metric]:.4f}")


class Trials:
    """The source of a search's cells."""

    def __init__(
        self, study: Study, file: Path, search: Search, composer: Composer, fixed: Sequence[str], space: Space
    ) -> None:
        self.study, self.file, self.search = study, file, search
        self.composer, self.fixed, self.space = composer, fixed, space
        self.open: dict[int, Trial] = {}
        self.failed = 0  # they count in this session, so that it ends; the next one tries other points instead
        self.history: History | None = None  # what had run before, and
        self.done: dict[str, Path] = {}  # what has run since, by the hash of its config

    def next(self) -> Cell | None:
        while _finished(self.study) + self.failed + len(self.open) < self.search.trials:
            trial = self.study.ask(self.space)
            cell, run = self._cell(trial)
            if run is None:
                self.open[trial.number] = trial
                return cell
            self._tell(trial, run)  # the very same has run before
        return None

    def ended(self, outcome: Outcome) -> None:
        from optuna.trial import TrialState

        trial = self.open.pop(outcome.cell.number)
        if outcome.state == "FINISHED" and outcome.run is not None and outcome.cell.experiment is not None:
            self.done[outcome.cell.experiment.config_sha256()] = outcome.run
            self._tell(trial, outcome.run)
        elif outcome.state == "PRUNED":
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, state=TrialState.FAIL)
            self.failed += 1

    def _cell(self, trial: Trial) -> tuple[Cell, Path | None]:
        """The trial as a cell, and the finished run that it would repeat, if there is one."""
        words = as_overrides(trial.params)
        swept = dict(word.split("=", 1) for word in words)
        config, keys = self.composer.config([*self.fixed, *words]), self.composer.keys([*self.fixed, *words])
        cell, impossible = check(trial.number, swept, config, keys)
        if impossible or cell.experiment is None:
            raise UserError(f"{impossible} (trial {trial.number}: {cell.label}); take it out of the space")
        if self.history is None:
            self.history = History(Path(cell.experiment.settings.output_dir))
        key = cell.experiment.config_sha256()
        told: dict[str, Any] = {"file": str(self.file), "study": self.search.study, "id": trial._trial_id}
        if self.search.pruner != "none":
            told |= {"metric": self.search.metrics[0], "epochs": cell.experiment.training.epochs}
            cell = replace(cell, trial=told)
        known = self.done.get(key)
        return cell, known or decide_one(cell, "failed", self.history).run

    def _tell(self, trial: Trial, run: Path) -> None:
        values = [value_of(run, name) for name in self.search.metrics]
        self.study.tell(trial, values)
        self.study.set_user_attr(f"run {trial.number}", run.name)


def run_search(composer: Composer, search: Search, fixed: Sequence[str], space: Space, executor: MakeExecutor) -> int:
    """Run trials until the study has as many as asked for. Returns the exit status."""
    from pipeline.terminal import messages, results

    console = messages()
    first = first_cell(composer, fixed, space)
    assert first.experiment is not None
    if first.experiment.sweep.dry_run:
        raise UserError("sweep.dry_run=true: a search decides its next cell when others have ended; nothing to list")
    folder = Path(first.experiment.settings.output_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{search.study}.optuna"
    study = open_study(file, search, first.experiment.training.epochs)
    trials = Trials(study, file, search, composer, fixed, space)
    before = _finished(study)
    say(console, f"study {search.study}: {search.trials} trials{f', {before} of them done before' if before else ''}")
    outcomes: list[Outcome] = []
    if before < search.trials:
        about = {"search": {name: str(value) for name, value in vars(search).items()}, "fixed": list(fixed)}
        about["space"] = {key: str(distribution) for key, distribution in space.items()}

        def keep(run: Run, ended: Sequence[Outcome]) -> None:
            summary.write_csv(run.artifact("trials.csv"), summary.entries([], ended))
            draw(run.artifact("trials.png"), study, search)
            run.journal.write_result({"scalars": best_figures(study, search)})

        session = Session(search.study, first.experiment, about, console)
        outcomes = session.run(trials, executor, [], search.trials - before, keep)
    show(results(), study, search)
    if search.pruner != "none":
        say(console, saved_by_pruning(study, first.experiment.training.epochs))
    return 1 if any(not outcome.done for outcome in outcomes) else 0


def first_cell(composer: Composer, fixed: Sequence[str], space: Space) -> Cell:
    """A cell at the start of the space, to check what is fixed before anything is asked for. Raises UserError."""
    words = [*fixed, *as_overrides({key: _first(distribution) for key, distribution in space.items()})]
    cell, impossible = check(0, {}, composer.config(words), composer.keys(words))
    if impossible:
        raise UserError(impossible)
    return cell


def open_study(file: Path, search: Search, epochs: int) -> Study:
    """The study, made or continued; trials that a dead session left open are closed. Raises UserError."""
    import optuna
    from optuna.trial import TrialState

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers: dict[str, Any] = {
        "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
        "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
        "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed),
    }
    pruners: dict[str, Any] = {
        "none": optuna.pruners.NopPruner,
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=4),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(min_resource=1, max_resource=epochs, reduction_factor=3),
    }
    study = optuna.create_study(
        study_name=search.study,
        storage=_storage(file),
        pruner=pruners[search.pruner](),
        directions=search.directions,
        load_if_exists=True,
    )
    # A study that goes on must not ask for the points that it began with.
    study.sampler = samplers[search.sampler](search.seed + len(study.get_trials(deepcopy=False)))
    asked = [direction.name.lower() for direction in study.directions]
    if asked != list(search.directions):
        raise UserError(
            f"hydra.sweeper.study={search.study}: that study was made to {', '.join(asked)}; name another study"
        )
    pruner = {"pruner": search.pruner, "epochs": epochs}
    study.set_user_attr("pruner", pruner)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
    return study


def load_study(file: Path, name: str) -> Study:
    """The study as a trial's process sees it, with the pruner that the search was given."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.load_study(study_name=name, storage=_storage(file))
    told = study.user_attrs["pruner"]
    if told["pruner"] == "hyperband":
        study.pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=told["epochs"], reduction_factor=3)
    else:
        study.pruner = optuna.pruners.MedianPruner(n_startup_trials=4)
    return study


def value_of(run: Path, name: str) -> float:
    """A figure of a finished run: of its result, or the last that its journal has. Raises UserError."""
    figures = figures_of(run)
    if name in figures:
        return figures[name]
    logged = {key: value for record in read_metrics(run) for key, value in record.metrics.items()}
    if name not in logged:
        known = ", ".join(sorted({*figures, *logged} - {STEP}))
        raise UserError(f"hydra.sweeper.metric={name}: a run has no such figure; choose from {known}")
    return logged[name]


def show(console: Console, study: Study, search: Search, most: int = 10) -> None:
    """The best trials."""
    from rich.table import Table

    ranked = ranking(study)
    if not ranked:
        say(console, "no trial has finished")
        return
    many = len(search.metrics) > 1
    title = "trials that no other beats in every metric" if many else f"the best of {len(ranked)} finished trials"
    console.print(title, style="italic", highlight=False)
    table = Table("trial", *search.metrics, *ranked[0].params, box=None, pad_edge=False)
    for trial in study.best_trials if many else ranked[:most]:
        values = [f"{value:.4f}" for value in trial.values or ()]
        table.add_row(str(trial.number), *values, *(_short(value) for value in trial.params.values()))
    console.print(table, highlight=False)


def ranking(study: Study) -> list[FrozenTrial]:
    """Finished trials, the best (by the first metric) first."""
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    sign = -1 if study.directions[0] == StudyDirection.MAXIMIZE else 1
    return sorted(done, key=lambda trial: sign * (trial.values or [0.0])[0])


def best_figures(study: Study, search: Search) -> dict[str, float]:
    """The best value of each metric."""
    ranked = ranking(study)
    best = {"maximize": max, "minimize": min}
    pairs = zip(search.metrics, search.directions, strict=True)
    return {
        f"best/{name}": best[direction]((trial.values or [0.0])[place] for trial in ranked)
        for place, (name, direction) in enumerate(pairs)
        if ranked
    }


def saved_by_pruning(study: Study, epochs: int) -> str:
    """How many epochs were trained, and how many would have been without pruning."""
    from optuna.trial import TrialState

    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    trained = sum(max(trial.intermediate_values, default=epochs) for trial in ended)
    pruned = [max(trial.intermediate_values, default=0) for trial in ended if trial.state == TrialState.PRUNED]
    whole = epochs * len(ended)
    text = f"pruning: {len(pruned)} of {len(ended)} trials cut short"
    text += f" (after {statistics.median(pruned):g} epochs in the median)" if pruned else ""
    return f"{text}; {trained} of {whole} epochs trained ({1 - trained / whole:.0%} saved)" if whole else text


def draw(path: Path, study: Study, search: Search) -> None:
    """Every trial's value as they came, and the best so far."""
    from pipeline.report import grid_figure

    done = sorted(ranking(study), key=lambda trial: trial.number)
    points = [(trial.number, trial.values[0]) for trial in done if trial.values]
    if points:
        grid_figure.history(path, points, search.metrics[0], better=max if search.directions[0] == "maximize" else min)


def _storage(file: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(file)))


def _finished(study: Study) -> int:
    """Trials that came to something: finished or pruned."""
    from optuna.trial import TrialState

    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))


def _first(distribution: Any) -> Any:
    choices = getattr(distribution, "choices", None)
    return choices[0] if choices else distribution.low


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
