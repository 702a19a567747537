"""python -m pipeline: compose the config, check it, run it. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from pipeline.errors import RunError, Stopped, UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pipeline.capability import Resolved
    from pipeline.experiment import Experiment
    from pipeline.run import Run

# Exit statuses: 0 done, 1 the run (or a cell of a grid) failed, 2 the user's mistake, 128 + n stopped by signal n.


def main() -> None:
    """The command."""
    try:
        status = compose_and_run(sys.argv[1:])
        sys.stdout.flush()
    except (UserError, RunError) as error:
        if os.environ.get("PIPELINE_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        status = 2 if isinstance(error, UserError) else 1
    except Stopped as stop:
        print(f"stopped by {stop.signal_name}", file=sys.stderr)
        status = stop.exit_status
    except BrokenPipeError:  # whoever read our output (head, less) has seen enough
        from pipeline.terminal import leave

        leave(sys.stdout.fileno())
        status = 0
    sys.exit(status)


def compose_and_run(arguments: list[str]) -> int:
    """Let Hydra compose what `arguments` ask for and hand it to `run_one` (or, with -m, to the grid)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    from pipeline.command_line import composed

    return composed(arguments, run_one)


def run_one(config: DictConfig, overridden: list[str]) -> int:
    """One experiment: check, resolve, run, record."""
    from omegaconf import OmegaConf

    from pipeline import experiment as experiments
    from pipeline.capability import resolve
    from pipeline.device import gpus

    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    experiment = experiments.load(plain)
    if experiment.stage.starts_from_run:
        from pipeline.saved import config_of

        folder, merged = config_of(plain, overridden)
        experiment = experiments.load({**merged, "run": str(folder)})
    because = experiment.backend.no_gpu_because() if gpus() else None
    resolved = resolve(experiment.backend.name, experiment.device, experiment.precision.name, gpus(), because)
    if not experiment.stage.recorded:
        return show_only(experiment, resolved)
    return record(experiment, resolved)


def show_only(experiment: Experiment, resolved: Resolved) -> int:
    """Run a stage that prints and leaves nothing behind."""
    from pipeline.report.table import show
    from pipeline.terminal import results

    result = experiment.stage.run(experiment, resolved, None)
    show(results(), type(experiment.stage).__name__.lower(), result.table)
    return 0


def record(experiment: Experiment, resolved: Resolved) -> int:
    """Run a stage with a journal and, beside it, tracking; the journal says how it ended, whatever happens."""
    from pipeline.journal import Journal
    from pipeline.run import Run
    from pipeline.terminal import messages
    from pipeline.tracking import start

    journal = Journal.begin(Path(experiment.settings.output_dir), experiment.name, experiment.config)
    run = Run(journal, messages())
    try:
        tracker = start(experiment.tracking, journal)
        announce(experiment, resolved, run)
        result = experiment.stage.run(experiment, resolved, run)
        journal.write_result({"scalars": dict(result.metrics)})
    except Stopped as stop:
        journal.finish("KILLED", f"stopped by {stop.signal_name}")
        raise
    except BaseException as error:  # SystemExit too: no run stays RUNNING
        told = explained(error, resolved, journal.folder)
        journal.finish("FAILED", told)
        if told is error:
            raise
        raise told from error
    journal.finish("FINISHED")
    return report(experiment, run, result, tracker)


def announce(experiment: Experiment, resolved: Resolved, run: Run) -> None:
    """One line before anything slow: what will run, and why where the request left it open."""
    run.say(f"{experiment.name}  run {run.id}  on {resolved.place} at {resolved.precision}")
    if resolved.precision != experiment.precision.name:
        run.say(f"precision={experiment.precision.name}: {resolved.precision_reason}")


def report(experiment: Experiment, run: Run, result: Any, tracker: Any) -> int:
    """The table on standard output; where things lie."""
    from pipeline.report.table import show
    from pipeline.terminal import results

    for note in result.notes:
        run.say(note)
    show(results(), experiment.name, [*result.table, ("run folder", os.path.relpath(run.folder))])
    if tracker is not None:  # last, since a busy machine or a slow server may take its time
        run.say(f"MLflow: {tracker.close(experiment.tracking.wait)}")
    return 0


def explained(error: BaseException, resolved: Resolved, folder: Path) -> BaseException:
    """What a person can act on, for the errors that the machine makes; any other error as it is."""
    from pipeline.backends.memory import as_user_error, is_out_of_memory
    from pipeline.journal import cannot_write

    if isinstance(error, (UserError, RunError)):
        return error
    if is_out_of_memory(error):
        return as_user_error(error, resolved)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
        return cannot_write(Path(error.filename or folder), error)
    return error


def _stop(number: int, _: FrameType | None) -> None:
    """A signal becomes an exception that unwinds the run; a second one ends the process at once."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    raise Stopped(signal.Signals(number).name, 128 + number)


if __name__ == "__main__":
    main()
