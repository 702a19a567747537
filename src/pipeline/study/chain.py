"""A stage that starts from the run of another: which block it may name, and its experiment before that run is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pipeline.contracts import Stage, offers
from pipeline.datasets.other import differ
from pipeline.errors import UserError, cut, nearest
from pipeline.experiment import Experiment, stage_of
from pipeline.ready import ready_before
from pipeline.runs.saved import chosen_anew
from pipeline.spec import choice
from pipeline.study import saved
from pipeline.study.params import Block


def started(
    block: Block, config: Mapping[str, Any], trained: Mapping[str, Experiment], blocks: Collection[str]
) -> Experiment:
    """The experiment of a block that starts from one of `trained`, as far as it can be checked without that run.

    `config`: the block's as the command line would compose it; `blocks`: the names of all. Raises UserError.
    """
    source, folder = _source(block, stage_of(config), trained, blocks), saved.folder(str(block.run))
    merged = chosen_anew(source.config, folder, {**config, "run": str(folder)}, block.keys)
    return ready_before(merged, block.keys)


def _source(block: Block, stage: Stage, trained: Mapping[str, Experiment], blocks: Collection[str]) -> Experiment:
    """What the block starts from. Raises UserError unless that is a block that trains one model."""
    allowed = [name for name, one in trained.items() if _why_not(one.stage) is None]
    can = f"blocks that train one model: {', '.join(allowed) or 'none here'}"
    name = block.run
    if name is None:
        raise UserError(
            f"stage={choice(stage)}: starts from a saved run, and DVC tracks that of a block alone; add run: <block> "
            f"({can})"
        )
    if name not in blocks:
        near = nearest(str(name), allowed)
        hint = f" (did you mean {near}?)" if near else ""
        raise UserError(f"run={cut(name)}: no block of the study{hint}, and DVC tracks no other saved run; {can}")
    why = _why_not(trained[name].stage) if name in trained else "starts from a saved run and trains nothing"
    if why is not None:
        raise UserError(f"run={name}: this block {why}; {can}")
    return trained[name]


def _why_not(stage: Stage) -> str | None:
    """Why no stage can start from a run of this one; None where one can."""
    if stage.has_cells:
        return f"trains several models (stage={choice(stage)}), each in another run"
    if stage.trains_users is not None:
        return f"leaves a model that no stage starts from (stage={choice(stage)})"
    return None if stage.reads is None or stage.solves else f"trains nothing (stage={choice(stage)})"


def data_seed(experiment: Experiment, source: Experiment | None) -> int | None:
    """The seed by which a stage reads its data; None where it starts from the run of `source` and they are others."""
    return None if source is not None and differ(experiment, source.config) else experiment.seed


def reads_dataset(experiment: Experiment) -> bool:
    """Whether it reads the data of its dataset, rather than what its settings name."""
    instead = experiment.stage.starts_from_run and offers(experiment.stage, Stage.data_sha256)
    return experiment.reads("dataset") and not instead
