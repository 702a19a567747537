"""A search's study on disk: as the search opens it, and as a trial's process reports its epochs to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import Pruned, UserError
from pipeline.report.table import figure
from pipeline.runs.records import EPOCH
from pipeline.sweep.search_killed import killed
from pipeline.sweep.space import Space, point_of, size

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

    from pipeline.experiment.settings import Sought
    from pipeline.runs.records import Record
    from pipeline.sweep.search_settings import Search


ANOTHER = "hydra.sweeper.study=<another name> begins another"


class Pruner:
    """In a trial's process: after each epoch, report the metric and ask whether to go on."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        from optuna.trial import Trial

        self.metric: str = message["metric"]
        self.last: int = message["epochs"]
        self.trial = Trial(load_study(Path(message["file"]), message["study"]), message["id"])

    def report_before(self, records: Iterable[Record]) -> None:
        """The epochs, or validations, that a run had seen before it was killed: this trial goes on with it."""
        report(self.trial, self.metric, records)

    def __call__(self, epoch: int, metrics: Mapping[str, float]) -> None:
        if self.metric not in metrics:
            known = ", ".join(sorted(metrics))
            raise UserError(f"hydra.sweeper.metric={self.metric}: no epoch has it; choose from {known}")
        if self._hopeless(metrics[self.metric], epoch):
            raise Pruned(f"pruned after epoch {epoch}: {self.metric} {figure(metrics[self.metric])}")

    def _hopeless(self, value: float, epoch: int) -> bool:
        """Whether the study, which takes the value, would end the trial; at its end there is nothing left to save."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            self.trial.report(value, epoch)
            return epoch < self.last and self.trial.should_prune()
        except (UpdateFinishedTrialError, KeyError):  # the job has outlived its search, and the next one has closed it
            return False


def report(trial: Trial, metric: str, records: Iterable[Record]) -> None:
    """A run's epochs, or validations, as the trial's own."""
    for number, record in enumerate((record for record in records if EPOCH in record.metrics), 1):
        if metric in record.metrics:
            trial.report(record.metrics[metric], number)


def study_file(folder: Path, name: str) -> Path:
    """Where the study lies, below the folder of the runs."""
    return folder / f"{name}.optuna"


def study_in(folder: Path, name: str) -> Study | None:
    """The study of that name; None where there is none yet."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file = study_file(folder, name)
    try:
        return optuna.load_study(study_name=name, storage=_storage(file)) if file.exists() else None
    except KeyError:  # a file that another session has just made, and which holds no study yet
        return None


def begin_study(folder: Path, name: str, directions: Sequence[Sought], attributes: Mapping[str, Any]) -> None:
    """Make the study where there is none with a finished trial; what was asked before then decides nothing.

    To be called by the session that holds the study: trials that a dead one left open are closed. Raises UserError for
    a file that is damaged; of its last line Optuna sees that when it writes another.
    """
    import optuna
    from optuna.trial import TrialState

    file = study_file(folder, name)
    with _undamaged(file):
        study = study_in(folder, name)
        if study is not None and not finished(study):
            optuna.delete_study(study_name=name, storage=_storage(file))
            study = None
        if study is None:
            study = optuna.create_study(study_name=name, storage=_storage(file), directions=directions)
        for key, value in attributes.items():
            study.set_user_attr(key, value)
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.set_user_attr(killed(trial.number), True)
            study.tell(trial.number, state=TrialState.FAIL)


def samplers(seed: int) -> dict[str, Callable[[], BaseSampler]]:
    """Optuna's samplers by the name that `hydra.sweeper.sampler` gives."""
    from optuna import samplers

    return {
        "tpe": lambda: samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
        "random": lambda: samplers.RandomSampler(seed=seed),
        "cmaes": lambda: samplers.CmaEsSampler(seed=seed),
    }


def open_study(file: Path, name: str, search: Search, epochs: int, space: Space) -> Study:
    """The study with the sampler and the pruner of this search; the points of a discrete space are not repeated."""
    import optuna

    study = optuna.load_study(study_name=name, storage=_storage(file), pruner=_pruner(search.pruner, epochs))
    # A study that goes on must not ask for the points that it began with.
    first = len(study.get_trials(deepcopy=False))
    study.sampler = samplers(search.seed + first)[search.sampler]()
    if size(space) is not None:
        from pipeline.sweep.search_sampler import Unrepeated

        study.sampler = Unrepeated(study.sampler, space, search.seed + first, first)
    study.set_user_attr("pruner", {"pruner": search.pruner, "epochs": epochs})
    return study


def load_study(file: Path, name: str) -> Study:
    """The study as a trial's process sees it, with the pruner that the search was given."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.load_study(study_name=name, storage=_storage(file))
    message = study.user_attrs["pruner"]
    study.pruner = _pruner(message["pruner"], message["epochs"])
    return study


def _pruner(name: str, epochs: int) -> BasePruner:
    """Optuna's pruner by the name that `hydra.sweeper.pruner` gives; `epochs`: the most validations of a trial."""
    from optuna import pruners

    if name == "hyperband":
        return pruners.HyperbandPruner(min_resource=1, max_resource=epochs, reduction_factor=3)
    return pruners.MedianPruner(n_startup_trials=4) if name == "median" else pruners.NopPruner()


def left(study: Study, space: Space) -> int | None:
    """How many points of a discrete space are neither tried nor running; None where a key is a real number."""
    from optuna.trial import TrialState

    from pipeline.sweep.search_sampler import Unrepeated, tried

    whole = size(space)
    if whole is None:
        return None
    first = study.sampler.first if isinstance(study.sampler, Unrepeated) else 0
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    known = tried(study, space, first) - {point_of(one.system_attrs.get("fixed_params", {}), space) for one in waiting}
    return whole - len(known)


def ranking(study: Study) -> list[FrozenTrial]:
    """Finished trials, the best (by the first metric) first."""
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    sign = -1 if study.directions[0] == StudyDirection.MAXIMIZE else 1
    return sorted(done, key=lambda trial: sign * (trial.values or [0.0])[0])


def _storage(file: Path) -> Any:
    """The journal that Optuna keeps of a study, read at once. Raises UserError for one that is damaged."""
    from optuna.storages import JournalStorage

    from pipeline.sweep.search_journal import Journal

    with _undamaged(file):
        return JournalStorage(Journal(file))


@contextlib.contextmanager
def _undamaged(file: Path) -> Iterator[None]:
    """Round what reads a study's journal. Raises UserError where a line of it is damaged."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: damaged ({type(error).__name__}: {error}); {ANOTHER}") from error


def finished(study: Study) -> int:
    """Trials that came to something: finished or pruned."""
    from optuna.trial import TrialState

    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))
