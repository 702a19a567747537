"""stage=predict: what a saved run makes of the user's images or rows, or of points in the domain of its problem."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipeline.contracts import Stage
from pipeline.contracts.physics import Problem
from pipeline.datasets import number_files
from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.machine.regular_file import as_named
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import group_of, spec
from pipeline.stages import predict_images, predict_rows
from pipeline.tasks.language_modelling import LanguageModelling

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@spec
class Predict(Stage):
    """`images`: files of an image each, folders of such, or IDX files of many.

    `invert`: for dark drawings on a light ground.

    `rows`: for a model of rows of numbers, a .npy or .csv file with a row an example, as its data have them.
    `points`: for a run of stage=pinn, a .npy or .csv file with one point per row.
    """

    images: tuple[str, ...] = ()
    rows: str | None = None
    points: str | None = None
    invert: bool = False

    starts_from_run: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("pillow",)

    @property
    def user_files(self) -> tuple[Path, ...]:
        """The files that it predicts from, which a study has to watch. Raises UserError for a folder of no images."""
        numbers = [text for text in (self.rows, self.points) if text is not None]
        return tuple(map(as_named, [*predict_images.files_of(self.images), *numbers]))

    @property
    def resolved(self) -> Resolved | None:
        """What computes points, whatever the run was trained on; None for images: as the run's config says."""
        if self.points is None:
            return None
        why = "points are predicted in NumPy, in float64"
        return Resolved(Place("cpu"), "fp64", why, why)

    def needs_less(self) -> str:
        return super().needs_less() if self.points is None else "name fewer points in stage.points"

    def check(self, experiment: Experiment) -> None:
        """Refuse images, rows or points that are not there, and those that the run's task does not take."""
        if isinstance(experiment.dataset, Problem):
            self._check_points(experiment.dataset)
            return
        if self.points is not None:
            raise UserError(f"stage.points={self.points}: this run solved no problem; leave it out")
        if self.rows is not None and (self.images or self.invert):
            raise UserError(f"stage.rows={self.rows} with stage.images or stage.invert: a model takes one of them")
        self._check_task(experiment)
        if self.rows is not None:
            number_files.check_there(predict_rows.KEY, self.rows)
        else:
            predict_images.check(self.images)

    def check_source(self, experiment: Experiment, source: Path) -> None:
        """Refuse a run of something else than what is given, and rows that its model does not take."""
        if self.rows is not None:
            predict_rows.check(self.rows, source)
        elif self.points is None:
            predict_images.check_source(source)

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse what would not be followed: points are predicted in NumPy, in float64."""
        for key in keys if self.points is not None else ():
            if group_of(key) in ("backend", "device", "precision"):
                raise UserError(f"{key} with stage.points: points are predicted in NumPy, in float64; leave it out")

    def data_sha256(self, experiment: Experiment) -> str:
        """Hash of the images, or of the points. Raises UserError where they, or the saved card, cannot be read."""
        if self.points is not None:
            from pipeline.pinn import at_points

            return at_points.sha256(self.points, experiment.problem)
        source = Path(str(experiment.settings.run))
        if self.rows is not None:
            return predict_rows.sha256(self.rows, source)
        return predict_images.sha256(self.images, self.invert, source)

    def _check_points(self, problem: Problem) -> None:
        if self.images or self.rows or self.invert:
            given = "stage.images" if self.images or self.invert else "stage.rows"
            raise UserError(f"{given} with a run that solved a problem: use stage.points=points.csv")
        if self.points is None:
            raise UserError("stage.points=null: name a .npy or .csv file with a point a row")
        number_files.check_there("stage.points", self.points)
        from pipeline.pinn import at_points

        at_points.read_points(self.points, problem)

    def _check_task(self, experiment: Experiment) -> None:
        """Refuse a run whose task has neither classes nor numbers to predict, and images for one of numbers."""
        task = experiment.data_source.task
        its = f"run={Path(str(experiment.settings.run)).name}: its task is {task.__name__}"
        if task.example_kind not in ("numbers", None):
            instead = "; stage=generate writes text" if issubclass(task, LanguageModelling) else ""
            raise UserError(f"{its}; stage=predict takes images or rows of numbers{instead}")
        if task.targets == "numbers" and self.rows is None:
            raise UserError(f"{its}; stage.images is for classes; give it rows of numbers: stage.rows=rows.csv")

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Predict. Raises UserError for images or points that are unreadable."""
        if self.points is not None:
            from pipeline.pinn import at_points

            return at_points.run(experiment, resolved, run, self.points)
        if self.rows is not None:
            return predict_rows.run(experiment, resolved, run, self.rows)
        return predict_images.run(experiment, resolved, run, self.images, self.invert)
