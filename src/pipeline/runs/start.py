"""`run`, and `model.start`, `model.adapters.start` and `dataset.tokens`: the run, and the files that a run or a path
means, found before a run begins."""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UserError, cut, nearest
from pipeline.machine.installed import check_installed
from pipeline.machine.regular_file import as_named
from pipeline.runs import adapters
from pipeline.runs.lookup import find_run
from pipeline.runs.weights import SAFETENSORS
from pipeline.spec import Config
from pipeline.variables import filled

SAVED = "artifacts/model/weights.npz"
CARD = "artifacts/model/card.json"
LEARNED = ("bytes", "characters", "bpe")  # tokens that are no run's
WHAT = {SAVED: "weights", adapters.SAVED: "adapters", CARD: "a card"}
Find = Callable[[Path, str, str], Path]  # lookup.find_run, or one that looks up each name once


def located(config: Config, find: Find = find_run) -> dict[str, Any]:
    """The config with the run and the files that these keys mean in their place: `latest` is another run tomorrow.

    Raises UserError where one is neither a run that has such a file nor a file, or cannot be read here.
    """
    return {**config, **_of_run(config, find), **_of_model(config, find), **_of_dataset(config, find)}


def source_of(config: Config, find: Find = find_run) -> Path | None:
    """The folder of the saved run that `run` names; None where it names none. Raises UserError."""
    named = filled(config.get("run"), "run")
    return find(_root(config), str(named), SAVED) if named else None


def called(file: str | Path) -> str:
    """A file that `located` has found, as messages name it: by its run where it is what one has saved."""
    path = Path(file)
    return path.parents[2].name if any(path.match(saved) for saved in WHAT) and len(path.parents) > 3 else str(file)


def _of_run(config: Config, find: Find) -> dict[str, Any]:
    """Of a stage that starts from a run; another refuses it."""
    from pipeline.experiment import stage_of

    if config.get("run") is None or not stage_of(config).starts_from_run:
        return {}
    source = source_of(config, find)
    return {} if source is None else {"run": str(source)}


def _of_model(config: Config, find: Find) -> dict[str, Any]:
    node = config.get("model")
    if not isinstance(node, dict):
        return {}
    found: dict[str, Any] = {}
    if named := _named(node.get("start"), "model.start"):
        found["start"] = _file(config, "model.start", named, SAVED, (".npz", SAFETENSORS), find)
    adapting = node.get("adapters")
    if isinstance(adapting, dict) and (named := _named(adapting.get("start"), "model.adapters.start")):
        file = _file(config, "model.adapters.start", named, adapters.SAVED, (".npz",), find)
        found["adapters"] = {**adapting, "start": file}
    return {"model": {**node, **found}}


def _named(value: Any, key: str) -> str | None:
    """The run or the file that a key names. Raises UserError for an empty text."""
    named = filled(value, key)
    if named == "":
        raise UserError(f"{key}='': an empty name; give a saved run, a file or null")
    return None if named is None else str(named)


def _of_dataset(config: Config, find: Find) -> dict[str, Any]:
    """Of the texts of this package, whose tokens may be those of a run."""
    node = config.get("dataset")
    if not isinstance(node, dict) or not str(node.get("_target_")).startswith("pipeline.datasets."):
        return {}
    named = filled(node.get("tokens"), "dataset.tokens")
    if not isinstance(named, str) or named in LEARNED:
        return {}
    try:
        return {"dataset": {**node, "tokens": _file(config, "dataset.tokens", named, CARD, (".json",), find)}}
    except UserError as error:
        near = nearest(named, LEARNED)
        hint = f" (did you mean {near}?)" if near else ""
        raise UserError(f"{error}; tokens that are no run's: {', '.join(LEARNED)}{hint}") from error


def _file(config: Config, key: str, text: str, saved: str, suffixes: Sequence[str], find: Find) -> str:
    """The file that a run has as `saved`, or the one that is named."""
    shown = f"{key}={cut(text, 300)}"
    path = as_named(text)
    if path.suffix not in suffixes:
        try:
            path = find(_root(config), text, saved) / saved
        except UserError as error:
            why = str(error).partition(": ")[2]
            if (mode := _mode(path)) and not stat.S_ISDIR(mode):
                why = f"the file does not end in {' or '.join(suffixes)}; name one that does, or a saved run"
            raise UserError(f"{shown}: {why}") from error
    if path.suffix == SAFETENSORS:
        check_installed({shown: ("safetensors",)})
    if not stat.S_ISREG(_mode(path)):
        raise UserError(f"{shown}: no such file; name a saved run or {WHAT[saved]} in {' or '.join(suffixes)}")
    return str(path.absolute())


def _mode(path: Path) -> int:
    """The kind of a file; 0 where there is none, as of a name that is too long, for which Path.exists() raises."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def _root(config: Config) -> Path:
    """The folder of the runs."""
    return Path(str(filled(config["output_dir"], "output_dir")))
