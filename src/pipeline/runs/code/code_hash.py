"""Which modules decide an experiment's result, and a hash of what they do.

Starting from the modules of the experiment's specs, every import of this package and of the user's own code
(sources.py says what that is) is followed, those inside functions too. Left out are, of this package, the modules
that only watch or report (WATCHING) and, by their names, other frameworks' builders (torch_*.py in a Keras run).
The hash is of the syntax tree without docstrings (a comment, a docstring or a line break changes nothing) and of the
files that the user's code and settings name. A stage that runs cells (a ladder, a comparison) has the code of all
of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.runs.code import files as code_files
from pipeline.runs.code import sources as code_sources
from pipeline.runs.code.kept import kept
from pipeline.runs.start import CARD

if TYPE_CHECKING:
    from pipeline.contracts import Part
    from pipeline.experiment import Experiment

PARTS = (
    "stage",
    "backend",
    "device",
    "precision",
    "model",
    "dataset",
    "loader",
    "augmentation",
    "optimizer",
    "loss",
    "schedule",
    "solver",
    "training",
)
ALWAYS = ("pipeline.experiment", "pipeline.machine.capability")
WATCHING = (
    "pipeline.api",
    "pipeline.cli",
    "pipeline.command_line",
    "pipeline.errors",
    "pipeline.faults",
    "pipeline.hydra_settings",
    "pipeline.machine.environment",
    "pipeline.machine.gpu_table",
    "pipeline.machine.host",
    "pipeline.machine.others",
    "pipeline.machine.quiet",
    "pipeline.pinn.figures",
    "pipeline.profilers",
    "pipeline.ready",
    "pipeline.report",
    "pipeline.runner",
    "pipeline.runs",
    "pipeline.study",
    "pipeline.sweep",
    "pipeline.tracking",
)
# Of those, what decides all the same: a session hands on the batches, a fit's weights are what is hashed, adapters are
# merged into them, and a stage's cells hand on their results. The configs of a stage's cells come from `compose`.
DECIDING = (
    "pipeline.profilers.session",
    "pipeline.report.intervals",
    "pipeline.runs.adapters",
    "pipeline.runs.fit",
    "pipeline.runs.loss_scale",
    "pipeline.runs.result",
    "pipeline.runs.weights",
    "pipeline.sweep.compose",
    "pipeline.sweep.entries",
    "pipeline.sweep.schedule",
)
HERE = Path(__file__).parents[2]
START = "pipeline.models.start"  # to which the weights count that a training starts from
OTHERS = {"torch": ("keras",), "keras": ("torch",)}  # builder -> how the modules of the other builders begin


def code_sha256(experiment: Experiment) -> str:
    """Hash of the code that decides the experiment's result."""
    return hash_of(modules(experiment))


def hash_of(found: Mapping[str, str]) -> str:
    """One hash for modules and their hashes."""
    total = hashlib.sha256()
    for name, digest in found.items():
        total.update(f"{name} {digest}\n".encode())
    return total.hexdigest()


def modules(experiment: Experiment) -> dict[str, str]:
    """The deciding modules by name, each with the hash of its code.

    The module of a stage with cells of its own stands for their configs too: what `loader=threads` of a row means lies
    in a file of conf/, not in the stage's config.
    """
    cells = below(experiment)
    found = {name: path for one in (experiment, *cells) for name, path in _followed(one)}
    hashes = _digests(found)
    # A cell's module may name other files than the same module in another cell.
    named: dict[str, list[tuple[str, Path]]] = {}
    for name, files in (each for one in (experiment, *cells) for each in _files_of_settings(one).items()):
        named.setdefault(name, []).extend(files)
    for name, files in named.items():
        read = {shown: code_files.content(file) for shown, file in files}
        hashes[name] = hash_of({name: hashes.get(name, "")} | read)
    for one in (experiment, *cells):
        for name, paths in _files_of_parts(one).items():
            read = {_called(path): code_files.content(path) for path in paths}
            hashes[name] = hash_of({name: hashes.get(name, "")} | read)
    if cells:
        stage = type(experiment.stage).__module__
        hashes[stage] = hash_of({stage: hashes[stage]} | {str(i): one.config_sha256() for i, one in enumerate(cells)})
    return dict(sorted(hashes.items()))


def below(experiment: Experiment) -> tuple[Experiment, ...]:
    """One experiment of each kind that the stage runs as cells of its own; most stages run none."""
    key = json.dumps(experiment.config, sort_keys=True)
    if key not in _below:
        _below[key] = tuple(experiment.stage.kinds(experiment))
    return _below[key]


_below: dict[str, tuple[Experiment, ...]] = {}  # what rows become takes long, and is asked for again and again


def packages(experiment: Experiment) -> tuple[str, ...]:
    """The distributions whose versions decide the result: named by the specs, or imported by the user's code."""
    every = (experiment, *below(experiment))
    named = [package for one in every for package in (*one.packages, *one.solver.packages_on(one.backend.name))]
    own = own_modules(experiment).items()
    wanted = {one.partition(".")[0] for name, path in own for one in code_sources.imports(name, path)}
    found = map(code_sources.distribution, sorted(wanted))
    imported = [one for one in found if one and one != code_sources.PACKAGE]
    return tuple(dict.fromkeys([*named, *imported]))


def own_modules(experiment: Experiment) -> dict[str, Path]:
    """The user's modules among the deciding ones, by name, and where they lie."""
    every = (experiment, *below(experiment))
    return {name: path for one in every for name, path in _followed(one) if not code_sources.is_ours(name)}


def own_variables(experiment: Experiment) -> dict[str, str | None]:
    """The environment's variables that the user's modules read, each with the value that they give to one not set."""
    found: dict[str, str | None] = {}
    for name, path in own_modules(experiment).items():
        found |= code_sources.variables(name, path)
    return found


def own_files(experiment: Experiment) -> dict[str, list[Path]]:
    """The files that the user's modules read, as far as they are known, by the name of the module."""
    own = own_modules(experiment)
    found = {name: [file for _, file in code_sources.files(name, path, Path.cwd())] for name, path in own.items()}
    for one in (experiment, *below(experiment)):
        for name, files in _files_of_settings(one).items():
            found[name] = [*found.get(name, []), *(file for _, file in files)]
    return found


def read_files(experiment: Experiment) -> list[Path]:
    """Those, and what the parts of this package read by their settings: everything that counts beside the code."""
    found = [file for files in own_files(experiment).values() for file in files]
    for one in (experiment, *below(experiment)):
        found += [file for files in _files_of_parts(one).values() for file in files]
    return list(dict.fromkeys(found))


def closure(starts: Iterable[str], builder: str = "") -> dict[str, str]:
    """The modules `starts` and what they import, each with the hash of its code."""
    return _digests(dict(_closure(tuple(sorted(set(starts))), builder)))


def own_code(names: Iterable[str]) -> dict[str, str]:
    """The modules `names` themselves, each with the hash of its code."""
    paths = {name: code_sources.source(name) for name in names}
    return _digests({name: path for name, path in paths.items() if path is not None})


def _followed(experiment: Experiment) -> tuple[tuple[str, Path], ...]:
    """The deciding modules of one experiment without its cells, and where they lie."""
    parts = _parts(experiment)
    starts = [*ALWAYS, *(type(part).__module__ for part in specs(experiment))]
    # A spec may be named by another module than the one that defines it.
    starts += [experiment.config[part]["_target_"].rpartition(".")[0] for part in parts]
    starts += [target.rpartition(".")[0] for part in specs(experiment) for target in part.user_code]
    if "backend" in parts and not experiment.stage.solves:  # a solver trains by itself
        starts += experiment.backend.modules
        if experiment.stage.probe:
            starts.append(experiment.backend.probe)
        if experiment.stage.by is not None:
            starts.append(experiment.backend.module(experiment.stage.by))
    return _closure(tuple(sorted(set(starts))), experiment.backend.builder)


def _parts(experiment: Experiment) -> tuple[str, ...]:
    """The groups whose specs decide the result."""
    reads = experiment.stage.reads
    parts = ("stage", *(PARTS[1:] if reads is None else reads))
    if not experiment.solver.active:  # no part of an experiment that solves nothing
        parts = tuple(part for part in parts if part != "solver")
    return tuple(part for part in parts if part in PARTS)


def specs(experiment: Experiment) -> list[Part]:
    """The specs that decide the result, each followed by those that it holds."""
    parts = [experiment.part(name) for name in _parts(experiment)]
    return [one for part in parts for one in (part, *part.inside)]


def _files_of_settings(experiment: Experiment) -> dict[str, list[tuple[str, Path]]]:
    """The files that settings of the user's specs name, by the spec's module; `locations` decide nothing.

    And those that the arguments name with which a spec of ours calls the user's code, by that code's module.
    """
    found: dict[str, list[tuple[str, Path]]] = {}
    for part in specs(experiment):
        module = type(part).__module__
        chosen = [value for name, value in vars(part).items() if name not in part.locations]
        readers = [module]
        if code_sources.is_ours(module):
            chosen = [value for value in chosen if isinstance(value, Mapping)]
            readers = [target.rpartition(".")[0] for target in part.user_code]
        texts = [text for value in chosen for text in _texts(value)]
        for name in readers:
            path = None if code_sources.is_ours(name) else code_sources.source(name)
            if path is not None:
                named = [one for text in texts for one in code_files.of_value(text, path, Path.cwd())]
                found[name] = [*found.get(name, []), *named]
    return {name: files for name, files in found.items() if files}


def _files_of_parts(experiment: Experiment) -> dict[str, tuple[Path, ...]]:
    """What the parts read, of whoever's specs, by the spec's module; and the weights that a training starts from."""
    found: dict[str, tuple[Path, ...]] = {}
    for part in specs(experiment):
        files = tuple(file for file in part.user_files if not _is_of_source(file, experiment))
        if files:
            module = type(part).__module__
            found[module] = (*found.get(module, ()), *files)
    wanted = experiment.starting
    starts = tuple(Path(file) for file in (wanted.start, wanted.adapters.start) if file is not None)
    return {**found, START: starts} if starts and "model" in _parts(experiment) else found


def _is_of_source(file: Path, experiment: Experiment) -> bool:
    """Whether a file is of the saved run that the stage starts from, whose weights and card have hashes in receipts."""
    source = experiment.settings.run
    return source is not None and file.absolute().is_relative_to(Path(source).absolute())


def gone(experiment: Experiment) -> dict[str, str]:
    """The settings whose file of another run began a training and is gone, each with the module that it counts to.

    A saved run has trained weights, and tokens in its own card.
    """
    starting, tokens = experiment.starting, getattr(experiment.dataset, "tokens", None)
    of_run = isinstance(tokens, str) and tokens.endswith(f"/{CARD}")
    named = {
        "model.start": (starting.start, START),
        "model.adapters.start": (starting.adapters.start, START),
        "dataset.tokens": (tokens if of_run else None, type(experiment.dataset).__module__),
    }
    return {key: module for key, (file, module) in named.items() if file is not None and not Path(file).exists()}


def _called(path: Path) -> str:
    """A file as the hash has it: of this package's by where it lies in there, the same on every machine."""
    return str(path.relative_to(HERE) if path.is_relative_to(HERE) else path)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [text for one in inside for text in _texts(one)]


@cache
def _closure(starts: tuple[str, ...], builder: str) -> tuple[tuple[str, Path], ...]:
    waiting, found = list(starts), dict[str, Path]()
    while waiting:
        name = waiting.pop()
        if not name or name in found or not _counts(name, builder):
            continue
        path = code_sources.source(name)
        if path is not None and not code_sources.is_own(name, path):
            continue
        if path is not None:
            found[name] = path
            waiting += code_sources.imports(name, path)
        waiting.append(name.rpartition(".")[0])
    return tuple(sorted(found.items()))


def _counts(name: str, builder: str) -> bool:
    """Whether a module decides; the names that decide this are this package's alone."""
    if not code_sources.is_ours(name) or name in DECIDING:
        return True
    if any(name == one or name.startswith((f"{one}.", f"{one}_")) for one in WATCHING):
        return False
    last = name.rpartition(".")[2]
    return not any(last.startswith(f"{other}_") for other in OTHERS.get(builder, ()))


def _digests(found: Mapping[str, Path]) -> dict[str, str]:
    here = Path.cwd()
    digests = {name: code_sources.digest(name, path, here) for name, path in found.items()}
    kept().write()
    return digests
