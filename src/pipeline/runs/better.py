"""Which end of a metric is better: what the metric declares, and what the user says of one that declares nothing."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.errors import UserError
from pipeline.experiment.settings import Sought

ENDS: Mapping[str, tuple[str, Sought]] = {"min": ("less", "minimize"), "max": ("more", "maximize")}


def check_direction(key: str, name: str, direction: str, declared: str | None) -> None:
    """Refuse to look for the worst of a metric. `key`: what names it, such as `stage.best`. Raises UserError."""
    better, wanted = ENDS.get(declared or "", ("", direction))
    if direction != wanted:
        beside = f"{key.rpartition('.')[0]}.direction"
        raise UserError(f"{beside}={direction} with {key}={name}: {better} is better; use {beside}={wanted}")


def better_of(declared: str, sought: Sought | None) -> str:
    """`min`, `max` or `none`: as it is declared, else as the user says."""
    said = {wanted: end for end, (_, wanted) in ENDS.items()}
    return declared if declared in ENDS or sought is None else said[sought]
