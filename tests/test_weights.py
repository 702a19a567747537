"""Weights between models: by name where the names agree, else by order; what starts from the shared values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.losses.cross_entropy import CrossEntropy
from pipeline.models.weights import fit_to, initial, own_start
from pipeline.runs.result import values
from pipeline.tasks.language_modelling import LanguageModelling

A, B = np.zeros((2, 2)), np.ones((2, 2))


def test_the_same_names_in_another_order_go_by_name() -> None:
    first, second = fit_to({"skip.kernel": A, "first.kernel": B}, {"first.kernel": A, "skip.kernel": A}, "x")
    assert first is B
    assert second is A


def test_other_names_go_by_order_and_kind() -> None:
    assert fit_to({"1.kernel": A, "1.bias": B}, {"dense.kernel": A, "dense.bias": A}, "x") == [A, B]
    with pytest.raises(UserError, match=r"it has 1.kernel \(2, 2\); this model has dense.bias \(2, 2\)"):
        fit_to({"1.kernel": A}, {"dense.bias": A}, "x")
    deep = {f"blocks.{number}.kernel": A for number in range(40)}
    with pytest.raises(UserError, match=r"it has 1.bias \(2, 2\); this model has blocks.0.kernel .* and 35 more$"):
        fit_to({"1.bias": A}, deep, "x")


@pytest.mark.parametrize("name", ["kernel", "dense.kernel"])
def test_another_shape_is_named(name: str) -> None:
    with pytest.raises(
        UserError, match=r"x: weights of another model: kernel has shape \(2, 2\); this model.* \(3, 2\)"
    ):
        fit_to({"kernel": A}, {name: np.zeros((3, 2))}, "x")


def test_what_keeps_its_start() -> None:
    like = {"a.kernel": A, "a.bias": A[0], "b.embeddings": A, "c.kernel": A[0] + 7, "d.in_proj_weight": A + 0.5}
    assert own_start(like) == ["c.kernel", "d.in_proj_weight"]
    found = initial(like, 0)
    np.testing.assert_array_equal(found["c.kernel"], [7, 7])
    np.testing.assert_array_equal(found["d.in_proj_weight"], A + 0.5)
    assert found["a.kernel"].any()
    assert found["b.embeddings"].any()


def test_a_perplexity_beyond_every_number_is_infinite() -> None:
    judge = LanguageModelling(2, 3).judge(CrossEntropy())
    judge.add(np.zeros((1, 2)), np.array([[[1e3, 0, 0], [0, 0, 0]]]), np.array([[1, 1]]))
    judge.add(np.zeros((1, 2)), np.array([[[1e4, 0, 0], [0, 0, 0]]]), np.array([[1, 1]]))
    found = values(judge.metrics())
    assert found["test/perplexity"] == math.inf
    assert math.isfinite(found["test/loss"])
