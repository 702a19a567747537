"""params.yaml and conf/ -> composed.yaml: what each stage of the study is, resolved and checked, and by which code.

Of each stage, DVC tracks `config` (what decides the result), `code` (the hashes of the modules that do) and `writers`
(those of the modules that write the stage's files); `rest` is what the run needs beside: where things lie and are
written, which tracking server, and the groups that its stage does not read. A stage that starts from the run of another
has the config that it will have then, and in `keys` what its block has chosen anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hydra import compose as compose_by_hydra
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline import experiment as experiments
from pipeline.cli.composing_errors import explained
from pipeline.cli.conf_path import conf_path
from pipeline.cli.for_hydra import canonical_device, is_open
from pipeline.cli.interpolation import resolved
from pipeline.contracts import Dataset
from pipeline.errors import UserError
from pipeline.experiment import Experiment
from pipeline.machine.environment import DECIDING
from pipeline.ready import ready
from pipeline.runs.code import code_hash as code
from pipeline.runs.records import value_at
from pipeline.study import chain, documents, params
from pipeline.study.composed import FILE
from pipeline.study.watched import refuse_unchained, refuse_unwatched
from pipeline.study.writers import writers, writers_of

HEADING = "Written by `python -m pipeline.study compose` from params.yaml and conf/: edit those. See docs/study.md."
ANYBODYS = ("HOME", "USER", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "LANG", "LC_*", *DECIDING)  # no settings
DATA, REPORT = "pipeline.study.data", "pipeline.study.report"  # the modules behind the stages of those names


def compose(source: Path = params.FILE, target: Path = FILE) -> int:
    """Write composed.yaml. Raises UserError, naming the stage, for what no run could be made of."""
    refuse_unwatched([])  # the configs, before anything is made of them
    blocks = params.read(source)
    found = _experiments(blocks, source)
    sources = {block.name: str(block.run) for block in blocks if block.run is not None}
    refuse_unchained(sources)
    stages: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for block in blocks:
        experiment = found[block.name]
        stages[block.name] = entry = _entry(experiment, saves=block.name in sources.values())
        if block.run is not None:
            entry["keys"] = block.keys
        if isinstance(experiment.dataset, Dataset) and chain.reads_dataset(experiment):  # a problem is all code
            seed = chain.data_seed(experiment, found.get(sources.get(block.name, "")))
            data[block.name] = _data(experiment, entry["code"], seed)
    refuse_unwatched(name for stage in stages.values() for name in stage["code"])
    whole = {**stages, "data": data, "report": {"code": writers([REPORT])}}
    documents.write(target, whole, HEADING)
    return 0


def deciding(name: str, source: Path = params.FILE) -> dict[str, Any]:
    """What decides the result of the stage `name` by the configs of now. Raises UserError for mistakes in its block or
    in that from which it starts, and not for those in others."""
    blocks = {block.name: block for block in params.read(source)}
    if name not in blocks:
        raise UserError(f"{source}: {name}: no such block; choose from {', '.join(blocks)}")
    names = {name, str(blocks[name].run)}
    return _experiments([block for block in blocks.values() if block.name in names], source)[name].deciding()


def _experiments(blocks: Sequence[params.Block], source: Path) -> dict[str, Experiment]:
    """By the names of the blocks; a training is made before what starts from its run. Raises UserError."""
    configs: dict[str, dict[str, Any]] = {}
    starting: dict[str, bool] = {}
    with initialize_config_dir(str(conf_path()), version_base="1.3", job_name="pipeline"):
        for block in blocks:
            with _naming(block, source):
                configs[block.name] = config = resolved_config(block)
                starting[block.name] = experiments.stage_of(config).starts_from_run
    found: dict[str, Experiment] = {}
    for block in sorted(blocks, key=lambda one: starting[one.name]):
        trained = {name: one for name, one in found.items() if not starting[name]}
        with _naming(block, source):
            if starting[block.name]:
                experiment = chain.started(block, configs[block.name], trained, configs)
            else:
                experiment = ready(configs[block.name], [])[0]
            _refuse_environment(block, experiment)
            refuse_unwatched([], code.read_files(experiment))
        found[block.name] = experiment
    return found


@contextmanager
def _naming(block: params.Block, source: Path) -> Iterator[None]:
    """Around what is made of a block of the file `source`: a message names both."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {block.name}: {error}") from error


def resolved_config(block: params.Block) -> dict[str, Any]:
    """As the command line would compose it: the choices first, then the values over them. Raises UserError."""
    choices = [canonical_device(f"{group}={choice}") for group, choice in block.choices.items()]
    try:
        # How a grid would be run is of no concern here, and our plugins for that need not be known to Hydra.
        config = compose_by_hydra("config", overrides=["hydra/sweeper=basic", "hydra/launcher=basic", *choices])
        for key, value in block.values.items():
            OmegaConf.update(config, key, value, merge=False, force_add=key in block.added or is_open(key))
        config.name, config.run = block.name, block.run  # by its name the run can be found
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error, choices) from error
    except ValueError as error:  # OmegaConf's, of an index into a list
        raise UserError(f"{key}={value}: {key.rpartition('.')[0]} is a list; write [...]") from error
    return resolved(config)


def _refuse_environment(block: params.Block, experiment: Experiment) -> None:
    """Refuse what decides a result and comes from the environment, which DVC does not watch."""
    deciding = experiment.deciding()
    for key, value in block.values.items():
        if "oc.env" in str(value) and value_at(deciding, key) is not None:
            raise UserError(f"{key}={value}: DVC does not watch the environment; a setting of a result is written out")
    for variable, default in code.own_variables(experiment).items():
        if default is not None or any(fnmatchcase(variable, pattern) for pattern in ANYBODYS):
            continue
        raise UserError(f"{variable}: your code reads it, and DVC does not watch the environment; make it a setting")


def _entry(experiment: Experiment, *, saves: bool) -> dict[str, Any]:
    deciding = experiment.deciding()
    rest = {key: _without(value, deciding.get(key)) for key, value in experiment.config.items()}
    rest = {key: value for key, value in rest.items() if value != {}}
    modules = code.modules(experiment)
    return {"config": deciding, "code": modules, "writers": writers_of(modules, saves=saves), "rest": rest}


def _data(experiment: Experiment, modules: Mapping[str, str], seed: int | None) -> dict[str, Any]:
    """What decides the data. `modules`: of the stage, whose hashes hold what is in the files that settings name."""
    found = code.closure([type(experiment.dataset).__module__]) | code.own_code([DATA])
    return {
        "dataset": deepcopy(experiment.deciding()["dataset"]),  # YAML would write the same object as an alias
        "seed": seed,
        "code": {name: modules.get(name, digest) for name, digest in found.items()},
    }


def _without(value: Any, deciding: Any) -> Any:
    """What is left of a group, or of a key of the top level, when the part that decides is taken out."""
    if deciding is None:
        return value
    return {key: value[key] for key in value if key not in deciding} if isinstance(value, dict) else {}
