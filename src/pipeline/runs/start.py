"""`model.start`: the file of weights that a run or a path means, found before a run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.errors import UserError, cut
from pipeline.runs.lookup import find_run
from pipeline.spec import Config
from pipeline.variables import filled

SAVED = "artifacts/model/weights.npz"


def located(config: Config) -> dict[str, Any]:
    """The config with the file that `model.start` means in its place: `latest` is another run tomorrow.

    Raises UserError where it is neither a run with weights nor a file.
    """
    node = config.get("model")
    if not isinstance(node, dict) or not (named := filled(node.get("start"), "model.start")):
        return dict(config)
    text = str(named)
    path = Path(text).expanduser()
    if path.suffix != ".npz":
        try:
            path = find_run(Path(str(filled(config["output_dir"], "output_dir"))), text, holding=SAVED) / SAVED
        except UserError as error:
            raise UserError(f"model.start={cut(text, 300)}: {str(error).partition(': ')[2]}") from error
    if not path.is_file():
        raise UserError(f"model.start={cut(text, 300)}: no such file; name a saved run or weights in .npz")
    return {**config, "model": {**node, "start": str(path.absolute())}}
