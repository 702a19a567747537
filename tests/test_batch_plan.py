"""Which batches a training takes: blocks, periods, shares and rates, for any sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.loaders import blocks, epoch_order
from pipeline.loaders.batch_plan import Block, Plan

sizes = st.integers(1, 40)
plans = st.builds(
    Plan,
    examples=st.integers(1, 60),
    batch_size=st.integers(1, 12),
    steps=st.integers(1, 30),
    seed=st.just(3),
    accumulate=st.integers(1, 5),
    validate_every=st.none() | st.integers(1, 9),
)


def taken(plan: Plan, most: int) -> list[list[Block]]:
    return [list(plan.period(number, most)) for number in range(plan.periods)]


@given(plans, sizes)
def test_every_batch_comes_once_and_in_order(plan: Plan, most: int) -> None:
    found = [(block.epoch, int(number)) for period in taken(plan, most) for block in period for number in block.numbers]
    assert found == [divmod(number, plan.batches) for number in range(len(found))]
    assert len(found) <= plan.total_batches < len(found) + plan.accumulate + plan.batches
    assert sum(int(block.updates.sum()) for period in taken(plan, most) for block in period) == plan.steps
    whole = sum(len(block) for period in taken(plan, most) for block in period if block.size == plan.batch_size)
    assert plan.whole_batches == whole


@given(plans, sizes)
def test_an_epochs_rows_are_its_order(plan: Plan, most: int) -> None:
    first = [block for period in taken(plan, most) for block in period if block.epoch == 0]
    rows = np.concatenate([block.rows.ravel() for block in first])
    np.testing.assert_array_equal(rows, epoch_order(plan.examples, 3, 0)[: len(rows)])
    assert all(block.rows.shape == (len(block), block.size) for block in first)


@given(plans, sizes)
def test_a_period_ends_with_a_step_and_a_step_is_one_whole(plan: Plan, most: int) -> None:
    length, shares = plan.validate_every or plan.steps_per_epoch, np.zeros(plan.steps)
    for number, period in enumerate(taken(plan, most)):
        assert period[-1].updates[-1]
        steps = np.concatenate([block.steps for block in period])
        assert set(steps) == set(range(number * length, min((number + 1) * length, plan.steps)))
        for block in period:
            np.add.at(shares, block.steps, block.shares)
    np.testing.assert_allclose(shares, 1, rtol=1e-12)


@given(st.integers(1, 60), st.integers(1, 12), sizes)
def test_without_settings_blocks_are_cut_as_an_epoch_is(examples: int, size: int, most: int) -> None:
    plan = Plan(examples, size, steps=-(-examples // size), seed=3)
    wanted = list(blocks(epoch_order(examples, 3, 0), size, most))
    found = list(plan.period(0, most))
    assert len(found) == len(wanted)
    for block, rows in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(block.rows, rows)
        assert block.updates.all()


@given(plans, st.integers(0, 50), st.integers(0, 50))
def test_a_part_of_a_block_has_its_part_of_all(plan: Plan, first: int, stop: int) -> None:
    block = next(plan.period(0, 50))
    part = block[first:stop]
    if len(part):
        np.testing.assert_array_equal(part.steps, block.steps[first:stop])
        np.testing.assert_array_equal(part.shares, block.shares[first:stop])
        np.testing.assert_array_equal(part.rows, block.rows[first:stop])


def test_an_epochs_last_step_may_have_fewer_batches() -> None:
    plan = Plan(examples=95, batch_size=10, steps=4, seed=0, accumulate=3)  # batches of 10, 10, 10 | ... | 5
    (block, last) = plan.period(0, 64)
    assert block.updates.tolist() == [False, False, True] * 3
    assert (last.size, last.updates.tolist(), last.shares.tolist()) == (5, [True], [1.0])
    assert Plan(examples=25, batch_size=10, steps=1, seed=0, accumulate=4).period(0, 64)
    shares = np.concatenate([one.shares for one in Plan(25, 10, 1, 0, accumulate=4).period(0, 64)])
    assert shares.tolist() == pytest.approx([0.4, 0.4, 0.2])
