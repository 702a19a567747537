"""Learning-rate schedules: each against torch's own or its definition, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import refused
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contracts import Schedule
from pipeline.errors import UserError
from pipeline.experiment.checks import check_schedule, factor_of
from pipeline.optimizers.adam import Adam
from pipeline.schedules.cosine import Cosine
from pipeline.schedules.linear import Linear
from pipeline.schedules.one_cycle import OneCycle
from pipeline.schedules.step import Step

STEPS = 50
SHORT = ("dataset=digits", "model=linear", "training.epochs=1", "tracking=none")


def factors(schedule: Any, steps: int = STEPS) -> list[float]:
    return [schedule.factor(step, steps) for step in range(steps)]


def torchs(make: Any) -> list[float]:
    """The rates that torch's scheduler gives an optimizer of rate 1."""
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_each_is_torchs() -> None:
    from torch.optim import lr_scheduler as torch

    cosine = torchs(lambda optimizer: torch.CosineAnnealingLR(optimizer, STEPS - 1, eta_min=0.1))
    np.testing.assert_allclose(factors(Cosine(final=0.1)), cosine, atol=1e-12)
    step = torchs(lambda optimizer: torch.StepLR(optimizer, 7, gamma=0.3))
    np.testing.assert_allclose(factors(Step(every=7, gamma=0.3)), step, rtol=1e-12)
    linear = torchs(lambda optimizer: torch.LinearLR(optimizer, 1.0, 0.2, STEPS - 1))
    np.testing.assert_allclose(factors(Linear(final=0.2)), linear, rtol=1e-12)


@given(st.integers(0, 40), st.floats(0, 1), st.integers(42, 200))
def test_a_warm_up_rises_to_the_full_rate_and_the_rest_falls_to_the_final_one(
    warm_up: int, final: float, steps: int
) -> None:
    for kind in (Cosine, Linear):
        found = factors(kind(warm_up=warm_up, final=final), steps)
        np.testing.assert_allclose(found[:warm_up], (np.arange(warm_up) + 1) / max(warm_up, 1))
        assert found[warm_up] == pytest.approx(1)
        assert found[-1] == pytest.approx(final, abs=1e-12)
        assert all(a >= b - 1e-12 for a, b in zip(found[warm_up:], found[warm_up + 1 :], strict=False))


@pytest.mark.parametrize("kind", [Cosine, Linear])
def test_the_last_step_has_the_final_rate_however_long_the_warm_up(kind: type[Cosine]) -> None:
    """It had the full one where nothing but it came after the warm-up."""
    assert factors(kind(warm_up=9, final=0.1), 10)[-2:] == pytest.approx([1.0, 0.1])


@pytest.mark.parametrize("kind", [Cosine, Linear])
def test_a_training_of_one_step_has_the_full_rate(kind: type[Cosine]) -> None:
    """It had a rate of 0 and learned nothing."""
    assert factors(kind(), 1) == [1.0]


@pytest.mark.parametrize("steps", [1, 2])
def test_one_cycle_of_too_few_steps_has_the_full_rate(steps: int) -> None:
    """Its last step had 0.000004 of the rate, and the first 0.04."""
    assert factors(OneCycle(), steps) == [1.0] * steps


@given(st.floats(0.05, 0.95), st.integers(3, 200))
def test_one_cycle_has_one_peak(rising: float, steps: int) -> None:
    schedule = OneCycle(rising=rising)
    found = factors(schedule, steps)
    assert [found[0], found[-1]] == pytest.approx([0.04, 4e-6])
    assert max(found) <= 1
    falls = np.diff(found) < 0
    assert not np.any(falls[:-1] & ~falls[1:])  # once it falls, it falls to the end


def test_a_schedule_longer_than_the_training_is_refused(tmp_path: Path) -> None:
    words = ("schedule=cosine", "schedule.warm_up=100", "training.batch_size=32", *SHORT)
    said = refused(tmp_path, *words)
    assert said == (
        "schedule.warm_up=100: the training has 40 optimizer steps; choose fewer steps, such as schedule.warm_up=4, or "
        "train longer, by training.steps=101 or more"
    )


class Strange(Schedule):
    """What a user's own schedule may give."""

    def __init__(self, found: object) -> None:
        self.found = found

    def factor(self, step: int, steps: int) -> float:  # noqa: ARG002  # as the contract has it
        if isinstance(self.found, Exception):
            raise self.found
        return self.found  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (-1, "gives -1; give a number, 0 or more"),
        (float("nan"), "gives nan; give a number, 0 or more"),
        ("x", "gives 'x'; give a number, 0 or more"),
        (ZeroDivisionError("division by zero"), "fails: ZeroDivisionError: division by zero, in factor ("),
    ],
)
def test_a_factor_that_is_not_one_is_refused(found: object, said: str) -> None:
    with pytest.raises(UserError) as refused:
        factor_of(Strange(found), 0, 40)
    assert str(refused.value).startswith(f"schedule=strange: factor(0, 40) {said}")


class Late(Strange):
    """It goes wrong at one step."""

    def factor(self, step: int, steps: int) -> float:
        return super().factor(step, steps) if step == 7 else 1.0


def test_every_step_of_a_short_training_is_tried_before_the_run() -> None:
    """A schedule that failed at the eighth step ended the run there."""
    experiment: Any = SimpleNamespace(schedule=Late(-1), optimizer=Adam())
    check_schedule(experiment, 7)
    with pytest.raises(UserError, match=r"schedule=late: factor\(7, 399\) gives -1"):
        check_schedule(experiment, 399)


def test_a_factor_of_numpy_is_a_number() -> None:
    assert factor_of(Strange(np.float32(0.5)), 0, 40) == 0.5
