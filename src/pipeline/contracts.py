"""The contracts: what each kind of part has to offer to those that use it, in one place.

Nothing is imported here but for annotations: every layer above may use these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pipeline.runs.run import Run


class GridMember(Protocol):
    """A cell's tie to the grid that started it. `grid`: the folder of the grid's own run."""

    grid: str

    def began(self, run: Run) -> None:
        """Note which run the cell has become."""
        ...
