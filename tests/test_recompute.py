"""model.recompute: the backward pass computes each block anew, and the training stays the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from command import done, environment
from test_adapters import TINY, losses

from pipeline.models import Shapes
from pipeline.models.gpt import Gpt
from pipeline.models.vit import Vit
from pipeline.runs import weights
from pipeline.runs.json_files import read_json

SETTINGS: dict[str, Any] = {"layers": 2, "heads": 2, "width": 16, "dropout": 0.3}
SMALL = (*TINY, "model.dropout=0.2", "model.positions=rotary", "training.steps=10", "schedule.warm_up=1")


def gradients(model: Gpt | Vit, x: torch.Tensor, shapes: Shapes) -> tuple[list[torch.Tensor], int]:
    """Output and gradients of a net made by one seed, and how often an MLP was called."""
    torch.manual_seed(0)
    net = cast(torch.nn.Module, model.torch(shapes)).double()
    calls: list[int] = []
    net.get_submodule("blocks.0.mlp").register_forward_hook(lambda *_: calls.append(1))
    torch.manual_seed(1)
    outputs = net(x)
    outputs.square().sum().backward()
    return [outputs, *(cast(torch.Tensor, one.grad) for one in net.parameters())], len(calls)


@pytest.mark.parametrize("kind", [Gpt, Vit])
def test_outputs_and_gradients_are_the_same_to_the_bit_with_dropout(kind: type[Gpt | Vit]) -> None:
    shapes = Shapes((8,), (8, 11), vocabulary=11) if kind is Gpt else Shapes((8, 8, 3), (10,))
    x = torch.arange(24).reshape(3, 8) % 11 if kind is Gpt else torch.randn(3, 8, 8, 3, dtype=torch.float64)
    plain, once = gradients(kind(**SETTINGS), x, shapes)
    again, twice = gradients(kind(**SETTINGS, recompute=True), x, shapes)
    assert (once, twice) == (1, 2)
    assert len(plain) > 2
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_a_training_is_the_same(tmp_path: Path, backend: str) -> None:
    """The receipt has the products of the second forward pass; JAX's and TensorFlow's compilers may sum otherwise."""
    words = (*SMALL, f"backend={backend}")
    plain, again = done(tmp_path, *words), done(tmp_path, *words, "model.recompute=true")
    np.testing.assert_allclose(losses(again), losses(plain), rtol=0, atol=0 if backend == "torch" else 1e-12)
    ours, theirs = (weights.load(run / "artifacts" / "model" / "weights.npz") for run in (plain, again))
    for name, array in ours.items():
        np.testing.assert_allclose(theirs[name], array, rtol=0, atol=0 if backend == "torch" else 1e-10, err_msg=name)
    few, many = (
        sum(read_json(run / "receipt.json")["precision"]["observed"]["matrix_products"].values())
        for run in (plain, again)
    )
    assert many > few


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
@pytest.mark.parametrize("more", ["precision=mixed", "precision=bf16", "compile", "model=vit"])
def test_it_goes_with_other_settings(tmp_path: Path, backend: str, more: str) -> None:
    if more == "compile" and backend != "torch":
        pytest.skip("JAX always compiles, and TensorFlow unless backend.xla=false, which the other cases show")
    of_text = tuple(word for word in SMALL if not word.startswith("precision="))
    of_images = ("dataset=digits", "model.layers=2", "model.dropout=0.2", "training.steps=10", "tracking=none")
    words = of_images if more == "model=vit" else of_text
    run = done(
        tmp_path,
        *words,
        "backend.compile=true" if more == "compile" else more,
        f"backend={backend}",
        "model.recompute=true",
    )
    assert (run / "artifacts" / "model" / "weights.npz").is_file()


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_it_goes_with_adapters(tmp_path: Path, backend: str) -> None:
    words = (*SMALL, f"backend={backend}")
    for name in ("base", "false", "true"):
        (tmp_path / name).mkdir()
    base = done(tmp_path / "base", *words)
    adapted = (*words, f"model.start={base}", "model.adapters.rank=2")
    plain, again = (done(tmp_path / name, *adapted, f"model.recompute={name}") for name in ("false", "true"))
    np.testing.assert_allclose(losses(again), losses(plain), rtol=0, atol=0 if backend == "torch" else 1e-12)


MEMORY = """
import jax, numpy as np
from pipeline.models import Shapes
from pipeline.models.gpt import Gpt

for recompute in (False, True):
    model = Gpt(layers=6, heads=4, width=32, recompute=recompute).keras(Shapes((128,), (128, 11), vocabulary=11))
    state = [[v.value for v in of] for of in (model.trainable_variables, model.non_trainable_variables)]
    gradient = jax.jit(jax.grad(lambda *state: model.stateless_call(*state, training=True)[0].var()))
    x = np.zeros((4, 128), np.int32)
    print(gradient.lower(*state, x).compile().memory_analysis().temp_size_in_bytes)
"""


@pytest.mark.wide
def test_a_compiler_does_not_keep_what_is_to_be_recomputed() -> None:
    """XLA on a CPU does with jax.checkpoint, whose program takes as much memory as without."""
    command = [sys.executable, "-c", MEMORY]
    ended = subprocess.run(
        command, env=environment(KERAS_BACKEND="jax"), capture_output=True, text=True, check=False, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    plain, again = map(int, ended.stdout.split())
    assert again < plain / 2
