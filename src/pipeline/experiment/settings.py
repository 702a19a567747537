"""Keys that belong to no choice: those of the top level, those that every model or dataset has, and how a grid runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from pipeline.contracts import Part
from pipeline.errors import UserError, cut, shown
from pipeline.spec import build_as, spec


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text)]  # a name made of digits is a number to YAML
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Folds = Annotated[int, Field(ge=2, le=1000)]
Sought = Literal["maximize", "minimize"]  # what the user says of a metric that declares no direction


@spec
class Settings:
    """The keys of the top level that are not groups."""

    name: Text | None = None
    seed: NonNegativeInt = Field(default=0, lt=2**32)
    run: Text | None = None
    resume: Text | None = None
    output_dir: str = "runs"

    def __post_init__(self) -> None:
        if self.name is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,60}", self.name):
            raise UserError(f"name={cut(self.name)}: use letters, digits, '.', '_' and '-', 60 at most")
        if self.name is not None and not self.name.strip("."):
            raise UserError(f"name={self.name}: use something besides dots")
        if not self.output_dir:
            raise UserError("output_dir=: name a folder; every run gets its own folder in it")


@spec
class Adapting:
    """`model.adapters`: what is trained beside the dense layers of a saved model, which stay as they are (LoRA).

    `rank`: of an adapter (None: there are none). `alpha`: an adapter's output is scaled by alpha / rank (None: by 1).
    `layers`: patterns of the dense layers that get one (none: all of them). `start`: a file of adapters to start from
    (a run, before the config is checked), which has its own rank, alpha and layers.
    """

    rank: PositiveInt | None = None
    alpha: Positive | None = None
    layers: tuple[Text, ...] = ()
    start: Text | None = None

    def __post_init__(self) -> None:
        layers = f"[{','.join(self.layers)}]" if self.layers else None
        for key, value in (("rank", self.rank), ("alpha", self.alpha), ("layers", layers)):
            if value is not None and self.start is not None:
                raise UserError(
                    f"model.adapters.{key}={value} with model.adapters.start: those adapters have theirs; leave it out"
                )
            if value is not None and self.rank is None:
                raise UserError(f"model.adapters.{key}={value}: without model.adapters.rank; there are no adapters")

    @property
    def active(self) -> bool:
        """Whether there are adapters."""
        return self.rank is not None or self.start is not None


def _adapting(value: object) -> object:
    if isinstance(value, Mapping):
        return build_as(Adapting, value, "model.adapters")
    if isinstance(value, Adapting):
        return value
    rank = value if type(value) is int else 8
    instead = "model.adapters.rank=null leaves adapters out" if value is None else f"write model.adapters.rank={rank}"
    raise UserError(f"model.adapters={shown(value)}: it has keys; {instead}")


@spec
class Starting:
    """The keys of the group `model` that every model has, whoever wrote it.

    `start`: a file of weights to start from (a run, before the config is checked). `start_layers`: patterns of the
    weights that are taken from it (none: all). `freeze`: patterns of the weights that stay as they start. `adapters`:
    what is trained in place of the weights.
    """

    start: Text | None = None
    start_layers: tuple[Text, ...] = ()
    freeze: tuple[Text, ...] = ()
    adapters: Annotated[Adapting, BeforeValidator(_adapting)] = Field(default_factory=Adapting)

    def __post_init__(self) -> None:
        if self.start_layers and self.start is None:
            layers = ",".join(self.start_layers)
            raise UserError(f"model.start_layers=[{layers}]: without model.start; name a run or a file there")
        if self.adapters.active:
            self._check_adapters()

    def _check_adapters(self) -> None:
        key = "rank" if self.adapters.start is None else "start"
        named = f"model.adapters.{key}={getattr(self.adapters, key)}"
        if self.start is None:
            raise UserError(f"{named}: without model.start; name the saved run there whose model is adapted")
        for other, value in (("start_layers", self.start_layers), ("freeze", self.freeze)):
            if value:
                said = f"{named} with model.{other}=[{','.join(value)}]"
                raise UserError(f"{said}: all weights of the saved model are taken, and stay as they are; leave it out")

    @property
    def active(self) -> bool:
        """Whether anything differs from a start with the model's own weights, all of which are trained."""
        return self.start is not None or bool(self.freeze)


@spec
class Inputs:
    """The keys of the group `dataset` that every dataset has, whoever wrote it.

    `normalise`: subtract the training examples' mean and divide by their standard deviation, channel by channel.
    `folds`: divide all examples into so many folds, of which number `fold` (from 0) is the test; validation is drawn
    from the others. None: the dataset's own division.
    """

    normalise: bool = False
    folds: Folds | None = None
    fold: NonNegativeInt | None = None

    def __post_init__(self) -> None:
        if self.folds is None:
            if self.fold is not None:
                many = max(5, self.fold + 1)
                raise UserError(f"dataset.fold={self.fold}: of how many? Set dataset.folds={many}, or another number")
            return
        last = self.folds - 1
        if self.fold is None:
            raise UserError(
                f"dataset.folds={self.folds}: which of them is the test? Set dataset.fold to 0 to {last}, or use "
                f"stage=folds stage.folds={self.folds}, which trains once for each"
            )
        if self.fold > last:
            raise UserError(f"dataset.fold={self.fold} with dataset.folds={self.folds}: choose from 0 to {last}")


@spec
class Sweep(Part):
    """How a grid runs. None of it decides a cell's result.

    `jobs`: cells at once, on GPUs too (None: one for each GPU; on the CPU as many as `backend.threads` leaves cores
    for, one where it is not set, since a cell then takes every core). `timeout`: seconds that a cell may take. `retry`:
    which cells that ended without a result run again: those that were killed, also those that failed, or all, finished
    ones too. `impossible`: skip cells that cannot run here, or refuse the grid. `stop_after`: give up when the first
    cells, this many, all fail for one cause (0: never). `best`: the metric that the table shows and the best cell is
    chosen by (None: the stage's). `direction`: of a `best` that declares none. `dry_run`: only list what would run,
    and why.
    """

    jobs: PositiveInt | None = None
    timeout: Positive | None = None
    retry: Literal["killed", "failed", "all"] = "killed"
    impossible: Literal["skip", "fail"] = "skip"
    stop_after: NonNegativeInt = 3
    best: str | None = None
    direction: Sought | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.direction is not None and self.best is None:
            raise UserError(f"sweep.direction={self.direction}: of which metric? name it, as sweep.best=<metric>")
