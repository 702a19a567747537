"""No profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.profilers import Tool
    from pipeline.runs.run import Run


@spec
class Off:
    """Nothing looks into the run."""

    backends: ClassVar[tuple[str, ...]] = ("torch", "tensorflow", "jax")
    instead: ClassVar[str] = ""

    skip: ClassVar[int] = 0
    steps: ClassVar[int] = 0

    def tool(self, experiment: Experiment, run: Run) -> Tool | None:
        """None: there is nothing to do."""
        return None
