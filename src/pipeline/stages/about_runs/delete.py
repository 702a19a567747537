"""stage=delete: saved runs are deleted, their folders and their entries in MLflow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pipeline.cli.notebook import in_notebook
from pipeline.cli.streams import say
from pipeline.cli.terminal import messages, results
from pipeline.contracts.runs import AboutRuns
from pipeline.errors import RunError, UserError, plural
from pipeline.experiment.settings import Settings, Text
from pipeline.report.table import size
from pipeline.runs.deletion import cells_of, check_deletable, delete_folder, held, named, size_of, users_of
from pipeline.runs.lookup import find_run
from pipeline.spec import Config, spec


@spec
class Delete(AboutRuns):
    """`runs`: several, in place of `run=<id>`. `sure`: without being asked, as is needed where no terminal is.

    `mlflow`: delete their entries in MLflow too.
    """

    keys: ClassVar[tuple[str, ...]] = ("run",)

    runs: tuple[Text, ...] = ()
    sure: bool = False
    mlflow: bool = True

    def act(self, settings: Settings, config: Config) -> int:
        """Ask, then delete; 1 where a run could not be deleted. All are found and checked before the first goes."""
        root = Path(settings.output_dir)
        folders = self._folders(settings, root)
        for folder in folders:
            check_deletable(root, folder)
        self._confirm(root, folders)
        failures = 0
        for folder in folders:
            try:
                with held(root, folder):
                    _delete(folder, mlflow=self.mlflow)
            except (RunError, UserError) as error:
                say(messages(), f"error: {error}")
                failures += 1
        return 1 if failures else 0

    def _folders(self, settings: Settings, root: Path) -> list[Path]:
        if bool(settings.run) is bool(self.runs):
            raise UserError("stage=delete: name one run by run=<id>, or several by stage.runs=[<id>,<id>]")
        names = self.runs or (str(settings.run),)
        if "latest" in names:
            raise UserError("run=latest with stage=delete: name the run by its id, so that the right one is deleted")
        return list(dict.fromkeys(find_run(root, name, holding="status.json") for name in names))

    def _confirm(self, root: Path, folders: Sequence[Path]) -> None:
        """Say what would go; ask on a terminal.

        Raises UserError where the answer is not yes, or nobody can be asked.
        """
        console = messages()
        going = {folder.name for folder in folders}
        for folder in folders:
            cells = [cell for cell in cells_of(folder) if cell not in going]
            kept = f"; the runs of its {plural(len(cells), 'cell')} stay" if cells else ""
            say(console, f"{folder.name}  {size(size_of(folder))}{kept}")
        for line in named(users_of(root, folders)):
            say(console, line)
        if self.sure:
            return
        if in_notebook() or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UserError("stage=delete: nobody can be asked here; stage.sure=true deletes without asking")
        many = f"these {len(folders)} runs" if len(folders) > 1 else "this run"
        print(f"delete {many} for good? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UserError("nothing was deleted")


def _delete(folder: Path, *, mlflow: bool) -> None:
    """The entry in MLflow first: without the folder nobody would know where it is."""
    also = ""
    if mlflow:
        from pipeline.tracking.forget import forget
        from pipeline.tracking.record import original

        first, entry = original(folder), forget(folder)
        also = f", and its entry {entry} in MLflow" if entry else ""
        also = f"; it was a copy of {first}, whose entry in MLflow stays" if first else also
    delete_folder(folder)
    say(results(), f"deleted {folder.name}{also}")
