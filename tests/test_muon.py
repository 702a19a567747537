"""Muon: what makes a matrix orthogonal, which weights get it, and that a resumed training goes on with its state.

Its steps on the three backends are in test_parity.py.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import done, refused
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.optimizers.muon import Muon
from pipeline.optimizers.orthogonal import ADAM, MATRIX, orthogonal
from pipeline.runs.json_files import read_json
from pipeline.runs.result import read_result
from pipeline.runs.weights import load


def of_norm_one(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 99))
def test_singular_vectors_stay_and_singular_values_become_about_one(rows: int, columns: int, seed: int) -> None:
    x = of_norm_one(np.random.default_rng(seed).normal(size=(rows, columns)))
    turned = orthogonal(x, lambda one: one.swapaxes(-1, -2), 5)
    left, values, right = np.linalg.svd(x, full_matrices=False)
    found = left.T @ turned @ right.T
    np.testing.assert_allclose(found, np.diag(np.diag(found)), atol=1e-9)
    large = np.diag(found)[values > 0.01]
    assert ((large > 0.6) & (large < 1.3)).all()


def test_several_matrices_are_each_as_by_itself() -> None:
    many = np.stack([of_norm_one(one) for one in np.random.default_rng(0).normal(size=(3, 4, 6))])
    turned = orthogonal(many, lambda one: one.swapaxes(-1, -2), 5)
    for one, found in zip(many, turned, strict=True):
        np.testing.assert_allclose(orthogonal(one, lambda x: x.swapaxes(-1, -2), 5), found, atol=1e-14)


SHAPES = {
    "tokens.embeddings": (83, 128),
    "place": (8, 16),  # a tensor of a user's own layer: nothing says which axis goes in
    "0.kernel": (5, 5, 1, 32),  # a convolution's
    "inner.kernel": (128, 512),
    "inner.bias": (512,),
    "norm.gamma": (128,),
    "outer.kernel": (512, 128),
    "last.kernel": (128, 83),
}


def test_the_kernels_of_dense_layers_but_the_last_are_its_matrices() -> None:
    kinds = Muon().kinds(SHAPES, 83)
    assert list(kinds) == list(SHAPES)
    assert [name for name, kind in kinds.items() if kind == MATRIX] == ["inner.kernel", "outer.kernel"]
    assert set(kinds.values()) == {MATRIX, ADAM}
    tied = {name: shape for name, shape in SHAPES.items() if name != "last.kernel"}
    assert Muon().kinds(tied, 83)["outer.kernel"] == MATRIX
    assert Muon().kinds(tied, None)["outer.kernel"] == MATRIX
    assert Muon().kinds(tied, 128)["outer.kernel"] == ADAM


def test_a_kernel_of_inputs_first_moves_as_its_transpose() -> None:
    first = torch.nn.Parameter(torch.ones(4, 6, dtype=torch.float64))
    second = torch.nn.Parameter(torch.ones(6, 4, dtype=torch.float64))
    groups = [
        {"params": [one], "kind": MATRIX, "compute": "float64", "inputs_first": inputs_first}
        for one, inputs_first in ((first, True), (second, False))
    ]
    optimizer = Muon().torch(groups)
    gradient = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 6)))
    first.grad, second.grad = gradient, gradient.T.contiguous()
    optimizer.step()
    torch.testing.assert_close(first.detach().T, second.detach(), rtol=0, atol=1e-12)


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_outputs_of_a_frozen_kernel(tmp_path: Path, backend: str) -> None:
    """The last kernel that was trained counted as the outputs', where it was as wide as the vocabulary.

    A matrix moves by about as much in every direction, by Adam it does not.
    """
    words = ("stage=transformer", "dataset=python_docs", "dataset.context=16", "training.steps=1", "tracking=none")
    quick = ("schedule=constant", "stage.baselines=false", "stage.attention=false", "optimizer=muon", "precision=fp64")
    model = ("model.layers=1", "model.heads=2", "model.width=256", "dataset.tokens=bytes", "training.batch_size=2")
    every = (*words, *quick, *model, f"backend={backend}")
    first = done(tmp_path, *every)
    run = done(tmp_path, *every, f"model.start={first.name}", "model.freeze=[logits]")
    updates = read_json(run / "receipt.json")["updates"]
    assert "blocks.0.mlp.outer.kernel" in updates[MATRIX]
    assert not any("logits" in name for names in updates.values() for name in names)
    before, after = (load(one / "artifacts/model/weights.npz")["blocks.0.mlp.outer.kernel"] for one in (first, run))
    moved = np.linalg.svd(after - before, compute_uv=False)
    assert moved[9] > 0.7 * moved[0]  # of 32, as many as the batch has tokens


def test_a_net_without_a_matrix_says_so(tmp_path: Path) -> None:
    run = done(tmp_path, "dataset=digits", "model=linear", "optimizer=muon", "training.epochs=1", "tracking=none")
    result = read_result(run)
    assert result is not None
    said = f"optimizer=muon: all trained weights get its {ADAM} update; the settings of its other update have no effect"
    assert said in result.notes


@pytest.mark.wide
def test_tied_embeddings_leave_every_kernel_to_it(tmp_path: Path) -> None:
    words = ("stage=transformer", "dataset=python_docs", "dataset.context=16", "training.steps=2", "tracking=none")
    quick = ("schedule.warm_up=1", "stage.baselines=false", "stage.attention=false", "optimizer=muon")
    model = ("model.layers=1", "model.heads=2", "model.width=256", "model.tied=true", "dataset.tokens=bytes")
    run = done(tmp_path, *words, *quick, *model)
    assert "blocks.0.mlp.outer.kernel" in read_json(run / "receipt.json")["updates"][MATRIX]


def test_a_pattern_names_more_of_adams_and_must_name_one() -> None:
    assert Muon(by_adam=("inner",)).kinds(SHAPES, 83)["inner.kernel"] == ADAM
    with pytest.raises(UserError, match=r"optimizer.by_adam=\[logits\]: matches no weight; this model has tokens"):
        Muon(by_adam=("logits",)).kinds(SHAPES, 83)


@pytest.mark.parametrize(
    "backend", ["torch", *(pytest.param(name, marks=pytest.mark.wide) for name in ("tensorflow", "jax"))]
)
def test_a_pattern_without_a_weight_is_refused_before_the_run_begins(backend: str, tmp_path: Path) -> None:
    words = ("dataset=digits", "optimizer=muon", "optimizer.by_adam=[nothing]", f"backend={backend}")
    assert refused(tmp_path, *words).startswith("optimizer.by_adam=[nothing]: matches no weight; this model has ")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_matrix_without_a_gradient_stays_finite_in_16_bits(dtype: torch.dtype) -> None:
    weights = [torch.nn.Parameter(torch.ones(4, 3, dtype=dtype)), torch.nn.Parameter(torch.ones(3, dtype=dtype))]
    compute = str(dtype).removeprefix("torch.")
    groups = [
        {"params": weights[:1], "kind": MATRIX, "compute": compute, "inputs_first": False},
        {"params": weights[1:], "kind": ADAM, "compute": compute, "inputs_first": False},
    ]
    optimizer = Muon().torch(groups)
    for gradient in (0.0, 1e-4):
        for weight in weights:
            weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
    assert all(torch.isfinite(weight).all() for weight in weights)
    assert (weights[0] < 1).all(), "a small gradient moves a matrix as a large one does"


def test_the_receipt_says_which_weights_got_which_update(tmp_path: Path) -> None:
    words = ("dataset=digits", "model=mlp", "model.units=[16,8]", "training.steps=3", "tracking=none")
    run = done(tmp_path, "optimizer=muon", "model.layer_dtypes=[bfloat16,bfloat16,bfloat16]", *words)
    found = read_json(run / "receipt.json")
    assert found["updates"] == {
        ADAM: ["2.bias", "5.bias", "8.kernel", "8.bias"],
        MATRIX: ["2.kernel", "5.kernel"],
    }
    assert set(found["precision"]["observed"]["matrix_products"]) == {"bfloat16"}


def trained(optimizer: Any, weights: list[torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        for number, weight in enumerate(weights):
            values = np.random.default_rng((step, number)).normal(size=tuple(weight.shape))
            weight.grad = torch.from_numpy(values)
        optimizer.step()


def made() -> tuple[Any, list[torch.nn.Parameter]]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((6, 4), (6, 4), (3, 5), (7,))
    weights = [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]
    groups = [
        {"params": weights[:3], "kind": MATRIX, "compute": "float64", "inputs_first": False},
        {"params": weights[3:], "kind": ADAM, "compute": "float64", "inputs_first": False},
    ]
    return Muon(weight_decay=0.1).torch(groups), weights


def test_a_resumed_training_goes_on_with_its_state() -> None:
    whole, expected = made()
    trained(whole, expected, range(6))
    first, weights = made()
    trained(first, weights, range(3))
    second, again = made()
    with torch.no_grad():
        for new, old in zip(again, weights, strict=True):
            new.copy_(old)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    trained(second, again, range(3, 6))
    assert expected
    for one, other in zip(expected, again, strict=True):
        assert torch.equal(one, other)


def test_an_update_is_the_papers() -> None:
    """Against the update written out for one matrix, and torch's AdamW for the vector, at a twentieth of the rate."""
    optimizer, weights = made()
    matrix, vector = weights[0].detach().clone(), weights[3].detach().clone()
    alone = torch.nn.Parameter(vector)
    adam = torch.optim.AdamW([alone], lr=0.001, betas=(0.9, 0.95), eps=1e-7, weight_decay=0.0)
    trained(optimizer, weights, range(1))
    gradient = np.random.default_rng((0, 0)).normal(size=(6, 4))
    moved = of_norm_one(gradient + 0.95 * gradient)
    turned = orthogonal(moved, np.transpose, 5)
    expected = matrix.numpy() * (1 - 0.02 * 0.1) - 0.02 * math.sqrt(6 / 4) * turned
    np.testing.assert_allclose(weights[0].detach().numpy(), expected, atol=1e-7)
    alone.grad = torch.from_numpy(np.random.default_rng((0, 3)).normal(size=7))
    adam.step()
    np.testing.assert_allclose(weights[3].detach().numpy(), alone.detach().numpy(), atol=1e-12)


def test_adapters_are_matrices_but_for_that_of_the_outputs() -> None:
    shapes = {
        "blocks.0.query.adapter_a": (16, 4),
        "blocks.0.query.adapter_b": (4, 16),
        "logits.adapter_a": (16, 4),
        "logits.adapter_b": (4, 83),
    }
    found = Muon().kinds(shapes, 83)
    assert list(found.values()) == [MATRIX, MATRIX, MATRIX, ADAM]
