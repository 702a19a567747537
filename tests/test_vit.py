"""model=vit: its patches, that it trains the same on every backend, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from command import TWO_THEN_WIDE, done, refused
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pipeline.models import Shapes
from pipeline.models.cnn import Cnn
from pipeline.models.transformer.torch_vit import patched
from pipeline.models.vit import Vit
from pipeline.runs import weights
from pipeline.runs.records import read_metrics

IMAGES = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 8, 12, 3)))
WORDS = ("dataset=digits", "model=vit", "model.width=16", "model.layers=2", "training.steps=8", "precision=fp64")
STEPS = ("training.batch_size=16", "training.log_every_n_steps=1", "tracking=none", "seed=1")


def test_patches_are_what_a_convolution_with_their_stride_sees() -> None:
    """Dosovitskiy et al., section 3.1, with the kernel of the dense layer as the convolution's."""
    kernel = torch.from_numpy(np.random.default_rng(1).normal(size=(4 * 4 * 3, 5)))
    convolved = torch.nn.functional.conv2d(
        IMAGES.permute(0, 3, 1, 2), kernel.T.reshape(5, 4, 4, 3).permute(0, 3, 1, 2), stride=4
    )
    found = patched(IMAGES, 4) @ kernel
    assert found.shape == (2, 2 * 3, 5)
    torch.testing.assert_close(found, convolved.flatten(2).transpose(1, 2), rtol=0, atol=1e-12)


def test_it_sees_the_order_of_patches_by_their_positions_alone() -> None:
    net = Vit(layers=2, width=16, patch=4).torch(Shapes((8, 12, 3), (10,))).double().eval()
    turned = IMAGES.flip(1).reshape(2, 2, 4, 12, 3).flip(2).reshape(IMAGES.shape)  # rows of patches swapped
    with torch.no_grad():
        assert (net(IMAGES) - net(turned)).abs().max() > 1e-4
        net.positions.embeddings.zero_()
        torch.testing.assert_close(net(IMAGES), net(turned), rtol=0, atol=1e-12)


def test_one_patch_that_changes_changes_every_logit() -> None:
    """Attention is to all positions, before and after."""
    net = Vit(layers=1, width=16, patch=4).torch(Shapes((8, 12, 3), (10,))).double().eval()
    other = IMAGES.clone()
    other[:, -4:, -4:] += 1
    with torch.no_grad():
        assert ((net(IMAGES) - net(other)).abs() > 1e-6).all()


@pytest.mark.parametrize("model", [Cnn(), Vit()])
def test_the_page_has_the_parameters_and_flop_of_the_models_as_they_ship(model: Cnn | Vit) -> None:
    """The counter of torch 2.13 knows no fused attention on a CPU, so that it is computed by its two products."""
    found = []
    for side in (8, 28):
        net = model.torch(Shapes((side, side, 1), (10,))).eval()
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            net(torch.zeros(1, side, side, 1))
        found.append((sum(one.numel() for one in net.parameters()), counter.get_total_flops()))
    page = (Path(__file__).parents[1] / "docs" / "transformer.md").read_text(encoding="utf-8")
    name = type(model).__name__.lower()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` | ") and " M; " in line]
    _, _, parameters, flop, *_ = (cell.strip() for cell in row.split("|"))
    assert parameters == "; ".join(f"{count:,}" for count, _ in found)
    assert flop == "; ".join(f"{count / 1e6:#.3g} M" for _, count in found)


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return done(tmp_path_factory.mktemp("torch"), "backend=torch", *WORDS, *STEPS)


@pytest.mark.parametrize("backend", TWO_THEN_WIDE[1:])
@pytest.mark.wide
def test_every_step_is_the_same(of_torch: Path, tmp_path: Path, backend: str) -> None:
    run = done(tmp_path, f"backend={backend}", *WORDS, *STEPS)
    losses = [
        [record.metrics["train/loss"] for record in read_metrics(one) if "train/loss" in record.metrics]
        for one in (of_torch, run)
    ]
    assert len(losses[0]) == 8
    assert losses[0][0] == pytest.approx(np.log(10), rel=0.02)
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=1e-10)
    ours, theirs = (weights.load(one / "artifacts" / "model" / "weights.npz") for one in (of_torch, run))
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        np.testing.assert_allclose(theirs[name], array, rtol=0, atol=1e-8, err_msg=name)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, "dataset=digits", "model=vit", "model.heads=3")
    assert "width=64: not divisible by model.heads=3" in said
    with pytest.raises(ValueError, match="patch=5: does not divide 8x8 images; use 1, 2, 4, 8"):
        Vit(patch=5).torch(Shapes((8, 8, 1), (10,)))
