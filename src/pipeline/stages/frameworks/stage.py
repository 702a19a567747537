"""stage=frameworks: what each framework does here of what a framework is for, with the command that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipeline.contracts import Stage
from pipeline.experiment.effects import refuse_unread
from pipeline.machine.capability import Resolved
from pipeline.machine.regular_file import as_named
from pipeline.runs.json_files import cannot_write
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import group_of, spec
from pipeline.stages.frameworks.checked import commands
from pipeline.stages.frameworks.duties import DUTIES, Cell, Duty, cells
from pipeline.stages.frameworks.page import page

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

TAKES = ("stage", "output_dir")


@spec
class Frameworks(Stage):
    """`markdown`: a file that the table is written to, without what holds on this machine alone (None: none)."""

    recorded: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()

    markdown: str | None = None

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys that would choose a framework, or anything of a training."""
        instead = {"tracking": "nothing is recorded, the table is printed"}
        unread = [key for key in keys if group_of(key) not in TAKES]
        why = {key: instead.get(group_of(key), "the table is of all frameworks") for key in unread}
        refuse_unread(why, "stage=frameworks")

    def run(self, experiment: Experiment, resolved: Resolved, run: Run | None) -> Result:
        """A block for each duty. Raises UserError where the file cannot be written."""
        runs = Path(experiment.settings.output_dir)
        with commands() as checked:
            table = [(duty, list(cells(duty, checked, runs))) for duty in DUTIES]
        rows = list(_rows(table))
        if self.markdown is not None:
            _write(as_named(self.markdown), page(table))
            rows += [("", ""), ("written", self.markdown)]
        return Result(metrics=(), table=tuple(rows))


def _rows(table: Sequence[tuple[Duty, Sequence[Cell]]]) -> Iterator[tuple[str, str]]:
    """Name and text; a framework's command stands below what it shows."""
    for duty, found in table:
        yield "", ""
        yield duty.name, duty.about
        for number, one in enumerate(found):
            held = filter(None, (one.held(found[:number]), one.here))
            yield f"  {one.framework}", "\n".join([*held, one.command])


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error, key="stage.markdown: ") from error
