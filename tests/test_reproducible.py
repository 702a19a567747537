"""Reproducible: one seed decides everything, and nothing else does. To the bit, on a CPU, in every backend."""

from __future__ import annotations

import numpy as np
import pytest
from command import TORCH_THEN_WIDE
from findings import Repeated
from hypothesis import given
from hypothesis import strategies as st
from in_backend import AGAIN, OWN_LOADERS, Outcomes, after_foreign_numbers, outcomes, reproducible

from pipeline.loaders import blocks, epoch_order, padded

All = Outcomes[dict[str, Repeated]]

# Ways to feed the same steps. In torch a step is a step; XLA compiles the loop round it, or the single step of a
# streamed batch, as another program, which may add in another order (see test_blocks_of_any_length_...).
SAME_STEPS = ("one step a call", "thread", "threads")


@pytest.fixture(scope="module")
def found() -> All:
    return outcomes(reproducible)


@pytest.fixture(scope="module")
def again() -> All:
    return outcomes(after_foreign_numbers)


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_second_process_ends_with_the_same_bits_whatever_foreign_code_drew(
    found: All, again: All, backend: str, name: str
) -> None:
    first, second = found[backend][name], again[backend][name]
    assert (first.digest, first.losses) == (second.digest, second.losses)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_another_seed_is_another_run(found: All, backend: str) -> None:
    assert found[backend]["plain"].digest != found[backend]["another seed"].digest


@pytest.mark.parametrize("name", [*SAME_STEPS, *OWN_LOADERS["torch"]])
def test_torch_feeds_the_same_steps_by_any_loader(found: All, name: str) -> None:
    assert found["torch"][name].digest == found["torch"]["plain"].digest


@pytest.mark.parametrize("name", SAME_STEPS)
@pytest.mark.parametrize("backend", TORCH_THEN_WIDE[1:])
def test_blocks_of_any_length_give_the_same_steps_under_xla(found: All, backend: str, name: str) -> None:
    ours, theirs = found[backend]["plain"].weights, found[backend][name].weights
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_workers_change_nothing(found: All, backend: str) -> None:
    one, three = found[backend]["thread"], found[backend]["threads"]
    assert (one.digest, one.losses) == (three.digest, three.losses)


@pytest.mark.wide
def test_tf_datas_workers_change_nothing(found: All) -> None:
    ends = [found["tensorflow"][name] for name in ("tfdata", "tfdata without workers", "thread")]
    assert len({(end.digest, *end.losses) for end in ends}) == 1


@given(st.integers(0, 2000), st.integers(0, 2**32 - 1), st.integers(0, 1000))
def test_epoch_order_is_a_permutation_that_seed_and_epoch_decide(images: int, seed: int, epoch: int) -> None:
    np.random.seed(1)  # noqa: NPY002  # foreign numbers must not matter
    order = epoch_order(images, seed, epoch)
    assert sorted(order.tolist()) == list(range(images))
    np.random.rand(3)  # noqa: NPY002
    np.testing.assert_array_equal(order, epoch_order(images, seed, epoch))
    if images > 20:  # of 20! orders, two are not the same by accident
        assert (order != epoch_order(images, seed, epoch + 1)).any()
        assert (order != epoch_order(images, seed + 1, epoch)).any()


@given(st.integers(0, 500), st.integers(1, 70), st.integers(1, 80))
def test_blocks_hold_every_index_once_in_order(images: int, batch_size: int, steps: int) -> None:
    order = epoch_order(images, 0, 0)
    cut = list(blocks(order, batch_size, steps))
    np.testing.assert_array_equal(np.concatenate([block.ravel() for block in cut]) if cut else [], order)
    tail = images % batch_size
    whole = cut[:-1] if tail else cut
    assert all(block.shape[1] == batch_size and 1 <= block.shape[0] <= steps for block in whole)
    assert all(block.shape[0] == steps for block in whole[:-1])
    if tail:
        assert cut[-1].shape == (1, tail)


@given(st.integers(1, 80), st.integers(1, 5), st.integers(0, 70))
def test_a_padded_block_begins_with_the_block(count: int, size: int, more: int) -> None:
    rows = np.arange(count * size).reshape(count, size) + 1
    result = padded(rows, count + more, size)
    assert result.dtype == np.int32
    assert result.shape == (count + more, size)
    np.testing.assert_array_equal(result[:count], rows)
    assert not result[count:].any()
    np.testing.assert_array_equal(padded(rows[:1], count + more, size + 1), rows[:1])  # an epoch's last, smaller batch
