"""The cells of a search: what is fixed, with a point of the space."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import UserError
from pipeline.experiment import GROUPS
from pipeline.sweep.compose import Composer
from pipeline.sweep.plan import Cell, compose_cell, varied_by
from pipeline.sweep.space import Space, as_overrides
from pipeline.variables import names_in


class Cells:
    """The cells of a search: what is fixed, with a point of the space."""

    def __init__(self, composer: Composer, fixed: Sequence[str]) -> None:
        self.composer, self.fixed = composer, fixed

    def at(self, params: Mapping[str, Any], number: int) -> Cell:
        """The cell at a point. Raises UserError."""
        words = as_overrides(params)
        return compose_cell(self.composer, number, varied_by(words), [*self.fixed, *words])

    def first(self, space: Space) -> Cell:
        """At the start of the space, to check what is fixed before anything is asked for. Raises UserError."""
        cell = self.at(_start(space), 0)
        if cell.impossible:
            raise UserError(cell.impossible)
        return cell

    def check_ends(self, space: Space) -> None:
        """Refuse an interval at whose upper end nothing can run: its lower one is that of `first`. Raises UserError."""
        start = _start(space)
        for key, distribution in space.items():
            if not getattr(distribution, "choices", None):
                cell = self.at({**start, key: distribution.high}, 0)  # type: ignore[attr-defined]
                if cell.impossible:
                    raise UserError(cell.impossible)

    def of_choices(self, space: Space) -> dict[str, Cell]:
        """The first cell, and one for each further choice with another config or code.

        Raises UserError for a choice that is a mistake beside all others that it was tried with (`_refuse_mistake`).
        """
        start = _start(space)
        found = {"first": self.first(space)}
        for key, distribution in space.items():
            for value in getattr(distribution, "choices", ())[1:]:
                try:
                    cell = self.at({**start, key: value}, 0)
                except UserError:
                    self._refuse_mistake({**start, key: value}, key, space)
                    continue
                if not cell.impossible and _brings_more(key, value):
                    found[f"{key}={value}"] = cell
        return found

    def _refuse_mistake(self, point: Mapping[str, Any], key: str, space: Space) -> None:
        """Raise UserError for a point that is a mistake whichever choice one other key has, and without the others.

        Where the choice of `key` is right beside some, what it is beside the rest is for the trials to say.
        """
        others = [(other, choice) for other in space if other != key for choice in getattr(space[other], "choices", ())]
        for tried in ({key: point[key]}, *({**point, other: choice} for other, choice in others)):
            with contextlib.suppress(UserError):
                self.at(tried, 0)
                return
        self.at(point, 0)


def _brings_more(key: str, value: Any) -> bool:
    """Whether a choice is more than the value that is typed: a group's, a class, one with a variable to fill in."""
    return key in GROUPS or key.endswith("._target_") or bool(names_in(value))


def _start(space: Space) -> dict[str, Any]:
    """The first choice, or the lowest value, of each key."""
    start = {}
    for key, distribution in space.items():
        choices = getattr(distribution, "choices", None)
        start[key] = choices[0] if choices else distribution.low  # type: ignore[attr-defined]
    return start
