"""Where the shipped configs lie: in the environment's word, here, in the checkout, or in the installed package."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.errors import UserError

VARIABLE = "PIPELINE_CONF"


def conf_path() -> Path:
    """The folder that holds config.yaml. Raises UserError where PIPELINE_CONF names another."""
    named = os.environ.get(VARIABLE)
    if named:
        if not (Path(named) / "config.yaml").is_file():
            raise UserError(f"{VARIABLE}={named}: holds no config.yaml")
        return Path(named).absolute()
    package = Path(__file__).parents[1]
    for folder in (Path.cwd() / "conf", package.parents[1] / "conf", package / "conf"):
        if (folder / "config.yaml").is_file() and (folder / "stage").is_dir():
            return folder.absolute()
    raise UserError(f"no conf/config.yaml here, in the checkout or in the package; set {VARIABLE} to the folder")


def check_own(folder: Path, named: str) -> None:
    """Refuse a folder of the user's with a file that a shipped one of the same name would hide. Raises UserError.

    `named`: how the user named it, as `--config-dir mine`.
    """
    shipped = conf_path()
    for path in shipped.glob("*/**/*.yaml"):
        name = path.relative_to(shipped)
        own = folder / name
        if own.is_file() and _settings(own) != _settings(path):
            raise UserError(
                f"{named}: {name.with_suffix('')} has the name of a shipped choice, which would be taken "
                f"in its place; rename the file, or set {VARIABLE} to an edited copy of {shipped}"
            )


def _settings(path: Path) -> list[str]:
    """The lines of a file that say something to Hydra."""
    lines = map(str.rstrip, path.read_text(encoding="utf-8", errors="replace").splitlines())
    return [line for line in lines if line and (not line.lstrip().startswith("#") or "@package" in line)]
