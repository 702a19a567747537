"""Which weights a training starts from, and which of them stay as they are: `model.start`, `model.freeze`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import UserError, cut, shown
from pipeline.models.adapters import adapters_of
from pipeline.models.patterns import all_but, matches, matching
from pipeline.models.weights import Names, fit_to, initial, own_start
from pipeline.runs import weights
from pipeline.runs.choices import nearest
from pipeline.runs.fit import Start
from pipeline.runs.records import read_config
from pipeline.runs.saved import check_start
from pipeline.runs.start import called
from pipeline.runs.weights import SAFETENSORS, Weights, safetensors
from pipeline.spec import choice

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

NO_NUMBERS = "cSUOMm"  # kinds of NumPy: complex numbers, text, objects, times
POSITIONS = "positions.embeddings"  # of a language model, one for each of dataset.context
# Settings of a model that decide how it is trained, and not what its weights compute.
OF_TRAINING = frozenset(
    ("start", "start_layers", "freeze", "adapters", "dropout", "recompute", "zero_projections", "layer_dtypes")
)
SOME = "model.start_layers=[<layer>,...] takes those layers from the file, and all others begin as without it"
COUNT_OF_BATCHES = "num_batches_tracked"  # torch's, which no inference reads


def start_of(
    experiment: Experiment,
    made: Weights,
    trained: Iterable[str],
    names: Names,
    dense_layers: Callable[[], Sequence[str]],
) -> tuple[Weights, Start]:
    """The values that a training starts from, and whose they are.

    `made`: as the model's builder made them. `trained`: those that an optimizer would change. `names`: the framework's
    own names of them, which a file may have. `dense_layers`: the paths of what may get an adapter. Raises UserError for
    saved weights that do not fit, and for patterns that match nothing or leave nothing to train.
    """
    model, wanted = experiment.data_model, experiment.starting
    own = tuple(own_start(made)) if model.shared_start else tuple(made)
    values = made
    if model.shared_start:
        drawn = initial(made, experiment.seed)
        values = {name: model.first_value(name, array) for name, array in drawn.items()}
    found = Start(shared=tuple(name for name in made if name not in own), own=own)
    if wanted.start is not None:
        loaded, sha256 = _loaded_from(wanted.start, experiment, made, names)
        values = {**values, **loaded}
        found = replace(
            found,
            shared=tuple(name for name in found.shared if name not in loaded),
            own=tuple(name for name in found.own if name not in loaded),
            loaded=tuple(loaded),
            source=wanted.start,
            source_sha256=sha256,
        )
    if wanted.adapters.active:
        adapters = adapters_of(experiment, values, dense_layers(), str(found.source_sha256))
        return values, replace(found, frozen=tuple(made), adapters=adapters)
    if not (named := set(trained)) and made:
        raise UserError(
            f"model={choice(experiment.model)}: has nothing that would be trained; leave some of its weights unfrozen, "
            "or train others beside them (model.adapters.rank)"
        )
    return values, replace(found, frozen=_frozen(wanted.freeze, made, named))


def _loaded_from(start: str, experiment: Experiment, made: Weights, names: Names) -> tuple[Weights, str]:
    """The saved weights that are asked for, and the digest of all. Raises UserError where they do not fit."""
    saved = _read(Path(start), names)
    sha256 = weights.digest(saved)
    check_start("model.start", Path(start), sha256)
    _check_context(experiment, saved, made)
    try:
        return _loaded(start, saved, experiment.starting.start_layers, made), sha256
    except UserError as error:
        raise UserError(f"{error}{_of_that_run(experiment)}") from error


def other_settings(start: Path, model: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that the saved run's model had otherwise, and that decide what its weights compute: then and now.

    `model`: the config's node. Empty where the file is of no run, or of a model of another class.
    """
    saved = saved_model(start)
    if saved.get("_target_") != model.get("_target_"):
        return {}
    keys = [key for key in model if key in saved and key not in OF_TRAINING]
    return {key: (saved[key], model[key]) for key in keys if saved[key] != model[key]}


def other_model(start: Path, model: Mapping[str, Any]) -> str | None:
    """The choice of the saved run's model where it is of another class; None where the file is of no run.

    `model`: the config's node.
    """
    saved = saved_model(start)
    if saved.get("_target_") in (None, model.get("_target_")):
        return None
    return nearest("model", saved)[0]


def saved_model(start: Path) -> Mapping[str, Any]:
    """The node of the config of the run that a file of weights is of; empty where it is of none."""
    saved = read_config(start.parents[2]).get("model") if len(start.parents) > 2 else None
    return saved if isinstance(saved, dict) else {}


def _of_that_run(experiment: Experiment) -> str:
    """What to set so that the model is that of the saved run."""
    start = Path(str(experiment.starting.start))
    if other := other_model(start, experiment.config["model"]):
        return f"; that run has model={other}"
    differ = other_settings(start, experiment.config["model"])
    words = " ".join(f"model.{key}={shown(then)}" for key, (then, _) in differ.items())
    return f"; that run has {words}" if differ else ""


def _read(path: Path, names: Names) -> Weights:
    """The weights in a file, by their common names where it has a framework's own."""
    if path.suffix != SAFETENSORS:
        return weights.load(path)
    found: Weights = {}
    for own, array in safetensors(path).items():
        name, axes = names.get(own, (own, ()))
        found[name] = array.transpose(axes) if len(axes) == array.ndim else array
    return {name: array for name, array in found.items() if not name.endswith(COUNT_OF_BATCHES)}


def _check_context(experiment: Experiment, saved: Weights, made: Weights) -> None:
    """Refuse sequences of another length than the saved model has learned positions for. Raises UserError."""
    wanted, context = experiment.starting, experiment.config["dataset"].get("context")
    if POSITIONS not in saved or POSITIONS not in made or len(made[POSITIONS]) != context:
        return
    length = len(saved[POSITIONS])
    taken = not wanted.start_layers or any(matches(POSITIONS, pattern) for pattern in wanted.start_layers)
    if taken and length != context:
        layers = all_but((POSITIONS.partition(".")[0],), made)
        raise UserError(
            f"dataset.context={context} with model.start={called(str(wanted.start))}: that model has learned {length} "
            f"positions; choose dataset.context={length}, or model.start_layers={layers} takes all but them"
        )


def _loaded(source: str, saved: Weights, patterns: Sequence[str], made: Weights) -> Weights:
    """The saved weights that go into a model that has `made`: all of them, or by name those that a pattern matches.

    A .safetensors file has no order of layers, so that its weights match by name alone.
    """
    by_name = Path(source).suffix == SAFETENSORS
    if not patterns and not by_name:
        found = dict(zip(made, fit_to(saved, made, f"model.start={called(source)}"), strict=True))
        _check_numbers(source, found)
        return found
    chosen = matching("model.start_layers", patterns, made) if patterns else tuple(made)
    more = [] if patterns else [name for name in saved if name not in made]
    for name in chosen:
        if name not in saved:
            raise UserError(
                f"model.start={called(source)}: has no {name} {made[name].shape}; it has {cut(', '.join(saved), 600)}"
            )
        if saved[name].shape != made[name].shape:
            raise UserError(
                f"model.start={called(source)}: {name} has shape {saved[name].shape}; this model's has "
                f"{made[name].shape}"
            )
    if more:
        raise UserError(
            f"model.start={called(source)}: {more[0]} {saved[more[0]].shape} is not in this model, which has "
            f"{cut(', '.join(made), 600)}; model.start_layers={all_but((), made)} takes those and leaves the rest of "
            "the file out"
        )
    found = {name: saved[name] for name in chosen}
    _check_numbers(source, found)
    return found


def _check_numbers(source: str, loaded: Weights) -> None:
    """Refuse weights that are no real numbers, and NaN, which no training gets rid of. Raises UserError."""
    for name, array in loaded.items():
        if array.dtype.kind in NO_NUMBERS:
            raise UserError(
                f"model.start={called(source)}: {name} holds no real numbers ({array.dtype}); name another file"
            )
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise UserError(
                f"model.start={called(source)}: {name} holds nan, which no training gets rid of; name another file"
            )


def _frozen(patterns: Sequence[str], made: Weights, trained: set[str]) -> tuple[str, ...]:
    frozen = matching("model.freeze", patterns, made)
    named = f"model.freeze=[{cut(','.join(patterns))}]"
    if patterns and not trained.intersection(frozen):
        raise UserError(f"{named}: freezes nothing that would be trained; what is trained: {_some(trained, made)}")
    if frozen and not trained.difference(frozen):
        raise UserError(f"{named}: freezes everything; leave some of {_some(trained, made)} out")
    return frozen


def _some(trained: set[str], made: Weights) -> str:
    return cut(", ".join(name for name in made if name in trained), 600)
