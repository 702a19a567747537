"""python -m pipeline: compose the config, check it, run it. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import sys

from pipeline.exits import status_of, stop_on_signals
from pipeline.streams import forgive


def main() -> None:
    """The command."""
    forgive(sys.stdout)
    stop_on_signals()
    sys.exit(status_of(compose_and_run))


def compose_and_run() -> int:
    """Let Hydra compose what the command line asks for and run it (pipeline.runner), or with -m the grid."""
    from pipeline.help import help_asked_for

    told = help_asked_for(sys.argv[1:])
    if told is not None:
        print(told)
        return 0
    from pipeline.command_line import composed

    return composed(sys.argv[1:])


if __name__ == "__main__":
    main()
