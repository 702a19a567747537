"""What the tracker's process does, and what a person may ask of it.

python -m pipeline.tracking follow <run folder>          what `start` spawns; ends with the run
python -m pipeline.tracking sync [runs folder]           send what could not be sent before, once
                               --uri URI                     move the runs to another server
                               --force                       send all again: rebuild a database that was lost
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipeline.cli.streams import forgive, outlive_readers, printable, reopen_closed
from pipeline.passwords import without_password
from pipeline.tracking import record as records


def main() -> int:
    reopen_closed()
    outlive_readers()
    forgive(sys.stdout)
    parser = argparse.ArgumentParser(prog="python -m pipeline.tracking")
    commands = parser.add_subparsers(dest="command", required=True)
    follow = commands.add_parser("follow", help="follow one run and send it to MLflow until it has ended")
    follow.add_argument("folder", type=Path)
    sync = commands.add_parser("sync", help="send finished runs: those that MLflow does not have yet")
    sync.add_argument("root", type=Path, nargs="?", default=Path("runs"), help="the folder of the runs [runs]")
    sync.add_argument("--uri", help="move the runs there, those that MLflow has elsewhere too")
    sync.add_argument("--force", action="store_true", help="send all again: after a database was lost")
    options = parser.parse_args()
    if options.command == "follow":
        from pipeline.tracking import follow as tracking_follow

        return tracking_follow.follow(options.folder.absolute())
    if not options.root.is_dir():
        parser.error(printable(f"{options.root}: no such folder"))
    try:
        uri = None if options.uri is None else records.check_uri(options.uri)
    except ValueError as error:
        parser.error(printable(without_password(f"--uri {options.uri}: {error}")))
    from pipeline.tracking import sync as tracking_sync

    return tracking_sync.sync(options.root.absolute(), uri, force=options.force)


if __name__ == "__main__":
    sys.exit(main())
