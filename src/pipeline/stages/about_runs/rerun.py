"""stage=rerun: a saved run's experiment again, by the code as it is now, and whether the same came out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from pipeline.cli.streams import say
from pipeline.cli.terminal import messages, results
from pipeline.contracts.runs import AboutRuns
from pipeline.errors import UserError
from pipeline.experiment.settings import Settings
from pipeline.machine.launched import refuse_launched
from pipeline.report.table import show_table
from pipeline.runs.choices import changes
from pipeline.runs.differences import Account, account_of, differing_metrics, the_same
from pipeline.runs.listing import choice_of
from pipeline.runs.lookup import find_run
from pipeline.runs.records import Status, read_config, read_status
from pipeline.runs.result import Table, read_result
from pipeline.spec import Config, spec
from pipeline.stages.about_runs.compare import print_differences

NOW = (
    "resume",
    "output_dir",
    "tracking",
    "profiler",
    "sweep",
)  # decide no result: as the command says, not as the run did
BOTH = ("then", "now")


@spec
class Rerun(AboutRuns):
    """No settings: the run is named by `run=<id>`."""

    keys: ClassVar[tuple[str, ...]] = ("run", "tracking")

    def act(self, settings: Settings, config: Config) -> int:
        """Run it again as a new run, then compare. 0 where weights and results are the same to the bit, else 1."""
        from pipeline.ready import ready_again
        from pipeline.runner import record
        from pipeline.runs.resume import check_starts
        from pipeline.runs.saved import as_it_ran

        source = _source(settings)
        saved = as_it_ran(read_config(source), source)
        present = {key: config[key] for key in NOW if key in config}
        experiment, resolved = ready_again({**saved, **present}, source, "run")
        check_starts(f"run={source.name}", experiment)
        refuse_launched("stage=rerun", experiment.device.processes)
        if experiment.stage.starts_from_run:
            say(messages(), f"run={source.name}: {_no_training(saved)}; to train again name that run")
        made: list[Path] = []
        status = record(experiment, resolved, began=made.append, keys=tuple(changes(saved, config)))
        if status != 0:
            return status
        return 0 if _report(results(), account_of(source), account_of(made[0])) else 1


def _source(settings: Settings) -> Path:
    """The folder of the run, which has to have an end to compare with. Raises UserError."""
    if not settings.run:
        raise UserError("run=null with stage=rerun: name the saved run, by its id, its folder or latest")
    folder = find_run(Path(settings.output_dir), settings.run, holding="config.yaml")
    saved = read_config(folder)
    if whole := next((kind for kind in ("grid", "search") if kind in saved), None):
        raise UserError(f"run={folder.name}: is a {whole}; rerun the run of one of its cells, as stage=runs lists them")
    status = read_status(folder)
    if status is None or status.state != "FINISHED" or read_result(folder) is None:
        raise UserError(f"run={folder.name}: {_without_result(folder, status)}")
    if not saved:
        raise UserError(f"run={folder.name}: config.yaml is missing or damaged")
    return folder


def _without_result(folder: Path, status: Status | None) -> str:
    if status is None or status.state != "FINISHED":
        how = "damaged" if status is None else status.state
        return f"is {how} and has no result to compare with; rerun one that finished"
    return (
        "result.json is missing, damaged or of an early version, so there is nothing to compare with; "
        f"stage=show run={folder.name} prints its settings"
    )


def _no_training(saved: Config) -> str:
    """What a run has done that used another one."""
    stage = choice_of(str(saved["stage"]["_target_"]))
    return f"is a run of stage={stage} on {Path(str(saved['run'])).name}, in which nothing is trained"


def _report(console: Console, then: Account, now: Account) -> bool:
    """What came out differently, then in what the runs differ that may be the cause. Whether the same came out."""
    accounts = (then, now)
    found = differing_metrics(accounts, of_machine=False)
    metrics = {name: values for name, values in found.items() if name in then.metrics}  # an older version has fewer
    other: Mapping[str, list[Any]] = {"weights": [then.weights, now.weights]} if then.weights != now.weights else {}
    same = not metrics and not other
    console.print()
    if not same:
        rows = [(name, *map(_digest, values)) for name, values in other.items()]
        rows += [(name, *map(repr, values)) for name, values in metrics.items()]
        show_table(console, Table("came out differently", ("", *BOTH), tuple(rows)))
    sections = print_differences(console, accounts, BOTH)
    if sections or not same:
        console.print()
    equal = the_same(accounts, sections)
    said = f"{_verdict(then, same, sections)} The same: {', '.join(equal) or 'nothing'}."
    if added := [name for name in found if name not in metrics]:
        said += f" Measured only now: {', '.join(added)}."
    console.print(said, highlight=False, markup=False)
    return same


def _verdict(then: Account, same: bool, found: list[str]) -> str:
    if same:
        used = bool(read_config(then.folder).get("run"))  # whose weights were there before
        what = "weights and results" if then.weights and not used else "results"
        despite = f", though {', '.join(found)} differ{'s' if len(found) == 1 else ''}" if found else ""
        return f"Run {then.folder.name} again: the same {what} to the bit{despite}."
    cause = f"differences in {', '.join(found)}" if found else "nothing that is recorded differs"
    return f"Run {then.folder.name} again: not the same; {cause}."


def _digest(value: str | None) -> str:
    return value[:12] if value else "none"
