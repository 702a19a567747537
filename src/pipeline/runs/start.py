"""`model.start`: the file of weights that a run or a path means, found before a run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.errors import UserError, cut
from pipeline.machine.installed import check_installed
from pipeline.runs.lookup import find_run
from pipeline.runs.weights import SAFETENSORS
from pipeline.spec import Config
from pipeline.variables import filled

SAVED = "artifacts/model/weights.npz"


def located(config: Config) -> dict[str, Any]:
    """The config with the file that `model.start` means in its place: `latest` is another run tomorrow.

    Raises UserError where it is neither a run with weights nor a file, or cannot be read here.
    """
    node = config.get("model")
    if not isinstance(node, dict) or not (named := filled(node.get("start"), "model.start")):
        return dict(config)
    text = str(named)
    shown = f"model.start={cut(text, 300)}"
    path = Path(text).expanduser()
    if path.suffix not in (".npz", SAFETENSORS):
        try:
            path = find_run(Path(str(filled(config["output_dir"], "output_dir"))), text, holding=SAVED) / SAVED
        except UserError as error:
            raise UserError(f"{shown}: {str(error).partition(': ')[2]}") from error
    if path.suffix == SAFETENSORS:
        check_installed({shown: ("safetensors",)})
    if not path.is_file():
        raise UserError(f"{shown}: no such file; name a saved run or weights in .npz or .safetensors")
    return {**config, "model": {**node, "start": str(path.absolute())}}
