"""What an experiment with a problem must have, and one without must not: checked before anything is imported or run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.contracts import Part
from pipeline.contracts.physics import Network, Problem, Solver
from pipeline.errors import Impossible, UserError
from pipeline.experiment.checks import MODELS
from pipeline.spec import choice, group_of

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

# By what a part is known to be made for problems, what to say of one that is not, or is here in vain, and a choice.
PARTS: dict[str, tuple[Callable[[Part], bool], str, str, str]] = {
    "dataset": (
        lambda part: isinstance(part, Problem),
        "not a problem; this stage solves problems such as dataset=ode",
        "is a problem; use {pinn}, or another dataset",
        "dataset=ode",
    ),
    "model": (
        lambda part: isinstance(part, Network),
        "not a network for problems; model=fnn is one",
        "is a network for problems; use {data}, or {pinn}",
        "model=fnn",
    ),
    "solver": (
        lambda part: isinstance(part, Solver) and part.active,
        "solves nothing; choose one, such as solver=deepxde",
        "solves problems; use solver=none, or {pinn}",
        "solver=deepxde",
    ),
}
CHECKPOINT = "training.checkpoint."  # of that group, what decides no result and holds for every training
OF_IMAGES = ("loader", "augmentation", "optimizer", "loss", "schedule", "training")


def check_problem(experiment: Experiment, keys: Sequence[str]) -> bool:
    """Whether the experiment is about a problem, not images. Raises UserError for a mixture of both.

    `keys`: the user's, of which some may be read by trainings on data alone.
    """
    stage = experiment.stage
    if stage.starts_from_run:
        return PARTS["dataset"][0](experiment.dataset)
    solves = stage.solves
    of_problem = {key: is_one(experiment.part(key)) for key, (is_one, *_) in PARTS.items()}
    wrong = [key for key, is_one in of_problem.items() if is_one != solves]
    of_data = [key for key in keys if group_of(key) in OF_IMAGES and not key.startswith(CHECKPOINT)]
    if wrong:
        if not solves and any(map(experiment.reads, wrong)):
            stage.check_keys(experiment, keys)  # where it sets a part anew, no other choice will do either
        named = f"{wrong[0]}={choice(experiment.part(wrong[0]))} with stage={choice(stage)}"
        instead = _wanted(wrong, of_data) if solves else _unwanted(experiment, wrong, of_problem, of_data)
        raise UserError(f"{named}: {instead}")
    if solves:
        if of_data:
            raise UserError(
                f"{', '.join(of_data)} with stage={choice(stage)}: a problem has no batches and no classes; leave "
                f"{'it' if len(of_data) == 1 else 'them'} out: solver= and its settings say how it is trained"
            )
        _check_settings(experiment)
    return solves


def _wanted(wrong: Sequence[str], of_data: Sequence[str]) -> str:
    """What to say of parts that a stage cannot solve, and all that has to be chosen in their places or left out."""
    _, said, _, _ = PARTS[wrong[0]]
    if len(wrong) == 1 and not of_data:
        return said
    return f"{said.partition(';')[0]}; use {' '.join(PARTS[key][3] for key in wrong)}{_without(of_data)}"


def _without(of_data: Sequence[str]) -> str:
    return f" without {', '.join(of_data)}" if of_data else ""


def _unwanted(
    experiment: Experiment, wrong: Sequence[str], of_problem: Mapping[str, bool], of_data: Sequence[str]
) -> str:
    """The same of parts that are made for problems, where a stage trains on data."""
    if not any(map(experiment.reads, wrong)):
        return f"has no effect there; leave out {', '.join(wrong)}"
    pinn = ["stage=pinn", *(PARTS[key][3] for key in ("dataset", "model") if not of_problem[key])]
    data = ["another model"]
    if not of_problem["dataset"]:
        kind = experiment.data_source.task.example_kind
        data = [f"model={MODELS[kind]}" if kind in MODELS else "another model", *["solver=none"] * ("solver" in wrong)]
    return PARTS[wrong[0]][2].format(pinn=" ".join(pinn) + _without(of_data), data=" ".join(data))


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
