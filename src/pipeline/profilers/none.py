"""No profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pipeline.contracts import Profiler
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.profilers import Tool
    from pipeline.runs.run import Run


@spec
class Off(Profiler):
    """Nothing looks into the run."""

    active: ClassVar[bool] = False
    backends: ClassVar[tuple[str, ...]] = ("torch", "tensorflow", "jax")

    skip: ClassVar[int] = 0
    steps: ClassVar[int] = 0

    def tool(self, experiment: Experiment, run: Run) -> Tool | None:
        """None: there is nothing to do."""
        return None
