"""python -m pipeline.study compose | data | run <stage> | report | check: the commands of dvc.yaml, and the proof."""

from __future__ import annotations

import argparse
import sys

from pipeline.cli.exits import status_of, stop_on_signals
from pipeline.cli.linux import refuse_elsewhere
from pipeline.cli.streams import forgive, outlive_readers, reopen_closed
from pipeline.machine.installed import check_installed
from pipeline.study.checkout import refuse_other_package


def main() -> None:
    """The command."""
    refuse_elsewhere()
    reopen_closed()
    outlive_readers()
    forgive(sys.stdout)
    stop_on_signals()
    options = parser().parse_args()
    sys.exit(status_of(lambda: perform(options)))


def parser() -> argparse.ArgumentParser:
    """What can be said."""
    whole = argparse.ArgumentParser(prog="python -m pipeline.study", description="The commands behind `dvc repro`.")
    commands = whole.add_subparsers(dest="command", required=True, metavar="compose|data|run|report|check")
    commands.add_parser("compose", help="params.yaml and conf/ -> composed.yaml, what each stage is")
    commands.add_parser("data", help="fetch every dataset of the study, and note its hash")
    run = commands.add_parser("run", help="run one stage as composed.yaml has it")
    run.add_argument("stage", help="its name in params.yaml")
    commands.add_parser("report", help="put the stages side by side: study/report/")
    commands.add_parser("check", help="whether dvc.lock, composed.yaml and the MLflow runs describe the same execution")
    return whole


def perform(options: argparse.Namespace) -> int:
    """Do it, importing what this command needs. Returns the exit status."""
    refuse_other_package()
    check_installed({"the study": ("dvc", "ruamel.yaml")})
    if options.command == "compose":
        from pipeline.study.compose import compose

        return compose()
    if options.command == "data":
        from pipeline.study.data import fetch

        return fetch()
    if options.command == "run":
        from pipeline.study.run import run

        return run(options.stage)
    if options.command == "report":
        from pipeline.study.report import report

        return report()
    from pipeline.study.check import check

    return check()


if __name__ == "__main__":
    main()
