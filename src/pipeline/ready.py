"""A composed config made ready: built, checked, and resolved for this machine. Imports no framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pipeline.errors import Impossible, Lacking, UserError
from pipeline.spec import Config, choice

if TYPE_CHECKING:
    from pipeline.contracts import Backend
    from pipeline.experiment import Experiment
    from pipeline.machine.capability import Resolved
    from pipeline.machine.device import Gpu, Place


def ready(config: Config, overridden: Sequence[str], swept: Sequence[str] = ()) -> tuple[Experiment, Resolved]:
    """The checked experiment, and what this machine makes of it. `swept`: the keys in which a grid's cells differ.

    Imports no framework. Raises UserError.
    """
    from pipeline.experiment import stage_of
    from pipeline.machine.device import count_by_bus

    count_by_bus()
    resolved = None
    if config.get("run") is None:
        try:
            # What cannot run here is refused before NumPy is imported, which takes as long as all else.
            resolved = cell_of(config)
        except Impossible:
            stage = stage_of(config)
            if stage.computes_by is None and not stage.own_kernels:  # else these decide, when it is checked
                raise
    return _on_this_machine(_built(config, overridden), overridden, swept, resolved)


def ready_again(config: Config, folder: Path, key: str) -> tuple[Experiment, Resolved]:
    """`ready` for the config of the saved run in `folder` that `key` names. Raises UserError."""
    from pipeline.machine.device import count_by_bus

    count_by_bus()
    return _on_this_machine(_load_saved(config, folder, key), ())


def ready_before(config: Config, overridden: Sequence[str]) -> Experiment:
    """The experiment of `ready` for a stage that starts from a run which is not made yet, checked but for what only
    that run's files show. Raises UserError."""
    from pipeline.machine.device import count_by_bus

    count_by_bus()
    return _on_this_machine(load_checked(config, overridden), overridden, is_made=False)[0]


def _on_this_machine(
    experiment: Experiment,
    overridden: Sequence[str],
    swept: Sequence[str] = (),
    by_config: Resolved | None = None,
    *,
    is_made: bool = True,
) -> tuple[Experiment, Resolved]:
    """`by_config`: what the backend comes to that the config names, where that is known. `is_made`: as `check_stage`
    has it."""
    from pipeline.machine.capability import check_count
    from pipeline.machine.device import gpus
    from pipeline.machine.environment import refuse_settings
    from pipeline.machine.installed import check_installed
    from pipeline.machine.launched import check_launched, launched, refuse_launched
    from pipeline.runs.code.unseen import check_seen

    refuse_settings()
    check_stage(experiment, overridden, swept, is_made=is_made)
    if not experiment.stage.starts_from_run:  # what trained a saved run is over and done
        check_seen(experiment)
    else:
        refuse_launched(f"stage={choice(experiment.stage)}", experiment.device.processes)
    check_installed(experiment.needs)
    stage = experiment.stage
    known = None if stage.computes_by is not None or stage.own_kernels else by_config
    resolved = stage.resolved or known or cell_of(experiment.config, stage.computes_by, any_gpu=stage.own_kernels)
    if not experiment.stage.starts_from_run:
        started, backend = launched(experiment.device.processes), experiment.backend
        check_launched(started, experiment.device, backend.name, distributes=backend.distributes)
        check_count(experiment.device, resolved.place, len(gpus()) if resolved.place.kind == "gpu" else 0, started)
    _check_device(experiment, resolved.place)
    return experiment, resolved


def planned(
    config: Config, overridden: Sequence[str], kind: Literal["cpu", "gpu"], swept: Sequence[str] = ()
) -> Experiment:
    """The checked experiment for a node of a cluster, by what holds for every device of that kind.

    What only the node knows, which GPU it has and which precisions that one runs, is judged there. Raises UserError.
    """
    from pipeline.machine.capability import resolve
    from pipeline.machine.device import Place

    experiment = _built(config, overridden)
    if not experiment.stage.has_cells:  # which it tries on this machine's devices
        check_stage(experiment, overridden, swept)
    if kind == "cpu":
        resolve(experiment.backend.name, replace(experiment.device, name="cpu"), experiment.precision.name, ())
    _check_device(experiment, Place(kind))
    return experiment


def backend_of(config: Config, overridden: Sequence[str]) -> Backend:
    """That of a composed config, or of the saved run that it starts from. Imports no framework. Raises UserError."""
    from pipeline.experiment import place_of

    return place_of(_whole(config, overridden))[0]


def _built(config: Config, overridden: Sequence[str]) -> Experiment:
    from pipeline.experiment import stage_of

    whole = _whole(config, overridden)
    if stage_of(config).starts_from_run:
        return _load_saved(whole, Path(whole["run"]), "run", overridden)
    return load_checked(whole, overridden)


def _load_saved(config: Config, folder: Path, key: str, overridden: Sequence[str] = ()) -> Experiment:
    """`load_checked` for the config of a saved run. Where the run's own settings are refused, says who has them."""
    from pipeline.runs.records import read_config
    from pipeline.runs.saved import made_by

    try:
        return load_checked(config, overridden)
    except (Impossible, Lacking):
        raise
    except UserError as error:
        if _refusal(read_config(folder)) != str(error):  # it is an override of this command that is refused
            raise
        raise UserError(f"{key}={folder.name}: {error}{made_by(folder)}") from error


def _refusal(config: Config) -> str | None:
    try:
        load_checked(config)
    except UserError as error:
        return str(error)
    return None


def _whole(config: Config, overridden: Sequence[str]) -> Config:
    """The config that counts, with the runs that it names."""
    from pipeline.experiment import stage_of

    if stage_of(config).starts_from_run:  # all but the stage is then that run's, so it is looked up first
        from pipeline.runs.saved import config_of

        folder, merged = config_of(config, overridden)
        return {**merged, "run": str(folder)}
    from pipeline.runs.start import located

    return located(config)


def load_checked(config: Config, overridden: Sequence[str] = ()) -> Experiment:
    """The experiment of a composed config whose groups go together. Imports no framework.

    Raises UserError, and Impossible for choices that do not go together.
    """
    from pipeline.experiment import load
    from pipeline.experiment.checks import check_processes, check_run, check_training
    from pipeline.pinn.check import check_problem

    experiment = load(config)
    check_run(experiment)
    check_processes(experiment)
    solves = check_problem(experiment, overridden)
    experiment.stage.check_keys(experiment, overridden)  # first: another choice in its place would be refused as well
    if not solves:
        check_training(experiment)
    return experiment


def check_stage(
    experiment: Experiment, overridden: Sequence[str], swept: Sequence[str] = (), *, is_made: bool = True
) -> None:
    """Ask the stage, and refuse keys that have no effect. Raises UserError.

    `is_made`: whether the saved run is there that it starts from, if it does.
    """
    from pipeline.experiment.effects import check_read

    check_read(experiment, overridden, swept)
    experiment.stage.check(experiment)
    if experiment.stage.starts_from_run and is_made:
        experiment.stage.check_source(experiment, Path(str(experiment.settings.run)))


def _check_device(experiment: Experiment, place: Place) -> None:
    """Ask the parts whether they can work on this device. Raises UserError."""
    trains = not experiment.stage.starts_from_run
    if trains or experiment.stage.compiles_passes:
        experiment.backend.check_device(place)
    if trains:
        experiment.loader.check_device(place)
    experiment.profiler.check_device(place, experiment.backend.name)


def cell_of(config: Config, computes_by: tuple[Backend, ...] | None = None, *, any_gpu: bool = False) -> Resolved:
    """What a config's backend, device and precision come to on this machine. Raises UserError.

    `computes_by`: as the stage has it; one of them has to be able to use the device, unless `any_gpu` will do.
    """
    from pipeline.experiment import place_of
    from pipeline.machine.capability import resolve
    from pipeline.machine.device import canonical, gpus

    backend, device, precision = place_of(config)
    on_cpu = canonical(device.name) == "cpu"
    asked = (backend,) if computes_by is None else computes_by
    because = () if on_cpu or any_gpu else tuple(_no_gpu_because(asked, gpu) for gpu in gpus())
    return resolve(backend.name, device, precision.name, gpus(), because)


def _no_gpu_because(asked: tuple[Backend, ...], gpu: Gpu) -> str | None:
    """Why none of the backends can use a GPU; None where one can."""
    because = [backend.no_gpu_because(gpu) for backend in asked]
    if None in because:
        return None
    return "; ".join(why for why in because if why) or "no framework that is named uses a GPU"
