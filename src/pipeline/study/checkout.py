"""Which package a study is made by: in a checkout its own, elsewhere the one that is installed."""

from __future__ import annotations

from pathlib import Path

import pipeline
from pipeline.errors import UserError

OWN = Path("src/pipeline")


def refuse_other_package() -> None:
    """Raises UserError in a checkout where the environment has another: its stages would be made of that one's code."""
    imported = Path(pipeline.__file__).resolve().parent
    if (OWN / "study/__main__.py").is_file() and OWN.resolve() != imported:
        raise UserError(
            f"pipeline: imported from {imported}, and this folder has its own in {OWN}; `make study` runs that in an "
            "environment of this folder, `PYTHONPATH=src dvc repro` does in the present one"
        )
