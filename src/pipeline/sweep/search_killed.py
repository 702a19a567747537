"""Which trials of a study were killed, and at which points the process dies each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.study import Study

TRIES = 3  # at a point at which the process dies each time, as where memory runs out
BY_ITSELF = "by itself"


def killed(number: int) -> str:
    """The attribute of a study whose trial of that number was killed, and may be asked again.

    Its value is BY_ITSELF where the trial's process died while the search went on.
    """
    return f"killed {number}"


def dead_points(study: Study) -> list[dict[str, Any]]:
    """The points at which TRIES trials' processes have died, none of them by a session that was killed."""
    from optuna.trial import TrialState

    attributes = study.user_attrs
    failed = study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
    points = [trial.params for trial in failed if attributes.get(killed(trial.number)) == BY_ITSELF]
    return [point for place, point in enumerate(points) if points[:place].count(point) == TRIES - 1]
