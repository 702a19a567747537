"""A search's study on disk: as the search opens it, and as a trial's process reports its epochs to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import Pruned, UserError

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from pipeline.sweep.search import Search


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


def ranking(study: Study) -> list[FrozenTrial]:
    """Finished trials, the best (by the first metric) first."""
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    sign = -1 if study.directions[0] == StudyDirection.MAXIMIZE else 1
    return sorted(done, key=lambda trial: sign * (trial.values or [0.0])[0])


def _storage(file: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(file)))


def finished(study: Study) -> int:
    """Trials that came to something: finished or pruned."""
    from optuna.trial import TrialState

    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))
