"""What an experiment with a problem must have, and one without must not: checked before anything is imported or run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pipeline.contracts import Part, Stage
from pipeline.contracts.physics import Network, Problem, Solver
from pipeline.errors import Impossible, UserError
from pipeline.spec import choice, group_of

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

# By what a part is known to be made for problems, and what to say of one that is not, or that is here in vain.
PARTS: dict[str, tuple[Callable[[Part], bool], str, str]] = {
    "dataset": (
        lambda part: isinstance(part, Problem),
        "not a problem; this stage solves problems such as dataset=ode",
        "is a problem; use stage=pinn, or another dataset",
    ),
    "model": (
        lambda part: isinstance(part, Network),
        "not a network for problems; model=fnn is one",
        "is a network for problems; use stage=pinn, or another model",
    ),
    "solver": (
        lambda part: isinstance(part, Solver) and part.active,
        "solves nothing; choose one, such as solver=deepxde",
        "solves problems; use stage=pinn, or solver=none",
    ),
}
CHECKPOINT = "training.checkpoint."  # of that group, what decides no result and holds for every training
OF_IMAGES = ("loader", "augmentation", "optimizer", "loss", "schedule", "training")


def check_problem(experiment: Experiment) -> bool:
    """Whether the experiment is about a problem, not images. Raises UserError for a mixture of both."""
    stage = experiment.stage
    if stage.starts_from_run:
        return PARTS["dataset"][0](experiment.dataset)
    solves = stage.solves
    for key, (of_problem, wanted, unwanted) in PARTS.items():
        part = experiment.part(key)
        if of_problem(part) != solves:
            raise UserError(f"{key}={choice(part)} with stage={choice(stage)}: {wanted if solves else unwanted}")
    if solves:
        _check_settings(experiment)
    return solves


def _check_settings(experiment: Experiment) -> None:
    """Refuse what a stage that solves would not follow. Raises UserError and Impossible."""
    backend, solver, stage = experiment.backend, experiment.solver, choice(experiment.stage)
    if backend.name not in solver.backends:
        reason = solver.instead.get(backend.name, f"use backend={solver.backends[0]}")
        raise Impossible(
            f"solver={choice(solver)} with backend={backend.name}: it runs on {', '.join(solver.backends)}; {reason}"
        )
    if experiment.profiler.active:
        raise UserError(
            f"profiler={choice(experiment.profiler)} with stage={stage}: profilers measure trainings on datasets only"
        )
    for group, keys in (("model", experiment.starting), ("dataset", experiment.inputs)):
        unset = type(keys)()
        for key, value in vars(keys).items():
            if value != getattr(unset, key):
                raise UserError(f"{group}.{key} with stage={stage}: it would be ignored; leave it out")
    device = experiment.device
    for setting in backend.unused_by_solvers():
        raise UserError(f"{setting} with stage={stage}: it would be ignored; leave it out")
    for key, value, default in (
        ("device.memory_limit", device.memory_limit, None),
        ("device.logical_devices", device.logical_devices, 1),
        ("device.placement_log", device.placement_log, False),
    ):
        if value != default:
            raise UserError(f"{key}={str(value).lower()} with stage={stage}: it would be ignored; leave it out")


def refuse_keys(stage: Stage, keys: Iterable[str]) -> None:
    """Refuse keys of the user's that only a classifier reads. Raises UserError."""
    for key in keys:
        if group_of(key) in OF_IMAGES and not key.startswith(CHECKPOINT):
            raise UserError(
                f"{key} with stage={choice(stage)}: a problem has no batches and no classes; solver= and its settings "
                "say how it is trained"
            )
