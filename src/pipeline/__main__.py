"""python -m pipeline: compose the config, check it, run it. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import _signal  # `signal` itself takes 15 ms to import

_signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until main() there is nothing that a Ctrl-C could unwind

import sys  # noqa: E402

from pipeline.cli.linux import refuse_elsewhere  # noqa: E402


def main() -> None:
    """The command."""
    refuse_elsewhere()
    from pipeline.cli.exits import status_of, stop_on_signals
    from pipeline.cli.notebook import GRACE_SECONDS, in_notebook, unset_notebook_backend
    from pipeline.cli.streams import forgive, outlive_readers, reopen_closed

    reopen_closed()
    outlive_readers()
    forgive(sys.stdout)
    stop_on_signals(grace=GRACE_SECONDS if in_notebook() else None)
    unset_notebook_backend()
    sys.exit(status_of(compose_and_run))


def compose_and_run() -> int:
    """Let Hydra compose what the command line asks for and run it (pipeline.runner), or with -m the grid."""
    from pipeline.cli.exits import raise_if_stopped
    from pipeline.cli.help import help_asked_for

    message = version() if "--version" in sys.argv[1:] else help_asked_for(sys.argv[1:])
    if message is not None:
        print(message)
        return 0
    from pipeline.machine.collector import importing

    with importing("pipeline.command_line"):
        from pipeline.command_line import composed
    raise_if_stopped()  # an import may have lost it
    return composed(sys.argv[1:])


def version() -> str:
    """Of this package, with the commit of its files where they lie in a repository; and Hydra's."""
    from importlib.metadata import version

    from pipeline.runs.repositories import git_state

    git = git_state()
    commit = f", commit {git['commit']}{' and changes since' * bool(git['dirty'])}" if git["commit"] else ""
    return f"pipeline {version('pipeline')}{commit}; Hydra {version('hydra-core')}"


if __name__ == "__main__":
    main()
