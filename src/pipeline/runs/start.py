"""`model.start` and `model.adapters.start`: the files that a run or a path means, found before a run begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UserError, cut
from pipeline.machine.installed import check_installed
from pipeline.runs import adapters
from pipeline.runs.lookup import find_run
from pipeline.runs.weights import SAFETENSORS
from pipeline.spec import Config
from pipeline.variables import filled

SAVED = "artifacts/model/weights.npz"


def located(config: Config) -> dict[str, Any]:
    """The config with the files that these keys mean in their place: `latest` is another run tomorrow.

    Raises UserError where one is neither a run that has such a file nor a file, or cannot be read here.
    """
    node = config.get("model")
    if not isinstance(node, dict):
        return dict(config)
    found: dict[str, Any] = {}
    if named := filled(node.get("start"), "model.start"):
        found["start"] = _file(config, "model.start", str(named), SAVED, (".npz", SAFETENSORS))
    adapting = node.get("adapters")
    if isinstance(adapting, dict) and (named := filled(adapting.get("start"), "model.adapters.start")):
        file = _file(config, "model.adapters.start", str(named), adapters.SAVED, (".npz",))
        found["adapters"] = {**adapting, "start": file}
    return {**config, "model": {**node, **found}}


def _file(config: Config, key: str, text: str, saved: str, suffixes: Sequence[str]) -> str:
    """The file that a run has as `saved`, or the one that is named."""
    shown = f"{key}={cut(text, 300)}"
    path = Path(text).expanduser()
    if path.suffix not in suffixes:
        try:
            path = find_run(Path(str(filled(config["output_dir"], "output_dir"))), text, holding=saved) / saved
        except UserError as error:
            raise UserError(f"{shown}: {str(error).partition(': ')[2]}") from error
    if path.suffix == SAFETENSORS:
        check_installed({shown: ("safetensors",)})
    if not path.is_file():
        what = "weights" if saved == SAVED else "adapters"
        raise UserError(f"{shown}: no such file; name a saved run or {what} in {' or '.join(suffixes)}")
    return str(path.absolute())
