"""No solver: the experiment trains a classifier."""

from __future__ import annotations

from typing import ClassVar

from pipeline.spec import spec


@spec
class Off:
    """Nothing is solved."""

    solve: ClassVar[None] = None
