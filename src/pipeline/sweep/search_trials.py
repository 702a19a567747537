"""The trials of a search: asked for when one could start, reported when they end, and not run twice."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import UserError
from pipeline.runs.checkpoint import newest_step
from pipeline.runs.code.code_hash import code_sha256
from pipeline.runs.dynamic_imports import imported_by, merged
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_metrics
from pipeline.runs.swept import told_apart_by
from pipeline.sweep.claims import AGAIN_SECONDS, Claims
from pipeline.sweep.history import History
from pipeline.sweep.plan import Cell, decide_one, varied_by
from pipeline.sweep.schedule import Outcome, Source
from pipeline.sweep.search_cells import Cells
from pipeline.sweep.search_checks import epochs_of
from pipeline.sweep.search_claim import IMPORTED, dataset_key
from pipeline.sweep.search_killed import BY_ITSELF, TRIES, dead_points, killed
from pipeline.sweep.search_metric import value_of
from pipeline.sweep.search_settings import Search
from pipeline.sweep.search_study import ANOTHER, finished, left, report, study_file
from pipeline.sweep.space import Space, as_overrides

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial


class Trials(Source):
    """The source of a search's cells."""

    def __init__(
        self,
        study: Study,
        search: Search,
        cells: Cells,
        space: Space,
        history: History,
        claims: Claims,
        retry: str,
        say: Callable[[str], None],
    ) -> None:
        self.study, self.search = study, search
        self.claims, self.retry, self.say = claims, retry, say
        self.cells, self.space = cells, space
        self.latest: Cell | None = None  # the last trial's: the next one is taken to need as much
        self.open: dict[int, Trial] = {}
        self.running: dict[int, str] = {}  # of those, the hashes of their configs
        self.theirs: dict[int, tuple[Trial, Cell]] = {}  # what another command runs now
        self.look_again, self.waited_for = 0.0, 0
        self.enough = False  # whether there is nothing to ask for until one has ended: Optuna reads its file for that
        self.failed = 0  # they count in this session, so that it ends; the next one tries other points instead
        self.history = history  # what had run before, and
        self.done: dict[str, Path] = {}  # what has run since, by what tells runs apart
        self.planned: dict[int, str] = {}  # the hashes of the code that the trials are to run
        self.ran: list[int] = []  # the numbers of the trials whose cells ran here
        self.reused: list[Outcome] = []  # trials since the last look whose cell had run before, or cannot run

    def next(self, fits: Callable[[Cell], bool]) -> Cell | None:
        if self.latest is not None and not fits(self.latest):  # what runs has something to say about the next point
            return None
        for trial, known in self._to_look_at():
            cell = self._placed(trial, known)
            if cell is not None:
                return cell
        while not self.enough and self._may_ask():
            cell = self._placed(self.study.ask(self.space))
            if cell is not None:
                return cell
        self.enough = True
        return None

    def _leave_to_others(self, trial: Trial, cell: Cell) -> None:
        self.theirs[trial.number] = trial, cell
        others = sum(cell.key not in self.running.values() for _, cell in self.theirs.values())
        if others > self.waited_for:
            self.waited_for = others
            self.say(f"waiting for another command, which runs {self.waited_for} of these trials")

    @property
    def waits(self) -> bool:
        return bool(self.theirs)

    @property
    def more(self) -> bool:
        return self.waits or self._may_ask()

    def _may_ask(self) -> bool:
        return self._begun() < self.search.trials and self.left != 0

    def _begun(self) -> int:
        """The trials that have ended, run, or are waited for."""
        return finished(self.study) + self.failed + len(self.open) + len(self.theirs)

    def _to_look_at(self) -> Iterator[tuple[Trial, Cell]]:
        """At most once in a while: the trials that another command ran when they were last looked at."""
        if not self.theirs or time.monotonic() < self.look_again:
            return
        self.look_again, self.enough = time.monotonic() + AGAIN_SECONDS, False
        for number in list(self.theirs):
            yield self.theirs.pop(number)

    def _placed(self, trial: Trial, known: Cell | None = None) -> Cell | None:
        """The trial's cell if it is to run here; where it is not, the trial has its values, has failed, or waits."""
        try:
            cell = known or self._cell(trial)
        except UserError as error:  # a point at which nothing can run: what runs meanwhile is not lost for it
            self._failed(trial)
            swept, sought = varied_by(as_overrides(trial.params)), self.search.metrics[0]
            cell = Cell(trial.number, swept, {}, [], None, None, sought=sought, of_search=True)
            self.reused.append(Outcome(cell, "FAILED", str(error), 0.0, None))
            return None
        key = cell.key
        if key in self.running.values() or not self.claims.take(key):  # this search may run it, in other words
            self._leave_to_others(trial, cell)
            return None
        self.history.refresh()
        decision = decide_one(cell, self.retry, self.history)
        run = self.done.get(_identity(cell)) or decision.run
        if run is None and decision.verdict != "elsewhere":
            self.open[trial.number], self.running[trial.number], self.latest = trial, key, cell
            self.planned[trial.number] = code_sha256(cell.runnable)
            return cell
        self.claims.release(key)
        if run is None:
            self._leave_to_others(trial, cell)
            return None
        before = Outcome(cell, "FINISHED", f"run before as {run.name}", 0.0, run)  # the very same
        self.reused.append(self._finished(trial, before, run))
        return None

    def ask_again(self) -> None:
        """Put the trials before all others that were killed, or whose runs go on or have finished since.

        Not those whose process has died TRIES times: it may do so each time.
        """
        from optuna.trial import TrialState

        states = (TrialState.WAITING, TrialState.COMPLETE, TrialState.PRUNED)  # the first: by a session that was killed
        known = [one.system_attrs.get("fixed_params", {}) | one.params for one in self.study.get_trials(False, states)]
        attributes, again, given_up = self.study.user_attrs, list[dict[str, Any]](), dead_points(self.study)
        for trial in reversed(self.study.get_trials(deepcopy=False, states=(TrialState.FAIL,))):
            if trial.params.keys() != self.space.keys() or trial.params in known:
                continue
            known.append(trial.params)  # of several at a point the last one says how it ended
            with contextlib.suppress(UserError):  # a point that the space no longer has, a run without the metric
                cell = self.cells.at(trial.params, trial.number)
                if cell.experiment is None:
                    continue
                if self._is_known(cell):
                    again.append(trial.params)
                elif trial.params in given_up:
                    words = " ".join(as_overrides(trial.params))
                    self.say(f"{words}: its process has died {TRIES} times; it is not tried again ({ANOTHER})")
                elif killed(trial.number) in attributes:
                    again.append(trial.params)
        for point in reversed(again):
            self.study.enqueue_trial(point)

    def _is_known(self, cell: Cell) -> bool:
        """Whether a run of the very same is under way, or has finished with a number for each metric.

        Raises UserError where a finished one lacks a metric.
        """
        decision = decide_one(cell, self.retry, self.history)
        if decision.run is None:
            return decision.verdict == "elsewhere"
        return not any(map(math.isnan, self._values(decision.run)))

    @property
    def left(self) -> int | None:
        """How many points are left to propose; None where there is no end to them."""
        return left(self.study, self.space)

    def taken(self) -> list[Outcome]:
        found, self.reused = self.reused, []
        return found

    def ended(self, outcome: Outcome) -> Outcome:
        from optuna.trial import TrialState

        trial, self.enough = self.open.pop(outcome.cell.number), False
        self.claims.release(self.running.pop(outcome.cell.number))
        self.ran.append(trial.number)
        if outcome.state == "FINISHED" and outcome.run is not None:
            self.done[_identity(outcome.cell)] = outcome.run
            return self._finished(trial, outcome, outcome.run)
        if outcome.state == "PRUNED":
            self.study.tell(trial, state=TrialState.PRUNED)
            self._keep_imported(outcome.run)
        else:
            if outcome.state == "KILLED" and not (outcome.died and _begins_anew(outcome)):
                self.study.set_user_attr(killed(trial.number), BY_ITSELF if outcome.died else True)
            self._failed(trial)
        return outcome

    def _failed(self, trial: Trial) -> None:
        from optuna.trial import TrialState

        self.study.tell(trial, state=TrialState.FAIL)
        self.failed += 1

    def _cell(self, trial: Trial) -> Cell:
        """The trial as a cell. Raises UserError where it cannot run."""
        cell = replace(self.cells.at(trial.params, trial.number), sought=self.search.metrics[0], of_search=True)
        if cell.experiment is None:
            raise UserError(f"{cell.impossible} ({cell.label}); take it out of the space")
        if self.search.pruner == "none":
            return cell
        file, name = study_file(self.history.root, self.study.study_name), self.study.study_name
        settings: dict[str, Any] = {"file": str(file), "study": name, "id": trial._trial_id}
        settings |= {"metric": self.search.metrics[0], "epochs": epochs_of(cell.experiment, self.search)}
        return replace(cell, trial=settings)

    def _finished(self, trial: Trial, outcome: Outcome, run: Path) -> Outcome:
        """The study has the values of a finished run. A trial of which one is NaN has failed, as Optuna sees it
        too: nothing ranks it."""
        values = self._values(run)
        lost = [name for name, value in zip(self.search.metrics, values, strict=True) if math.isnan(value)]
        if lost:
            self._failed(trial)
            self._keep_imported(run)
            return replace(outcome, state="FAILED", reason=f"{lost[0]} is NaN, which cannot be ranked")
        if len(values) == 1 and not self._reported(trial):  # a pruner, of a later session too, judges by all curves
            report(trial, self.search.metrics[0], read_metrics(run))
        self.study.tell(trial, values)
        self.study.set_user_attr(f"run {trial.number}", run.name)
        key, data = dataset_key(outcome.cell.runnable), read_json(run / "receipt.json").get("data_sha256")
        before = self.study.user_attrs.get(key)
        if data is not None and before != data:
            self.study.set_user_attr(key, data)
            if before is not None:
                self.study.set_user_attr(f"other data {trial.number}", True)
        self._keep_imported(run)
        return outcome

    def _reported(self, trial: Trial) -> bool:
        return bool(self.study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def _values(self, run: Path) -> list[float]:
        """Of the metrics that are sought. Raises UserError."""
        sought = zip(self.search.metrics, self.search.directions, strict=True)
        return [value_of(run, name, direction) for name, direction in sought]

    def _keep_imported(self, run: Path | None) -> None:
        """A module of a computed name is known when a trial that imported it has ended."""
        then = self.study.user_attrs.get(IMPORTED, {})
        now = merged([then, imported_by([run])])
        if now != then:
            self.study.set_user_attr(IMPORTED, now)


def _begins_anew(outcome: Outcome) -> bool:
    """Whether its run cannot go on: one that dies each time would then be all that a session tries."""
    return outcome.run is None or newest_step(outcome.run) is None


def _identity(cell: Cell) -> str:
    """What tells its runs apart from those of other cells."""
    return f"{cell.key} {told_apart_by(cell.runnable, cell.swept)}"
