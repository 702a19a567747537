"""The receipt: what really ran, beside what was asked for."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.contracts import Model
from pipeline.contracts.physics import Network
from pipeline.errors import RunError, UserError
from pipeline.experiment.metrics import name_of
from pipeline.machine import cuda
from pipeline.machine import host as machine
from pipeline.machine.capability import Resolved
from pipeline.machine.device import canonical, gpus
from pipeline.machine.environment import environment
from pipeline.machine.installed import installed_version
from pipeline.machine.precision import FORMATS, UNSCALED
from pipeline.runs import weights
from pipeline.runs.code import code_hash as code
from pipeline.runs.code.sources import brings
from pipeline.runs.fit import Fit, Observation
from pipeline.runs.repositories import repositories
from pipeline.runs.run import seconds_since_start
from pipeline.runs.saved import card_sha256, saved_card
from pipeline.variables import names_in

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

ALWAYS = ("numpy", "hydra-core", "omegaconf", "mlflow")
UNSET_THREADS = "the framework's choice"
COMPUTES = {"jax": ("jaxlib",)}  # the compiled part of a package, where it has its own version


def before(experiment: Experiment, resolved: Resolved) -> dict[str, Any]:
    """What is known before anything runs."""
    return {
        "seed": experiment.seed,
        "config_sha256": experiment.config_sha256(),
        **_without_seed(experiment),
        "code_sha256": code.code_sha256(experiment),
        "git": repositories(code.own_modules(experiment), code.own_files(experiment)),
        "backend": experiment.backend.name,
        "profiler": profiler(experiment),
        "augmentation": augmentation(experiment),
        **_metrics(experiment),
        "device": {
            "requested": experiment.device.name,
            "effective": str(resolved.place),
            "reason": resolved.device_reason,
            "hardware": hardware(resolved),
        },
        "precision": {
            "requested": experiment.precision.name,
            "effective": resolved.precision,
            "reason": resolved.precision_reason,
            **({"loss_scaling": UNSCALED} if unscaled(experiment, resolved) else {}),
        },
        "versions": software(experiment, always=ALWAYS),
        "environment": environment(),
    }


def _without_seed(experiment: Experiment) -> dict[str, str]:
    """Whose variables (`${oc.env:NAME}`) had the same values, whatever the seed, can be seen by this hash alone."""
    if not names_in(experiment.config):
        return {}
    return {"config_without_seed_sha256": experiment.config_sha256(without=("seed",))}


def _metrics(experiment: Experiment) -> dict[str, list[str]]:
    """What the metrics of training.metrics are called, in their order: the config alone does not say it."""
    names = [name_of(metric) for metric in experiment.training.metrics]
    return {"metrics": names} if names else {}


def profiler(experiment: Experiment) -> dict[str, Any] | None:
    """The profiler that looks on, with its settings: times that it has touched are not those of a run without it."""
    return None if not experiment.profiler.active else dict(experiment.config["profiler"])


def augmentation(experiment: Experiment) -> dict[str, Any] | None:
    """What changed the training images, with its settings."""
    return dict(experiment.config["augmentation"]) if experiment.augmentation.active else None


def of_saved(
    experiment: Experiment,
    resolved: Resolved,
    saved: weights.Weights,
    data_sha256: str,
    seen: Observation | None = None,
) -> dict[str, Any]:
    """The receipt of a stage that only uses the weights of the run `run`, at its end.

    `seen`: what a pass of the model ran; None where nothing watched.
    """
    receipt, source = before(experiment, resolved), Path(str(experiment.settings.run))
    if seen is None:
        receipt["precision"] |= {"observed": None, "not_observed_because": "nothing watches this stage's passes"}
    else:
        add_observed(receipt, experiment, resolved, seen)
    return receipt | {
        "source_run": source.name,
        "data_sha256": data_sha256,
        "weights_sha256": weights.digest(saved),
        **({"card_sha256": card_sha256(card)} if (card := saved_card(source)) else {}),
        "wall_time_s": seconds_since_start(),
    }


def after(receipt: dict[str, Any], experiment: Experiment, resolved: Resolved, fit: Fit, data_sha256: str) -> None:
    """Add what was seen while it ran. Raises RunError where the products ran elsewhere or in another dtype (strict)."""
    receipt["data_sha256"] = data_sha256
    receipt["weights_sha256"] = weights.digest(fit.weights)
    receipt["kept_weights"] = fit.kept
    receipt["parameters"] = fit.parameters
    receipt["initial_weights"] = fit.start.plain()
    receipt["peak_memory"] = fit.peak_memory
    if fit.processes is not None:
        receipt["processes"] = fit.processes
    add_fit(receipt, experiment, resolved, fit)


def add_fit(receipt: dict[str, Any], experiment: Experiment, resolved: Resolved, fit: Fit) -> None:
    """Add how a training ran. Raises RunError where the products ran elsewhere or in another dtype (strict)."""
    receipt["device"]["cpu_threads"] = fit.cpu_threads or UNSET_THREADS
    if fit.loss_scale is not None:
        receipt["precision"]["loss_scale"] = fit.loss_scale.plain()
    check_observed(receipt, experiment, resolved, fit.observed)


def check_observed(receipt: dict[str, Any], experiment: Experiment, resolved: Resolved, seen: Observation) -> None:
    """Add what was observed. Raises RunError where the products ran elsewhere or in another dtype (strict)."""
    refuse(add_observed(receipt, experiment, resolved, seen), experiment)


def refuse(problems: str, experiment: Experiment) -> None:
    """Raise RunError for what is not as asked, in words, where the precision is strict."""
    if problems and experiment.precision.strict:
        raise RunError(f"{problems}; precision.strict=false lets the run pass and keeps this in the receipt")


def add_observed(receipt: dict[str, Any], experiment: Experiment, resolved: Resolved, seen: Observation) -> str:
    """Add what was observed. Returns in words what is not as asked; empty where all is."""
    receipt["device"]["effective"] = ", ".join(places(seen)) or "none seen"
    receipt["precision"]["observed"] = observed(seen)
    device, several = experiment.device, experiment.backend.shards and not experiment.stage.starts_from_run
    count = device.processes * device.split if several else 1
    where = elsewhere(receipt.get("processes")) or device_mismatch(resolved, seen, count)
    problem = mismatch(experiment, resolved, seen)
    said = add_problems(receipt, device=where, precision=problem)
    if problem is None and FORMATS[resolved.precision].tf32 and not seen.tf32:
        why = seen.tf32_by if seen.tf32 is None else "none of the matrix products ran in it"
        receipt["precision"] |= {"as_requested": None, "problem": f"TF32: {why}"}
    return said


def problems(receipt: Mapping[str, Any]) -> str:
    """In words what of a finished receipt is not as asked; empty where all is."""
    parts = (receipt["device"], receipt["precision"])
    return "; ".join(part["problem"] for part in parts if part.get("as_requested") is False)


def add_problems(receipt: dict[str, Any], *, device: str | None, precision: str | None) -> str:
    """Add what of both is not as asked (None: all is). Returns it in words; empty where all is."""
    problems = {"device": device, "precision": precision}
    for part, problem in problems.items():
        receipt[part]["as_requested"] = problem is None
        if problem:
            receipt[part]["problem"] = problem
    return "; ".join(filter(None, problems.values()))


def add_layers(receipt: dict[str, Any], resolved: Resolved, layers: Mapping[tuple[str, str], int]) -> str:
    """Add the layers' dtypes (compute, weights) of a training whose step Keras compiles itself: nothing observes it.

    Returns in words where they are not the precision's; where they are, a compiler may still do something else.
    """
    precision, form = receipt["precision"], FORMATS[resolved.precision]
    named = {_in_words(*dtypes): count for dtypes, count in sorted(layers.items())}
    precision |= {"observed": None, "not_observed_because": "model.fit compiles the step itself", "layers": named}
    if set(layers) <= {(form.compute, form.parameters)}:
        return ""
    asked, found = _in_words(form.compute, form.parameters), ", ".join(f"{name} ({n})" for name, n in named.items())
    problem = f"precision={resolved.precision} asks for {asked} but the layers compute in {found}"
    precision |= {"as_requested": False, "problem": problem}
    return problem


def _in_words(compute: str, weights_in: str) -> str:
    return compute if compute == weights_in else f"{compute} with {weights_in} weights"


def unscaled(experiment: Experiment, resolved: Resolved) -> str | None:
    """The setting by which the run trains in float16 without loss scaling, what nobody should do unawares; or None."""
    if not experiment.reads("training") or experiment.stage.starts_from_run:
        return None
    form, model = FORMATS[resolved.precision], experiment.model
    if form.compute == "float16" and not form.loss_scaling:
        return f"precision={resolved.precision}"
    layers = model.layer_dtypes if isinstance(model, Model) else ()
    return f"model.layer_dtypes=[{','.join(one or 'null' for one in layers)}]" if "float16" in layers else None


def observed(seen: Observation) -> dict[str, Any]:
    """An observation as plain data."""
    plain: dict[str, Any] = {
        "how": seen.how,
        "matrix_products": dict(seen.matmuls),
        "devices": sorted(seen.devices),
        "tf32": seen.tf32,
        "tf32_by": seen.tf32_by,
    }
    if seen.attention:
        plain["attention"] = dict(seen.attention)
    if seen.compiled is not None:
        plain["matrix_products_after_compilation"] = dict(seen.compiled)
    return plain


def places(seen: Observation) -> list[str]:
    """Where the matrix products ran, in one notation for every framework's names (cuda:0, /device:GPU:0, cpu:0)."""
    return sorted({_place(name) for name in seen.product_devices})


def _place(name: str) -> str:
    if name.startswith("cpu:"):  # of several devices that JAX makes of the one CPU
        return "cpu"
    try:
        return canonical(name)
    except UserError:  # a name that nobody would write: shown as it is, and surely not the one asked for
        return name


def device_mismatch(resolved: Resolved, seen: Observation, count: int = 1) -> str | None:
    """How the devices of the matrix products differ from the `count` that this process should use, or None.

    Those are the one asked for and the next ones; a CPU has one name. Judged by the products
    alone: an optimizer may count its steps in the host's memory beside any GPU.
    """
    first = resolved.place
    asked = {str(replace(first, index=first.index + n)) for n in range(count)}
    found = places(seen)
    if set(found) == asked or not found:
        return None
    wanted = ", ".join(sorted(asked))
    return f"device={wanted} but the matrix products ran on {', '.join(found)}"


def elsewhere(processes: Mapping[str, Any] | None) -> str | None:
    """Which processes of a training computed elsewhere than where they should, or None."""
    each = enumerate((processes or {}).get("each") or ())
    wrong = [(rank, one) for rank, one in each if one["products_on"] not in ([], [one["device"]])]
    return (
        "; ".join(
            f"device={one['device']} of process {rank} but its matrix products ran on {', '.join(one['products_on'])}"
            for rank, one in wrong
        )
        or None
    )


def mismatch(experiment: Experiment, resolved: Resolved, seen: Observation) -> str | None:
    """How what was observed differs from what was asked for, or None.

    Judged by the program as the framework runs it. A compiler may still widen a product on hardware that has no narrow
    one (XLA on a CPU turns bfloat16 products into float32 ones of rounded operands); the receipt shows that beside it.
    """
    form = FORMATS[resolved.precision]
    wanted = _expected_dtypes(experiment.model, form.compute)
    if not seen.matmuls:
        return "no matrix product was seen, so its precision is not known"
    if set(seen.matmuls) != wanted:
        found = ", ".join(f"{dtype} ({count})" for dtype, count in sorted(seen.matmuls.items()))
        asked = ", ".join(sorted(wanted))
        return f"precision={resolved.precision} asks for {asked} but the matrix products ran in {found}"
    if form.tf32 and seen.tf32 is False and not experiment.stage.starts_from_run:  # of few rows no library uses it
        return (
            f"precision={resolved.precision} but none of the step's matrix products ran in TF32: a GPU's library may "
            "use it for large ones alone; choose precision=fp32, which is what ran, or a wider model"
        )
    if form.compute == "float32" and not form.tf32 and seen.tf32:
        return f"precision={resolved.precision} but TF32 was on in the matrix products"
    return None


def _expected_dtypes(model: Model | Network, compute: str) -> set[str]:
    """The dtypes that the matrix products of `model` should run in: the precision's, or a layer's own."""
    layers = model.layer_dtypes if isinstance(model, Model) else ()
    return {dtype or compute for dtype in layers} or {compute}


def software(experiment: Experiment, always: tuple[str, ...]) -> dict[str, str]:
    """Versions of what takes part: Python, packages, the C library; CUDA where a backend as installed can use it."""
    every = (experiment, *code.below(experiment))
    found = versions(code.packages(experiment), always) | {"libc": machine.libc()}
    for backend in {one.backend.name: one.backend for one in every}.values():
        found |= cuda.versions(backend)
    for one in every:
        found |= one.stage.versions()
    return found


def versions(packages: tuple[str, ...], always: tuple[str, ...] = ALWAYS) -> dict[str, str]:
    """Versions of Python and of the packages that took part."""
    found = {"python": platform.python_version()}
    compiled = [name for package in packages for name in COMPUTES.get(package, ())]
    for name in (*packages, *compiled, *always):
        found[name] = version_of(name)
    return found


@cache
def version_of(package: str) -> str:
    """The version of an installed package; kept, since a grid asks once a cell and each answer is a file to read.

    Where another distribution brings its module, as tensorflow-cpu does, that one's.
    """
    found = brings(package)
    if found is None:
        return "not installed"
    return f"{installed_version(found)}{f' ({found})' if found != package else ''}"


def hardware(resolved: Resolved) -> dict[str, Any]:
    """The device by its maker's name, and what of the processor decides the last bits.

    Beside a GPU too, where it makes the initial weights; how many cores it has decides nothing there.
    """
    host = machine.cpu()
    if resolved.place.kind == "gpu":
        gpu = gpus()[resolved.place.index]
        capability = ".".join(str(part) for part in gpu.compute_capability)
        card = {"name": gpu.name, "memory_bytes": gpu.memory_bytes, "compute_capability": capability}
        return card | {"host": {name: value for name, value in host.items() if name != "cores"}}
    return host
