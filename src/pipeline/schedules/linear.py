"""A straight line from the full rate to the final one, after a warm-up (Devlin et al., NAACL 2019, appendix A.2)."""

from __future__ import annotations

from pipeline.schedules.warm_up import WarmUp
from pipeline.spec import spec


@spec
class Linear(WarmUp):
    """After the warm-up; see WarmUp."""

    def decay(self, progress: float) -> float:
        return 1 - progress
