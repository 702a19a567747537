"""Saved runs: the experiment that a run was, and which overrides still make sense on top of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import RunError, UserError, cut, shown
from pipeline.runs import adapters
from pipeline.runs.as_typed import with_names
from pipeline.runs.choices import nearest, text_of
from pipeline.runs.json_files import read_json
from pipeline.runs.other_data import FIXED, other_dataset
from pipeline.runs.records import read_config, value_at
from pipeline.runs.repositories import git_state
from pipeline.runs.start import CARD, SAVED, source_of
from pipeline.spec import Config, fields_of, named_object
from pipeline.variables import filled, names_in

if TYPE_CHECKING:
    import numpy as np

    from pipeline.runs.weights import Weights

# What belongs to the new run, always; and what may be chosen anew for a finished model.
OWN = ("stage", "run", "output_dir", "profiler", "tracking", "sweep", "name")
RECHOOSABLE = ("backend", "device", "precision")
# Of the rechoosable groups, what only a training step has; and what the passes of some stages have, too.
TRAINING_ONLY = ("device.placement_log", "device.processes", "device.split")
COMPILES = ("backend.compile", "backend.xla")
SINGLE = ("training.evaluation_batch_size", "training.metrics", "dataset.cache", "dataset.folder")

SWAPPED = {
    "weights": "artifacts/model/weights.npz now differs from what it saved",
    "adapters": "artifacts/model/adapters.npz now differs from what it saved",
    "card": "artifacts/model/card.json now differs from what it saved",
    "data": "the data now differ from those it was trained on",
}
STARTS = {SAVED: "weights", adapters.SAVED: "adapters"}  # a run's files from which another may start
CONFIG_CHANGED = (
    "config.yaml is not what its receipt names (another config_sha256): somebody changed it, or settings have been "
    "added to the package since"
)
CODE_CHANGED = (
    "the code, or a file or variable that it reads, is not what trained it (another code_sha256): what the weights "
    "mean may have changed"
)


def config_of(config: Config, overridden: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """The folder of the run that `config` starts from, and that run's config with what the user chose anew.

    `overridden`: the keys that the user set, as written (`backend`, `device.name`). Raises UserError for one that a
    saved model has fixed.
    """
    reference = filled(config["run"], "run")
    folder = source_of(config)
    if folder is None:
        stage = _word(config["stage"]["_target_"])
        raise UserError(f"run=null with stage={stage}: name the saved run, by its id, its folder or latest")
    saved = read_config(folder)
    if not saved:
        raise UserError(f"run={reference}: {folder / 'config.yaml'} is missing or damaged")
    for name, part in config.items():
        if isinstance(part, Mapping) and not isinstance(saved.get(name) or {}, Mapping):
            raise UserError(f"run={reference}: {folder / 'config.yaml'} is damaged: {name}={cut(saved[name])}")
    merged = chosen_anew(saved, folder, config, overridden)
    _check_variables(folder, saved, merged)
    tokens = (merged.get("dataset") or {}).get("tokens")
    if isinstance(tokens, str) and tokens.endswith(f"/{CARD}") and not Path(tokens).is_file():
        merged["dataset"] = {**merged["dataset"], "tokens": str(folder / CARD)}  # they are its own since
    return folder, merged


def chosen_anew(saved: Config, folder: Path, config: Config, overridden: Sequence[str]) -> dict[str, Any]:
    """The config `saved` of the run in `folder`, which need not be there yet, with what the user of `config` chose
    anew: the keys `overridden`. Raises UserError for one that a saved model has fixed.
    """
    stage = _word(config["stage"]["_target_"])
    merged = {**saved, **{key: config.get(key) for key in OWN}}
    merged["backend"] = _not_compiled(saved.get("backend"))
    others = "dataset" in overridden and _takes_other_data(config["stage"]["_target_"])
    if others:
        merged["dataset"] = other_dataset(folder, saved, config, overridden)
    for key in overridden:
        group, _, rest = key.partition(".")
        group = group.partition("@")[0]
        if group in OWN or (others and group == "dataset" and key not in FIXED):
            continue
        if key == "resume":
            raise UserError(f"resume={cut(config[key])} with stage={stage}: trains nothing to go on with; leave it out")
        _check_is_of_passes(config, key, stage)
        if group not in RECHOOSABLE and key not in SINGLE:
            said = _fixed(config, with_names(saved, folder.parent), key, stage, folder.name)
            raise UserError(f"{said}; {_instead(key, config['stage']['_target_'], saved)}")
        merged[group] = _overlaid(merged, config, group, rest.partition(".")[0]) if rest else config.get(group)
    return merged


def as_it_ran(saved: Config, folder: Path) -> Config:
    """The config `saved` of the run in `folder`, with the backend by which it computed.

    Before passes could be compiled, a stage that starts from a run kept what the training's backend said of its steps,
    and the receipt of its passes does not say what compiled them.
    """
    receipt = read_json(folder / "receipt.json")
    if not saved.get("run") or "compiled_by" in receipt or "weights_sha256" not in receipt:  # it came to no pass
        return saved
    return {**saved, "backend": _not_compiled(saved.get("backend"))}


def compiled_steps(folder: Path, settings: Collection[str]) -> str | None:
    """The setting by which the steps of a saved run were compiled, as it is typed, if it is among the `settings` of a
    backend."""
    config = read_config(folder)
    found = [key for key in COMPILES if key.partition(".")[2] in settings and value_at(config, key)]
    return f"{found[0]}=true" if found else None


def made_by(folder: Path) -> str:
    """Which version of this package made a run, and how to get it; nothing where it was the present one."""
    then = ((read_json(folder / "receipt.json").get("git") or {}).get("pipeline") or {}).get("commit")
    if then is None or then == git_state()["commit"]:
        return ""
    commit = then[:12]
    return f"; commit {commit} of this package made the run: git checkout {commit}"


def card_sha256(card: Mapping[str, Any]) -> str:
    """Hash of what card.json says, however it is laid out."""
    return hashlib.sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()


def check_hashes(folder: Path, found: Mapping[str, str]) -> tuple[str, ...]:
    """Compare what is there now with the receipt of the run in `folder`. Raises UserError for what was swapped.

    `found`: the sha256 now, by what it is of (`weights`, `card`, `data`). Returns a note for each of which the receipt
    has no hash, and one where the run's config.yaml or the code are no longer those that its receipt names: their
    hashes change with the package too, so they refuse nothing.
    """
    kept, notes = read_json(folder / "receipt.json"), list(check_swapped(folder, found))
    if kept.get("config_sha256") not in (None, _deciding(read_config(folder))[1]):
        notes.append(f"run={folder.name}: {CONFIG_CHANGED}")
    if kept.get("code_sha256") not in (None, code_now(folder)):
        notes.append(f"run={folder.name}: {_of_code(folder, kept['code_sha256'])}")
    return tuple(notes)


def check_swapped(folder: Path, found: Mapping[str, str]) -> tuple[str, ...]:
    """`check_hashes` without a look at the config and the code. Raises UserError."""
    kept, notes = read_json(folder / "receipt.json"), []
    if not kept:
        return (f"run={folder.name}: receipt.json is missing or damaged: not verified: {', '.join(found)}",)
    for part, sha256 in found.items():
        if kept.get(f"{part}_sha256") is None:
            what = "class names" if part == "card" else part
            notes.append(f"run={folder.name}: its receipt has no {part}_sha256: not verified that these are its {what}")
        elif kept[f"{part}_sha256"] != sha256:
            raise UserError(f"run={folder.name}: {SWAPPED[part]} (another sha256)")
    return tuple(notes)


def check_start(key: str, path: Path, sha256: str) -> None:
    """Refuse what a training would start from where it lies in a run's folder and is not what that run saved.

    `sha256`: the digest of the arrays in the file. Raises UserError.
    """
    part = _part(path)
    if part is not None:
        try:
            check_swapped(path.parents[2], {part: sha256})
        except UserError as error:
            raise UserError(f"{key}: {error}") from error


def said_of_unverified(path: Path) -> tuple[str, ...]:
    """Why `check_start` could not tell whether a file in a run's folder is what that run saved."""
    part = _part(path)
    if part is None or read_json(path.parents[2] / "receipt.json").get(f"{part}_sha256") is not None:
        return ()
    return check_swapped(path.parents[2], {part: ""})


def _part(path: Path) -> str | None:
    """Which part of a run a file is by its place; None elsewhere."""
    return STARTS.get("/".join(path.parts[-3:]))


def _of_code(folder: Path, then: str) -> str:
    """Why the code of a saved run has another hash: a file that began its training is gone, or anything else."""
    from pipeline.experiment import load
    from pipeline.runs.code.code_hash import gone, hash_of, modules

    saved = dict(sorted(read_json(folder / "code.json").items()))
    try:
        experiment = load(read_config(folder))
        now, lost = modules(experiment), gone(experiment)
    except UserError:
        return CODE_CHANGED
    differ = {name for name in {**saved, **now} if saved.get(name) != now.get(name)}
    if hash_of(saved) != then or not differ <= set(lost.values()):
        return CODE_CHANGED
    are, them = ("are", "them") if len(lost) > 1 else ("is", "it")
    return f"its {' and '.join(lost)} {are} gone; the saved weights do not need {them}"


def saved_weights(folder: Path) -> Weights:
    """The weights of a saved run."""
    from pipeline.runs import weights

    return weights.load(folder / "artifacts" / "model" / "weights.npz")


def saved_card(folder: Path) -> dict[str, Any]:
    """What the model of a saved run takes and gives; empty where that is missing or damaged."""
    return read_json(folder / "artifacts" / "model" / "card.json")


def check_outputs(outputs: np.ndarray, what: str, first: int, source: Path, precision: str) -> None:
    """That the outputs (N, ...) of a saved run are numbers: argmax makes a class of a NaN too. Raises RunError.

    `what` they are of, with a `{}` for the number of the example, of which the first here is number `first`.
    """
    from pipeline.machine.precision import FORMATS
    from pipeline.runs.fit import not_finite

    wrong = not_finite(outputs)
    if wrong is None:
        return
    narrow = FORMATS[precision].compute == "float16"
    hint = "float16 overflows: choose precision=fp32" if narrow else "the run diverged: train it again"
    raise RunError(
        f"run={source.name}: the outputs for {what.format(first + wrong[0])} are {wrong[1]} "
        f"at precision={precision}; {hint}"
    )


def _check_variables(folder: Path, saved: Mapping[str, Any], merged: Mapping[str, Any]) -> None:
    """Refuse a run whose deciding settings name variables, where its config's hash is not the one that it had.

    config.yaml keeps `${oc.env:NAME}`, and only the hash knows the value: with another one this is another experiment.
    """
    # Without those of a setting that is chosen anew.
    names = names_in({key: value for key, value in merged.items() if key not in OWN})
    then = read_json(folder / "receipt.json").get("config_sha256")
    if not names or then is None:
        return
    part, sha256 = _deciding(saved)
    if names_in(part) and then != sha256:
        names = sorted({*names, *names_in(part)})
        raise UserError(
            f"run={folder.name}: its settings read {', '.join(names)} from the environment; with the present values "
            f"its config is not the one its receipt names (another config_sha256); set {', '.join(names)} to what "
            f"{'it was' if len(names) == 1 else 'they were'} when it was trained"
        )


def _deciding(config: Config) -> tuple[Mapping[str, Any], str | None]:
    """The deciding part of a saved config, and its hash; None where it cannot be built as it is."""
    from pipeline.experiment import NOT_DECIDING, SINCE, load

    try:
        experiment = load(config)
        absent = [group for group in SINCE if group not in config]  # nor was it in the hash that the run noted
        return experiment.deciding(), experiment.config_sha256(without=absent)
    except UserError:  # a variable that is not set, or what the overrides of this stage have mended
        return {key: value for key, value in config.items() if key not in NOT_DECIDING}, None


def code_now(folder: Path) -> str | None:
    """Hash of the code that would make the saved run now; None where its config cannot be built."""
    from pipeline.experiment import load
    from pipeline.runs.code.code_hash import code_sha256

    try:
        return code_sha256(load(read_config(folder)))
    except UserError:
        return None


def _not_compiled(backend: Any) -> Any:
    """A saved run's backend, for its passes: that its steps were compiled says nothing of them."""
    steps = [name for name in (key.partition(".")[2] for key in COMPILES) if (backend or {}).get(name)]
    return {**backend, **dict.fromkeys(steps, False)} if steps else backend


def _check_is_of_passes(config: Config, key: str, stage: str) -> None:
    """Refuse a setting of training steps that this stage's passes do not have. Raises UserError."""
    if key not in (*TRAINING_ONLY, *COMPILES) or not _value(config, key):
        return
    typed = f"{key}={shown(_value(config, key))} with stage={stage}"
    if key in TRAINING_ONLY:
        raise UserError(f"{typed}: is for training steps, and none runs")
    if not getattr(named_object(config["stage"]["_target_"], "stage._target_"), "compiles_passes", False):
        raise UserError(f"{typed}: is for training steps, and for passes with stage=inference")


def _overlaid(saved: Mapping[str, Any], config: Config, group: str, name: str) -> dict[str, Any]:
    """The saved group with the one field that the user set; a field that it does not have is refused by its spec."""
    return {**(saved.get(group) or {}), name: (config.get(group) or {}).get(name)}


def _word(target: str) -> str:
    """A stage as messages name it."""
    return target.rpartition(".")[2].lower()


def _takes_other_data(stage: str) -> bool:
    return bool(getattr(named_object(stage, "stage._target_"), "takes_other_data", False))


def _fixed(config: Config, saved: Mapping[str, Any], key: str, stage: str, run: str) -> str:
    value, then = _value(config, key), _value(saved, key)
    if value is None and then is None:  # a recipe, or a key that neither has
        return f"{key} with stage={stage}: run {run} has its own settings"
    return f"{key}={text_of(value)} with stage={stage}: run {run} was made with {key}={text_of(then)} and keeps it"


def _instead(key: str, target: str, saved: Mapping[str, Any]) -> str:
    """What can be chosen where `key` cannot: the stage's own setting of that name, or what the stage reads anew."""
    if key in fields_of(target, "stage"):
        return f"stage.{key} is that of this stage"
    reads = getattr(named_object(target, "stage._target_"), "reads", None)
    read = [one for one in SINGLE if (reads is None or one.partition(".")[0] in reads) and _has(saved, one)]
    others = ", and dataset=<choice> with its keys, for other data" if _takes_other_data(target) else ""
    return f"what can be changed is {', '.join((*RECHOOSABLE, *read))}{others}"


def _has(saved: Mapping[str, Any], key: str) -> bool:
    """Whether the saved choice of a key's group has that key: data that are not fetched have no cache."""
    group, _, name = key.partition(".")
    return name in fields_of(str((saved.get(group) or {}).get("_target_")), group)


def _value(config: Config, key: str) -> Any:
    """The value at a dotted key; of a group, the choice."""
    node = value_at(config, key)
    if not isinstance(node, Mapping):
        return node
    name = nearest(key, node)[0] if "_target_" in node else str(node)
    return name.rpartition(".")[2].lower()
