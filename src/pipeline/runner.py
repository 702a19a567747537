"""The runner: run the stage of a composed config, record what happened, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.streams import say
from pipeline.errors import Pruned, RunError, Stopped, UserError, thing
from pipeline.machine.collector import uncollected
from pipeline.ready import ready, ready_again
from pipeline.spec import Config, choice, group_of

if TYPE_CHECKING:
    from pipeline.contracts import GridMember, Stage
    from pipeline.contracts.runs import AboutRuns
    from pipeline.experiment import Experiment
    from pipeline.machine.capability import Resolved
    from pipeline.runs.checkpoint import Checkpoint
    from pipeline.runs.dynamic_imports import DynamicImports
    from pipeline.runs.journal import Journal
    from pipeline.runs.result import Result
    from pipeline.runs.run import Run


def run_one(config: Config, overridden: Sequence[str]) -> int:
    """One experiment from its resolved config, plain data; `overridden`: the keys that the user set. Exit status."""
    from pipeline.experiment import about_runs_of
    from pipeline.machine.launched import SEVERAL
    from pipeline.runs.resume import AUTO

    if config.get("resume") not in (None, AUTO):
        if trained_along(SEVERAL):  # how many the run has had, only the first looks up
            return 0
        with leading(SEVERAL):
            return resume(config, overridden)
    about_runs = about_runs_of(config)
    if about_runs is not None:
        return act(about_runs, config, overridden)
    with uncollected():
        experiment, resolved = ready(config, overridden)
    if trained_along(experiment.device.processes):
        return 0
    with leading(experiment.device.processes):
        return begin(experiment, resolved, config, overridden)


def begin(experiment: Experiment, resolved: Resolved, config: Config, overridden: Sequence[str]) -> int:
    """A new run of a checked experiment, or a killed one of the same where the user, or Slurm, asks for it."""
    from pipeline.runs.resume import AUTO, begun_before
    from pipeline.runs.slurm import restarts

    status = experiment.profiler.rerun()  # of a profiler that has to be there before the process is
    if status is not None:
        return status
    if not experiment.stage.recorded:
        return show_only(experiment, resolved)
    experiment.stage.rehearse(experiment, resolved)
    again = config.get("resume") == AUTO or restarts() > 0
    checkpoint = begun_before(experiment, resolved) if again else None
    return record(experiment, resolved, checkpoint=checkpoint, keys=overridden)


def trained_along(processes: int) -> bool:
    """Train as one of several processes that a launcher has started, where this is not the first, which has the run."""
    from pipeline.machine.launched import launched

    mine = launched(processes)
    if mine is None or mine.rank == 0:
        return False
    from pipeline.backends.torch.joined import train_along

    train_along(mine)
    return True


@contextmanager
def leading(processes: int) -> Iterator[None]:
    """Around what the first of several launched processes does: the others learn why it trains nothing, if so."""
    from pipeline.machine.launched import launched

    try:
        yield
    except Exception as error:
        mine = launched(processes)
        if mine is not None:
            from pipeline.backends.torch.joined import dismiss

            dismiss(mine, str(error) or type(error).__name__)
        raise


def act(stage: AboutRuns, config: Config, overridden: Sequence[str]) -> int:
    """Run a stage that is about saved runs, for which no experiment is built. Exit status. Raises UserError."""
    from pipeline.experiment import settings_of

    takes = ("output_dir", *stage.keys)
    for key in overridden:
        if group_of(key) not in ("stage", *takes):
            own = [f"stage.{one.name}" for one in fields(stage)]  # type: ignore[arg-type]  # a spec is a dataclass
            raise UserError(
                f"{key} with stage={choice(stage)}: this stage works on saved runs and composes no experiment; it "
                f"takes {', '.join([*own, *takes])}"
            )
    return stage.act(settings_of(config), config)


def show_only(experiment: Experiment, resolved: Resolved) -> int:
    """Run a stage that prints and leaves nothing behind."""
    from pipeline.cli.terminal import results
    from pipeline.report.table import of_words, show, show_table

    result = experiment.stage.run(experiment, resolved, None)  # type: ignore[arg-type]  # one that is not recorded
    console = results()
    for one in result.tables:
        show_table(console, one, of_words(one))
        console.print()
    show(console, type(experiment.stage).__name__.lower(), result.table)
    return 0


def resume(config: Config, overridden: Sequence[str]) -> int:
    """Go on with a run that was killed, in its own folder. Raises UserError where that cannot end as it would have."""
    from pipeline.cli.terminal import messages
    from pipeline.experiment.effects import tokens_of
    from pipeline.machine.launched import SEVERAL, refuse_launched
    from pipeline.runs import receipt as receipts
    from pipeline.runs.resume import check_starts, differences, resumed

    folder, saved, checkpoint, notes = resumed(config, overridden)
    console = messages()
    for note in notes:  # first: a refusal may be of another run than was meant
        say(console, f"resume={folder.name}: {note}")
    experiment, resolved = ready_again(saved, folder, "resume")
    check_starts(f"resume={folder.name}", experiment)
    if experiment.device.processes == 1:
        refuse_launched(f"resume={folder.name}: device.processes=1", SEVERAL)
    other = differences(folder, checkpoint, receipts.before(experiment, resolved), experiment)
    if other and experiment.training.checkpoint.strict:
        tokens = tokens_of(experiment) is not None
        raise UserError(
            f"resume={folder.name}: not the same as when it was killed ({'; '.join(other)}); "
            f"training.checkpoint.strict=false resumes anyway{', but not with other tokens' * tokens}"
        )
    for one in other:
        say(console, f"resume={folder.name}: not exact: {one}")
    return record(experiment, resolved, checkpoint=replace(checkpoint, differences=tuple(other)))


def record(
    experiment: Experiment,
    resolved: Resolved,
    member: GridMember | None = None,
    began: Callable[[Path], None] | None = None,
    checkpoint: Checkpoint | None = None,
    keys: Sequence[str] = (),
) -> int:
    """Run a stage with a journal and, beside it, tracking; the journal says how it ended, whatever happens.

    `member` is given to a cell of a grid, and ties its run to the grid's. `began` is called with the run's folder.
    `checkpoint`: of a run that goes on. `keys`: those that the user set, of which some may have no effect.
    """
    from pipeline.cli.terminal import messages
    from pipeline.runs.dynamic_imports import DynamicImports
    from pipeline.runs.run import Run
    from pipeline.tracking.tracker import start

    journal = _journal(experiment, checkpoint, Path(member.grid).name if member else None)
    run = Run(journal, messages(), checkpoint, experiment.training.checkpoint)
    imported = checkpoint.progress.get("imported_beside", {}) if checkpoint else {}
    run.imported = beside = DynamicImports(experiment, imported)
    if began is not None:
        began(run.folder)
    try:
        tracker = start(experiment.tracking, journal, member.grid if member else None)
        if member:
            member.began(run)
        introduce(experiment, resolved, run, keys)
        result = result_of_stage(experiment, resolved, run, beside)
        journal.write_result(result)
    except Stopped as stop:
        interrupted = member.interrupted() if member else None
        journal.finish("KILLED", interrupted or f"stopped by {stop.signal_name}")
        raise
    except Pruned as pruned:
        journal.finish("PRUNED", str(pruned))
        run.say(str(pruned))
        return 0
    except BaseException as error:  # SystemExit too: no run stays RUNNING
        message = explained(error, resolved, journal.folder, experiment.stage)
        journal.finish("FAILED", message)
        if message is error:
            raise
        raise message from error
    journal.finish("FAILED" if result.failed else "FINISHED", result.failed)
    return report(experiment, run, result, tracker)


def result_of_stage(experiment: Experiment, resolved: Resolved, run: Run, beside: DynamicImports) -> Result:
    """Run the stage. Its result, with peak memory and all notes; what was imported while it ran is kept however it
    ends.
    """
    from pipeline.runs.json_files import read_json
    from pipeline.runs.peaks import peaks
    from pipeline.runs.result import Result

    try:
        result = experiment.stage.run(experiment, resolved, run)
        keep_receipt(experiment, resolved, run)
    finally:
        keep_imported(run, beside)
    if not isinstance(result, Result):
        raise UserError(
            f"stage={choice(experiment.stage)}: run() gives {thing(result)}; give a {Result.__module__}.Result"
        )
    note_others(resolved, run)
    found = peaks(read_json(run.folder / "receipt.json")) if run.profile is None else ()  # a profiler keeps its records
    every = tuple(dict.fromkeys((*run.notes, *result.notes)))
    return replace(
        result, metrics=(*result.metrics, *found), title=experiment.name, last_epoch=run.last_epoch, notes=every
    )


def _journal(experiment: Experiment, checkpoint: Checkpoint | None, cell_of: str | None) -> Journal:
    from pipeline.runs.journal import Journal

    if checkpoint is not None:
        size, exact = checkpoint.progress["journal_bytes"], not checkpoint.differences
        return Journal.reopen(checkpoint.folder.parent.parent, size, exact=exact, cell_of=cell_of)
    return Journal.begin(Path(experiment.settings.output_dir), experiment.name, experiment.config, cell_of)


def introduce(experiment: Experiment, resolved: Resolved, run: Run, keys: Sequence[str]) -> None:
    """Say and note what is known before the stage runs: notes of before a kill, what runs, what has no effect."""
    from pipeline.experiment.effects import of_settings
    from pipeline.runs.code.code_hash import modules

    for note in run.notes:
        run.say(note)
    announce(experiment, resolved, run)
    run.journal.write_code(modules(experiment))
    for note in of_settings(experiment, keys):
        run.note(note)


def note_others(resolved: Resolved, run: Run) -> None:
    """That other processes have the GPU."""
    from pipeline.machine.gpu_users import said_of_others

    said = said_of_others(resolved.place)
    if said:
        run.note(said)


def keep_receipt(experiment: Experiment, resolved: Resolved, run: Run) -> None:
    """What is known of any run, where the stage has written no receipt: without one no grid finds its result again.

    Of a stage that runs cells also how long it took with them.
    """
    from pipeline.runs import receipt as receipts
    from pipeline.runs.code.code_hash import hash_of
    from pipeline.runs.json_files import read_json
    from pipeline.runs.run import seconds_since_start

    if (run.folder / "receipt.json").exists():
        written = read_json(run.folder / "receipt.json")
        if experiment.stage.has_cells and written:
            run.journal.write_receipt({"wall_time_s": seconds_since_start(), **written})
        return
    code = hash_of(read_json(run.folder / "code.json"))  # as it was when the run began
    known = receipts.before(experiment, resolved) | {"code_sha256": code}
    run.journal.write_receipt(known | {"wall_time_s": seconds_since_start()})


def keep_imported(run: Run, beside: DynamicImports) -> None:
    """Add to the receipt what of the user's code was imported beside what it has the hash of, here or by its cells."""
    from pipeline.runs.dynamic_imports import imported_by_cells, merged
    from pipeline.runs.json_files import read_json

    found = merged([beside.of_all(), imported_by_cells(run.folder)])
    receipt = read_json(run.folder / "receipt.json") if found else {}
    if receipt:
        run.journal.write_receipt({**receipt, "imported_beside": found})


def announce(experiment: Experiment, resolved: Resolved, run: Run) -> None:
    """A few lines before anything slow: what will run, why where the request left it open, and what to beware of."""
    from pipeline.machine.capability import converts_bfloat16
    from pipeline.machine.device import gpus
    from pipeline.machine.precision import SQUARES_VANISH, UNSCALED
    from pipeline.runs.receipt import unscaled

    at = f" at {resolved.precision}" if experiment.reads("precision") else ""
    run.say(f"{experiment.name} on {resolved.place}{at}")
    run.say(f"run {run.id}")
    if run.checkpoint is not None:
        run.say(f"resuming at step {run.checkpoint.step:,}")
    if gpus() and resolved.device_reason not in ("as requested", "auto: the first GPU"):
        run.say(f"device={resolved.device_reason}")
    if at and resolved.precision != experiment.precision.name:
        run.say(f"precision={experiment.precision.name}: {resolved.precision_reason}")
    if at and (slow := converts_bfloat16(resolved)):
        run.say(slow)
    if by := unscaled(experiment, resolved):
        run.say(f"{by}: {UNSCALED}")
        if experiment.optimizer.divides_by_squares:
            run.note(f"{by}: optimizer={choice(experiment.optimizer)} {SQUARES_VANISH}")


def report(experiment: Experiment, run: Run, result: Result, tracker: Any) -> int:
    """The table on standard output; where things lie."""
    from pipeline.cli.terminal import results
    from pipeline.report.table import show_result

    for note in result.notes:
        if note not in run.notes:  # those were said when they came up
            run.say(note)
    try:
        show_result(results(), result, run.folder)
    finally:  # also where standard output is full
        if tracker is not None:  # last, since a busy machine or a slow server may take its time
            run.say(f"MLflow: {tracker.close(experiment.tracking.wait, run.say)}")
    if result.failed:
        run.say(f"failed: {result.failed}")
    return 1 if result.failed else 0


def explained(error: BaseException, resolved: Resolved, folder: Path, stage: Stage) -> BaseException:
    """What a person can act on, for the errors that the machine or the user's code makes; any other error as it is."""
    from pipeline.machine.memory import as_user_error, is_out_of_memory
    from pipeline.runs.json_files import disk_refused
    from pipeline.runs.user_errors import as_run_error

    if isinstance(error, (UserError, RunError)):
        return error
    if is_out_of_memory(error):
        return as_user_error(error, resolved, stage.needs_less())
    if refused := disk_refused(error, folder):
        return refused
    if isinstance(error, Exception):
        return as_run_error(error, stage.trains_users, folder / "artifacts") or error
    return error
