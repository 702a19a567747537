"""A sampler that proposes no point of a discrete space twice while others are left. Imported when a search begins,
since Optuna takes a moment.

Optuna's samplers propose what looks best, tried or not. Its BruteForceSampler repeats nothing, and learns nothing.
"""

from __future__ import annotations

import random
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from pipeline.sweep.search_killed import dead_points
from pipeline.sweep.space import Point, Space, drawn, point_of, untried

ASKED_AGAIN = 10  # times; then a point is drawn from those that are left


class Unrepeated(BaseSampler):
    """Asks `base` for points of `space`, which is discrete, until one is new."""

    def __init__(self, base: BaseSampler, space: Space, seed: int, first: int) -> None:
        self.base, self.space, self.first = base, space, first
        self.draw = random.Random(seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All of it: a point is judged as a whole."""
        return self.space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The base's point, or a new one where it has been tried and another has not."""
        known = tried(study, self.space, self.first, besides=trial.number)
        there = untried(self.space, known)
        for _ in range(ASKED_AGAIN):
            found = self.base.sample_relative(study, trial, self.base.infer_relative_search_space(study, trial))
            for key, distribution in search_space.items():
                if distribution.single():
                    found |= drawn({key: distribution}, self.draw)
                elif key not in found:
                    found[key] = self.base.sample_independent(study, trial, key, distribution)
            if there is None or point_of(found, self.space) not in known:
                return found
        for _ in range(ASKED_AGAIN):
            found = drawn(self.space, self.draw)
            if point_of(found, self.space) not in known:
                return found
        return there or found

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        """Leave a key that is not in the searched space to the sampler that this one wraps."""
        return self.base.sample_independent(study, trial, name, distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.base.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        self.base.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self.base.reseed_rng()


def tried(study: Study, space: Space, first: int, besides: int = -1) -> set[Point]:
    """The points of trials that came to something, run, wait, or have failed since trial `first`: what failed in an
    earlier session may be proposed again, unless its process has died too often.
    """
    found = {point_of(point, space) for point in dead_points(study) if point.keys() == space.keys()}
    for trial in study.get_trials(deepcopy=False):
        if trial.number != besides and (trial.state != TrialState.FAIL or trial.number >= first):
            found.add(point_of(trial.system_attrs.get("fixed_params", {}) | trial.params, space))
    return found
