"""Augmentations: each change against another computation of it, and draws that depend on their key alone."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from command import environment, refused, without_place
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from in_backend import experiment

from pipeline.augmentations.crop import cropped
from pipeline.augmentations.cutout import cut_out
from pipeline.augmentations.draws import Draws, mixed
from pipeline.augmentations.feed import Augment, augment_of
from pipeline.augmentations.flip import flipped
from pipeline.augmentations.images import Images
from pipeline.augmentations.shift import shifted
from pipeline.contracts import Augmentation, Loader
from pipeline.errors import Impossible, UserError
from pipeline.experiment.checks import check_training
from pipeline.models import Shapes
from pipeline.spec import spec

IMAGES = arrays.arrays(
    st.sampled_from([np.uint8, np.float32, np.float64]),
    st.tuples(st.integers(1, 5), st.integers(2, 9), st.integers(2, 9), st.sampled_from([1, 3])),
    elements=st.integers(0, 255),
)
ALL = Images(crop=0.5, shift=1, flip=True, cutout=1)


def numbers(x: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.random.default_rng(x.size).integers(low, high, len(x))


# The first outputs for a seed of 1234567 of the reference implementation (prng.di.unimi.it/splitmix64.c).
SPLITMIX = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)


def test_the_generator_is_splitmix64() -> None:
    draws = Draws(0, 0, np.zeros(1))
    draws.state = np.array([1234567], np.uint64)
    assert tuple(map(int, [*draws.bits(2)[0], *draws.bits(3)[0]])) == SPLITMIX


def test_draws_are_uniform_and_independent_of_each_other() -> None:
    u = Draws(3, 1, np.arange(20_000)).uniform(4)
    assert 0 <= u.min() < u.max() < 1
    counts = np.histogramdd(u[:, :2], 8, [(0, 1)] * 2)[0]
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 103  # chi-square, 63 degrees of freedom, p = 0.001
    assert np.abs(np.corrcoef(u.T) - np.eye(4)).max() < 0.03
    other = Draws(3, 2, np.arange(20_000)).uniform(4)
    assert abs(np.corrcoef(u[:, 0], other[:, 0])[0, 1]) < 0.03


@given(st.integers(0, 2**32 - 1), st.integers(0, 1000), st.permutations(range(9)), st.integers(1, 9))
def test_draws_depend_on_seed_epoch_and_example_alone(seed: int, epoch: int, order: list[int], some: int) -> None:
    whole = Draws(seed, epoch, np.arange(9)).integers(-3, 4, 5)
    batch = Draws(seed, epoch, np.array(order[:some])).integers(-3, 4, 5)
    np.testing.assert_array_equal(batch, whole[order[:some]])
    assert set(np.unique(whole)) <= set(range(-3, 4))
    others = (
        Draws(seed, epoch + 1, np.arange(9)),
        Draws(seed + 1, epoch, np.arange(9)),
        Draws(seed, epoch, np.arange(9) + 9),
    )
    for other in others:
        assert not np.array_equal(mixed(other.state), mixed(Draws(seed, epoch, np.arange(9)).state))


@given(IMAGES, st.data())
def test_an_image_is_the_same_in_every_batch(x: np.ndarray, data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(len(x)))))
    augment = Augment(ALL, 5)
    kept = x.copy()
    whole = augment(x, np.arange(len(x)), 2)
    np.testing.assert_array_equal(x, kept)
    assert (whole.shape, whole.dtype) == (x.shape, x.dtype)
    np.testing.assert_array_equal(augment(x[order], order, 2), whole[order])


def test_another_setting_leaves_the_draws_of_the_others() -> None:
    x = np.random.default_rng(0).integers(0, 255, (20, 8, 8, 1)).astype(np.uint8)
    rows = np.arange(20)
    shift, both = Augment(Images(shift=2), 0)(x, rows, 0), Augment(Images(shift=2, flip=True), 0)(x, rows, 0)
    mirrored = [not np.array_equal(*pair) for pair in zip(shift, both, strict=True)]
    assert 0 < sum(mirrored) < 20
    np.testing.assert_array_equal(flipped(both, np.array(mirrored)), shift)


@given(IMAGES)
def test_flipped_twice_is_not_flipped(x: np.ndarray) -> None:
    chosen = numbers(x, 0, 2).astype(bool)
    once = flipped(x, chosen)
    np.testing.assert_array_equal(flipped(once, chosen), x)
    np.testing.assert_array_equal(once[~chosen], x[~chosen])
    np.testing.assert_array_equal(once[chosen], np.flip(x[chosen], 2))


@given(IMAGES, st.integers(0, 3))
def test_a_shift_rolls_and_fills_with_zeros(x: np.ndarray, most: int) -> None:
    down, right = numbers(x, -most, most + 1), numbers(x[:, :1], -most, most + 1)
    found = shifted(x, down, right, most)
    _, height, width, _ = x.shape
    for image, made, i, j in zip(x, found, down, right, strict=True):
        for row in range(height):
            for column in range(width):
                inside = 0 <= row - i < height and 0 <= column - j < width
                wanted = image[row - i, column - j] if inside else np.zeros_like(image[0, 0])
                np.testing.assert_array_equal(made[row, column], wanted)


@given(IMAGES, st.integers(1, 4))
def test_a_square_is_cut_out(x: np.ndarray, side: int) -> None:
    row, column = numbers(x, 0, x.shape[1]), numbers(x, 0, x.shape[2])
    found = cut_out(x, row, column, side)
    for image, made, i, j in zip(x, found, row - side // 2, column - side // 2, strict=True):
        wanted = image.copy()
        wanted[max(i, 0) : i + side, max(j, 0) : j + side] = 0
        np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("window", [(0, 0, 8), (2, 1, 4), (4, 4, 2)])
def test_a_crop_is_enlarged_as_torch_does_it(window: tuple[int, int, int]) -> None:
    top, left, side = window
    x = np.random.default_rng(0).uniform(size=(2, 8, 8, 3))
    found = cropped(x, *(np.full(2, value, float) for value in (side / 8, top, left)))
    part = torch.from_numpy(x[:, top : top + side, left : left + side]).permute(0, 3, 1, 2)
    wanted = torch.nn.functional.interpolate(part, (8, 8), mode="bilinear").permute(0, 2, 3, 1)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=1e-14)


@given(IMAGES, st.floats(0.3, 1))
def test_a_crop_stays_within_the_values_of_its_image(x: np.ndarray, scale: float) -> None:
    share = numbers(x, 0, 100) / 100 * (1 - scale)
    found = cropped(x, np.full(len(x), scale), share * x.shape[1], share * x.shape[2])
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    for image, made in zip(x, found, strict=True):
        assert made.min() >= image.min()
        assert made.max() <= image.max()


@spec
class Own(Augmentation):
    """A user's; `does` names what is wrong with it."""

    does: str = ""

    def augmented(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        noise = draws.integers(0, 9, *x.shape[1:])
        if self.does == "fails":
            raise KeyError("x")
        if self.does == "widens":
            return x + noise
        if self.does == "gives a list":
            return list(x)  # type: ignore[return-value]
        if self.does == "draws elsewhere":
            noise = np.random.default_rng().integers(0, 9, x.shape)
        if self.does == "seldom draws elsewhere":
            noise[[random.random() < 0.05 for _ in x]] += 1
        if self.does == "draws at a call" and len(x) > 1:
            noise = noise + int(random.random() < 0.5)
        if self.does == "draws for the batch" and random.random() < 0.5:
            noise = noise[:, ::-1]
        return x + noise.astype(x.dtype)


IN_A_BATCH = "makes other images in a batch than of each image alone; take all random numbers from draws"
FAULTS = {
    "fails": "fails on (64, 4, 4, 1) uint8: KeyError: 'x'",
    "widens": "turns images (64, 4, 4, 1) uint8 into (64, 4, 4, 1) int64; keep shape and dtype",
    "gives a list": "turns images (64, 4, 4, 1) uint8 into a list; keep shape and dtype",
    "draws elsewhere": IN_A_BATCH,
    "seldom draws elsewhere": IN_A_BATCH,
    "draws for the batch": IN_A_BATCH,
    "draws at a call": "makes other images from the same draws; take all random numbers from draws",
}


@pytest.mark.parametrize("does", FAULTS)
def test_what_is_wrong_with_an_augmentation_is_named(does: str) -> None:
    x = np.zeros((70, 4, 4, 1), np.uint8)
    random.seed(0)
    assert augment_of(Own(), 0, Shapes((4, 4, 1), (2,)), x)(x, np.arange(70), 0).any()
    with pytest.raises(UserError) as caught:
        augment_of(Own(does=does), 0, Shapes((4, 4, 1), (2,)), x)
    assert without_place(str(caught.value)) == f"augmentation=own: {FAULTS[does]}"


def test_what_does_not_suit_the_images_is_refused() -> None:
    for augmentation, shape, said in (
        (Images(shift=8), (8, 9, 1), "augmentation.shift=8: the images have 8 x 9 pixels; choose less"),
        (Images(cutout=8), (9, 8, 1), "augmentation.cutout=8: the images have 9 x 8 pixels; choose less"),
        (
            Images(flip=True),
            (5,),
            "augmentation=images: takes images (height, width, channels); the examples of this dataset have shape (5,)",
        ),
    ):
        with pytest.raises(UserError) as caught:
            augment_of(augmentation, 0, Shapes(shape, (2,)), np.zeros((2, *shape)))
        assert str(caught.value) == said


@spec
class Foreign(Loader):
    """A user's loader that knows no augmentation."""

    backends: ClassVar[tuple[str, ...]] = ("torch",)

    steps_per_execution: int = 1

    def stream(self, *_: object, **__: object) -> list[Any]:
        return []


def test_a_loader_that_does_not_augment_is_refused() -> None:
    augmented = replace(experiment("torch"), augmentation=Images(flip=True), loader=Foreign())
    with pytest.raises(Impossible, match=r"^augmentation=images with loader=foreign: this loader does not augment; "):
        check_training(augmented)
    check_training(replace(augmented, augmentation=Images()))  # nothing of it is set


def test_without_augmentation_a_config_has_the_hash_that_it_had() -> None:
    plain = experiment("torch")
    assert "augmentation" in plain.config
    assert "augmentation" not in plain.deciding()
    assert replace(plain, augmentation=Images()).config_sha256() == plain.config_sha256()
    assert "augmentation" in replace(plain, augmentation=Images(flip=True)).deciding()


def test_problems_and_features_are_refused_before_the_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros((20, 5)), y=np.arange(20) % 2)
    assert refused(tmp_path, "dataset=npz", "dataset.file=rows.npz", "augmentation=images") == (
        "augmentation=images: takes images (height, width, channels); the examples of this dataset have shape (5,)"
    )
    assert refused(tmp_path, "stage=pinn", "dataset=ode", "augmentation=images") == (
        "augmentation with stage=pinn: a problem has no batches and no classes; leave it out: solver= and its "
        "settings say how it is trained"
    )


LOADERS = """
import sys
import numpy as np
from pipeline.augmentations.feed import Augment
from pipeline.augmentations.images import Images
from pipeline.datasets import Data, Split
from pipeline.datasets.normalisation import Normalisation
from pipeline.loaders import epoch_order
from pipeline.loaders.memory import Memory
from pipeline.loaders.threads import Threads
from pipeline.tasks.classification import Classification
x = np.random.default_rng(0).integers(0, 255, (10, 8, 8, 3)).astype(np.uint8)
split = Split(x, np.arange(10))
class InPlace(Images):
    def augmented(self, x, draws):
        x[:] = super().augmented(x, draws)
        return x
stored = x.copy()
augment = Augment(InPlace(crop=0.5, shift=2, flip=True, cutout=3), 7)
task, by = Classification((8, 8, 3), tuple("0123456789")), Normalisation.measured(x, 255.0)
data = Data(split, split, split, task, "", 255.0, augment, by)
found = {}
def passes(loader, start):
    stream = loader.stream(data, "float32", 4, 7, start)
    return [(np.array(x), np.array(y)) for epoch in range(start[0], 2) for x, y in stream]
"""
OF_TORCH = """
from pipeline.loaders.dataloader import DataLoader
loaders = {loader: epoch_order for loader in (Memory(), Threads(workers=3), DataLoader(), DataLoader(workers=2))}
"""
OF_TENSORFLOW = """
from pipeline.loaders.tfdata import TfData
def once(examples, seed, epoch):
    return epoch_order(examples, seed, 0)
loaders = {TfData(): once, TfData(cache=False, shuffle=True): epoch_order}
"""
COMPARE = """
for loader, ordered in loaders.items():
    for start in ((0, 0), (0, 1), (1, 2)):
        found = passes(loader, start)
        rows = [ordered(10, 7, epoch) for epoch in (0, 1)]
        batches = [(epoch, rows[epoch][first : first + 4]) for epoch in (0, 1) for first in (0, 4, 8)]
        batches = batches[3 * start[0] + start[1] :]
        assert len(found) == len(batches), (loader, start)
        for (x, y), (epoch, which) in zip(found, batches, strict=True):
            np.testing.assert_array_equal(y, which, err_msg=f"{loader} {start}")
            wanted = np.concatenate([data.training(which[i : i + 1], epoch).x for i in range(len(which))])
            np.testing.assert_array_equal(x, data.inputs(wanted), err_msg=f"{loader} {start}")
            assert not np.array_equal(x, data.inputs(data.train.x[which]))
    np.testing.assert_array_equal(data.train.x, stored, err_msg=f"{loader}")
"""


@pytest.mark.parametrize(
    "loaders",
    [pytest.param(OF_TORCH, id="torch"), pytest.param(OF_TENSORFLOW, id="tensorflow", marks=pytest.mark.wide)],
)
def test_every_loader_hands_over_the_same_images(loaders: str) -> None:
    """Augmented and normalised, to the bit, from any batch on, with any number of threads and worker processes, though
    x is written into.
    """
    command = [sys.executable, "-c", LOADERS + loaders + COMPARE]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
