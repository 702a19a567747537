"""python -m pipeline: compose the config, check it, run it. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType

from pipeline.errors import RunError, Stopped, UserError
from pipeline.streams import forgive, leave

# Exit statuses: 0 done, 1 the run (or a cell of a grid) failed, 2 the user's mistake, 128 + n stopped by signal n.


def main() -> None:
    """The command."""
    forgive(sys.stdout)
    try:
        status = compose_and_run(sys.argv[1:])
        sys.stdout.flush()
    except (UserError, RunError) as error:
        if os.environ.get("PIPELINE_TRACEBACK"):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        status = 2 if isinstance(error, UserError) else 1
    except Stopped as stop:
        print(f"stopped by {stop.signal_name}", file=sys.stderr)
        status = stop.exit_status
    except BrokenPipeError:  # whoever read our output (head, less) has seen enough
        leave(sys.stdout.fileno())
        status = 0
    sys.exit(status)


def compose_and_run(arguments: list[str]) -> int:
    """Let Hydra compose what `arguments` ask for and run it (pipeline.runner), or with -m the grid (pipeline.sweep)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    from pipeline.command_line import composed

    return composed(arguments)


def _stop(number: int, _: FrameType | None) -> None:
    """A signal becomes an exception that unwinds the run; a second one ends the process at once."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    raise Stopped(signal.Signals(number).name, 128 + number)


if __name__ == "__main__":
    main()
