"""What the builders of an optimizer and of a loss give: of a user's it may be anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.errors import UserError, raised, thing
from pipeline.spec import choice, is_shipped

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


def check_optimizer(experiment: Experiment, made: Any, wanted: type[Any], called: str) -> None:
    """Refuse what is not an optimizer of the framework, whose class is `wanted`, as `called`. Raises UserError."""
    if not isinstance(made, wanted):
        who = f"optimizer={choice(experiment.optimizer)}: {experiment.backend.builder}()"
        raise UserError(f"{who} gives {thing(made)}; give a {called}")


def check_own_optimizer(experiment: Experiment, make: Callable[[], object]) -> None:
    """Refuse an optimizer of the user's that cannot be made, before its run begins. Raises UserError.

    Of several processes, not there yet, it may need the others, as torch's ZeroRedundancyOptimizer does.
    """
    if is_shipped(experiment.optimizer) or experiment.device.processes > 1:
        return
    try:
        make()
    except UserError:
        raise
    except Exception as error:
        raise raised(f"optimizer={choice(experiment.optimizer)}: {experiment.backend.builder}()", error) from error


def check_loss(experiment: Experiment, made: Any) -> None:
    """Refuse what cannot be called with outputs and targets: a class would be made of them. Raises UserError."""
    if isinstance(made, type) or not callable(made):
        who = f"loss={choice(experiment.loss)}: {experiment.backend.builder}()"
        raise UserError(f"{who} gives {thing(made)}; give a function of outputs and targets, or an instance")
