"""What a sweep would do: each cell checked, and decided whether it has to run, before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.errors import Impossible, UserError, plural
from pipeline.experiment import Experiment
from pipeline.experiment.settings import Sweep
from pipeline.machine.capability import Resolved
from pipeline.ready import planned, ready
from pipeline.report.table import seconds
from pipeline.runs.checkpoint import newest_step
from pipeline.runs.lookup import find_run, is_live, silence
from pipeline.runs.result import read_result
from pipeline.runs.start import Find, located
from pipeline.runs.swept import has, told_apart_by
from pipeline.sweep.history import Ask, History, Kind, Past, Where

if TYPE_CHECKING:
    from pipeline.sweep.compose import Composer

Verdict = Literal["run", "elsewhere", "done", "failed", "skipped"]


@dataclass(frozen=True)
class Cell:
    """One experiment of a sweep. `swept`: the overrides in which it differs from the other cells."""

    number: int
    swept: Mapping[str, str]
    config: dict[str, Any]
    keys: list[str]
    experiment: Experiment | None  # None for a cell that cannot run here
    resolved: Resolved | None  # None also for a cell that a cluster's node will resolve
    trial: dict[str, Any] | None = None
    kind: Kind = "cpu"  # of the device that the node is asked for
    sought: str | None = None  # the metric that a search judges it by, or that sweep.best names
    of_search: bool = False  # whether it is a trial
    impossible: str | None = None  # why it cannot run here

    @property
    def where(self) -> Where:
        """What decides the device of its results."""
        return self.resolved or self.kind

    @property
    def label(self) -> str:
        return label_of(self.swept)

    @property
    def runnable(self) -> Experiment:
        """The experiment of a cell that is known to be able to run here."""
        assert self.experiment is not None
        return self.experiment

    @property
    def key(self) -> str:
        """The hash of such a cell's config, by which it is claimed: of two cells that share one, one runs."""
        return self.runnable.config_sha256()


@dataclass(frozen=True)
class Decision:
    """Whether a cell runs, why, and the run that speaks for it where it does not."""

    cell: Cell
    verdict: Verdict
    reason: str
    run: Path | None = None


def compose_cell(composer: Composer, number: int, swept: Mapping[str, str], words: Sequence[str]) -> Cell:
    """The cell of these overrides, as `check` gives it. Raises UserError, also where they cannot be composed."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from pipeline.cli.composing_errors import explained

    try:
        config, keys = composer.config(words), composer.keys(words)
    except (HydraException, OmegaConfBaseException, RecursionError) as error:
        raise UserError(f"{explained(error, words)}{_in_cell(number, swept)}") from error
    if config.get("name") is not None and "name" not in swept:  # the sweep's; its cells need different ones
        config = {**config, "name": cell_name(str(config["name"]), swept)}
    return check(number, swept, config, keys, composer.ask, composer.find)


def cell_name(name: str, swept: Mapping[str, str]) -> str:
    """The name of a cell's run: the name of the whole, and what sets the cell apart."""
    apart = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(swept.values()))
    return f"{name}-{apart}"[: max(60, len(name))].rstrip("-.")  # one that is too long is refused as it is


def check(
    number: int,
    swept: Mapping[str, str],
    config: dict[str, Any],
    keys: list[str],
    ask: Ask | None = None,
    find: Find = find_run,
) -> Cell:
    """The cell, which may be impossible here. Raises UserError for a mistake, with the cell's name.

    `ask` is given where cells run on the nodes of a cluster: this machine's devices then say nothing. `find` looks up
    the runs that the config names.
    """
    resolved: Resolved | None = None
    kind: Kind = "cpu"
    try:
        config = located(config, find)  # before any cell has become the latest run
        if ask is None:
            experiment, resolved = ready(config, keys, tuple(swept))
        else:
            kind = ask(config["device"]["name"])
            experiment = planned(config, keys, kind, tuple(swept))
    except Impossible as error:
        return Cell(number, swept, config, keys, None, None, impossible=str(error))
    except UserError as error:
        raise UserError(f"{error}{_in_cell(number, swept)}") from error
    if not experiment.stage.recorded:
        raise UserError(f"stage={config['stage']['_target_']}: leaves no result behind; run it alone, without -m")
    if experiment.profiler.wraps_command:
        raise UserError("profiler=nsys: wraps a whole command; run the cell alone, without -m")
    return Cell(number, swept, config, keys, experiment, resolved, kind=kind)


def nothing_runs(reasons: Sequence[str | None]) -> UserError:
    """What to raise where no cell can run here: `reasons`, one for each."""
    first = str(reasons[0])
    text = f"none of the {plural(len(reasons), 'cell')} can run here; the first: {first}"
    return UserError(text if len(reasons) > 1 else f"the grid's one cell cannot run here: {first}")


def varied_by(words: Sequence[str]) -> dict[str, str]:
    """The values of overrides by key, as tables and messages name it: without the `+` of a key that is added."""
    return dict(word.replace("\\:", ":").lstrip("+").split("=", 1) for word in words if "=" in word)


def label_of(swept: Mapping[str, str]) -> str:
    """A cell as it is called in messages."""
    return " ".join(f"{key}={_short(value)}" for key, value in swept.items()) or "the one cell"


def _short(value: str) -> str:
    """A number that a search has drawn, in four digits: the grid's file and the run's config have all of it."""
    return f"{float(value):.4g}" if re.fullmatch(r"-?\d+\.\d{6,}(e-?\d+)?", value) else value


def _in_cell(number: int, swept: Mapping[str, str]) -> str:
    return f" (cell {number + 1}: {label_of(swept)})" if swept else ""


def decide(cells: Sequence[Cell], settings: Sweep, history: History) -> list[Decision]:
    """A decision for each cell. Raises UserError for an impossible one where the settings say so, and for cells that
    share a seed."""
    _refuse_shared_seeds(cells)
    found = []
    for cell in cells:
        if cell.impossible is None:
            found.append(decide_one(cell, settings.retry, history))
        elif settings.impossible == "fail":
            named = f"cell {cell.number + 1}: {cell.label}"
            raise UserError(f"{cell.impossible} ({named}); sweep.impossible=skip leaves it out")
        else:
            found.append(Decision(cell, "skipped", cell.impossible))
    return found


def _refuse_shared_seeds(cells: Sequence[Cell]) -> None:
    """Of cells that train several seeds each, from the experiment's upwards: one in two cells counts twice."""
    by_rest: dict[tuple[tuple[str, str], ...], list[Experiment]] = {}
    for cell in cells:
        if cell.experiment is not None and seeds_of(cell.experiment)[1] > 1 and "seed" in cell.swept:
            rest = tuple((key, value) for key, value in cell.swept.items() if key != "seed")
            by_rest.setdefault(rest, []).append(cell.experiment)
    for alike in by_rest.values():
        alike.sort(key=lambda one: one.seed)
        for one, other in pairwise(alike):
            key, seeds = seeds_of(one)
            if other.seed < one.seed + seeds:
                raise UserError(
                    f"seed={one.seed},{other.seed} with {key}={seeds}: both cells train seed {other.seed}; "
                    f"leave {seeds} between the seeds, or use {key}=1"
                )


def seeds_of(experiment: Experiment) -> tuple[str, int]:
    """How many seeds a cell trains, behind the key that says so."""
    stage = experiment.stage
    if stage.seeds_by is not None:
        return f"stage.{stage.seeds_by}", getattr(stage, stage.seeds_by)
    return "solver.seeds", experiment.solver.seeds


def past_of(cell: Cell, history: History) -> list[Past]:
    """Its runs, the newest first: those of the same experiment, with the same values of the swept keys.

    Results do not depend on some keys, such as how often a checkpoint is written. Swept, they are to be measured.
    """
    past = history.of(cell.runnable, cell.where)
    wanted = told_apart_by(cell.runnable, cell.swept)
    return [run for run in past if has(run.folder, wanted)]


def decide_one(cell: Cell, retry: str, history: History) -> Decision:
    """Whether one cell has to run, and why; by its past runs and `retry`."""
    past = past_of(cell, history)
    if retry == "all":
        return Decision(cell, "run", "sweep.retry=all" if past else "new")
    same = [run for run in past if not run.differs]
    finished = [run for run in same if run.status.state == "FINISHED" and read_result(run.folder) is not None]
    if finished:
        return Decision(cell, "done", f"finished as {finished[0].folder.name}", finished[0].folder)
    live = next((run for run in same if is_live(run.folder, run.status)), None)
    if live is not None:
        return Decision(cell, "elsewhere", f"{live.folder.name}, process {live.status.pid} on {live.status.host}")
    if same and same[0].status.state == "FAILED":
        error = same[0].status.error or "no reason noted"
        if retry == "failed":
            return Decision(cell, "run", f"failed before: {error}")
        return Decision(cell, "failed", f"{error}; sweep.retry=failed runs it again", same[0].folder)
    return Decision(cell, "run", _why_again(past))


def _why_again(past: Sequence[Past]) -> str:
    if not past:
        return "new"
    # The nearest: of runs that differ in as much a finished one, and of those the newest.
    last = min(past, key=lambda run: (len(run.differs), run.status.state != "FINISHED"))
    if not last.differs and last.status.state == "RUNNING":
        quiet = f"has written nothing for {seconds(silence(last.folder))}"
        return f"{last.folder.name} on {last.status.host} {quiet}, and its process cannot be seen from here"
    if not last.differs and last.status.state == "PRUNED":
        return f"{last.folder.name} was cut short by a search"
    if not last.differs and last.status.state == "FINISHED":
        return f"{last.folder.name} has lost its result.json"
    if not last.differs:
        kept = newest_step(last.folder)
        then = (
            "it has no checkpoint, so it starts over" if kept is None else f"its newest checkpoint is of step {kept:,}"
        )
        return f"{last.folder.name} was killed before its end; {then}"
    return f"changed since {last.folder.name}: {', '.join(last.differs)}"
