"""Profilers: what looks into a run while it trains. One file each; `backends` names the backends that it knows.

A profiler's spec says which steps are looked at (the window: `steps` of them after the first `skip`, counted over the
whole training) and makes the `Tool` that does it; `session.py` counts the steps and calls the tool. A profiler watches:
it may cost time, but the weights are those of the same run without it, to the bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.contracts import Profiler
from pipeline.errors import UserError
from pipeline.machine.device import Place

if TYPE_CHECKING:
    from pipeline.loaders.batch_plan import Plan
    from pipeline.models import Shapes
    from pipeline.runs.weights import Weights

FOLDER = "profile"  # below the run's artifacts


@dataclass(frozen=True)
class Subject:
    """What is trained, as a backend hands it to a profiler.

    `weights` gives them as they are now and `settle` waits until the device has done all that was asked of it. `shapes`
    are those of one example, and `dtype` is the one in which real numbers enter the model. `place` is where the steps
    run: before the first one the model's parameters may lie elsewhere. `compile_s` gives the seconds of compiling
    so far.
    """

    model: Any
    weights: Callable[[], Weights]
    settle: Callable[[], None]
    shapes: Shapes
    dtype: str
    place: Place
    compile_s: Callable[[], float]

    @property
    def example(self) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of one example as it enters the model."""
        return self.shapes.x, self.dtype if self.shapes.vocabulary is None else "int32"


class Tool:
    """What a profiler does at each point of a fit. These do nothing; a tool fills in those that it needs."""

    def attach(self, subject: Subject) -> None:
        """Before the first step."""

    def start(self) -> None:
        """The window opens."""

    def stop(self) -> None:
        """The window closes, or what runs in it has failed: measure no more."""

    def write(self, window: Mapping[str, Any]) -> None:
        """Write what was measured in a window that is complete; `window` describes it."""

    def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """Round step `number` (from 1) of the window."""
        return contextlib.nullcontext()

    def phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Round a part of a step of the window: data, forward, backward or optimizer."""
        return contextlib.nullcontext()

    def end_epoch(self, number: int) -> None:
        """After epoch `number` (from 1) and its validation."""

    def close(self) -> None:
        """After the last step, or after what went wrong."""


def window(profiler: Profiler, plan: Plan) -> range | None:
    """The batches (from 0) that are profiled, a step each. Raises UserError where training has too few, or a validation
    comes between them, which belongs to no step.
    """
    if profiler.steps == 0:
        return None
    first, last = profiler.skip, profiler.skip + profiler.steps - 1
    one, many = ("batch", "batches") if plan.accumulate > 1 else ("step", "steps")  # of which a step takes several
    asked = f"profiler.skip={profiler.skip} profiler.steps={profiler.steps}: profiles {many} {first + 1} to {last + 1}"
    total, each = plan.total_batches, plan.batches
    if last >= total:
        how = f" ({total // each} x {each})" if total % each == 0 else ""
        raise UserError(f"{asked}, but training has {total}{how}; lower them or train longer")
    inside = range(first + 1, last + 1)
    end = next((at for at in inside if at % each == 0 or plan.period_of(at) != plan.period_of(first)), None)
    if end is not None:
        what = "an epoch" if end % each == 0 else "a period"
        raise UserError(f"{asked}, across the end of {what} ({one} {end}); choose a window within one")
    return range(first, last + 1)
