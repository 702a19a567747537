"""A model and a dataset of the user's own, in a folder outside the repository: no file of the package is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import done, pipeline, refused, runs, status, write_files

from pipeline.cli.conf_path import conf_path

MODULE = '''
"""A softmax regression with dropout, and a set of bright and dark squares."""

from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from pipeline.contracts import Dataset, Loss, Model
from pipeline.datasets import Data, Split
from pipeline.datasets.split import hash_splits
from pipeline.models import Shapes
from pipeline.spec import spec
from pipeline.tasks.classification import Classification


@spec
class Dropped(Model):
    share: float = Field(default=0.0, ge=0, lt=1)

    def torch(self, shapes: Any) -> Any:
        from torch import nn

        height, width, channels = shapes.image
        dense = nn.Linear(height * width * channels, shapes.classes)
        return nn.Sequential(nn.Flatten(), nn.Dropout(self.share), dense)

    def keras(self, shapes: Any) -> Any:
        import keras

        layers = [keras.layers.Flatten(), keras.layers.Dropout(self.share), keras.layers.Dense(shapes.classes)]
        return keras.Sequential([keras.Input(shapes.image), *layers])


@spec
class NoNumbers(Loss):
    def torch(self) -> Any:
        return None


@spec
class OnlyTorch(Model):
    def torch(self, shapes: Any) -> Any:
        return Dropped().torch(shapes)


@spec
class Squares(Dataset):
    size: int = Field(default=6, ge=2)

    task = Classification

    def load(self, root: Any, seed: int) -> Data:
        generator = np.random.default_rng(seed)
        y = generator.integers(0, 2, 300)
        x = np.where(y[:, None, None, None] == 1, 180, 40) + generator.integers(0, 60, (300, self.size, self.size, 1))
        train, validation, test = (Split(x[part].astype(np.uint8), y[part].astype(np.int64))
                                   for part in (slice(0, 200), slice(200, 250), slice(250, 300)))
        task = Classification((self.size, self.size, 1), ("dark", "bright"))
        return Data(train, validation, test, task, hash_splits(train, validation, test), scale=255.0)


@spec
class Narrow(Model):
    def torch(self, shapes: Any) -> Any:
        return Dropped().torch(Shapes(shapes.x, (1,)))

    def keras(self, shapes: Any) -> Any:
        return Dropped().keras(Shapes(shapes.x, (1,)))


@spec
class Wrong(Dataset):
    fault: str

    task = Classification

    def load(self, root: Any, seed: int) -> Any:
        data = Squares().load(root, seed)
        split = data.train
        if self.fault == "grey":
            split = Split(split.x[..., 0], split.y)
        if self.fault == "labels":
            split = Split(split.x, split.y + 1)
        return replace(data, train=split)
'''
RECIPE = """# @package _global_
defaults:
  - override /model: dropped
  - override /dataset: squares
name: mine
"""
CHOICES = {
    "model/dropped.yaml": "_target_: mine.Dropped\nshare: 0.1\n",
    "loss/no_numbers.yaml": "_target_: mine.NoNumbers\n",
    "model/only_torch.yaml": "_target_: mine.OnlyTorch\n",
    "dataset/squares.yaml": "_target_: mine.Squares\nsize: 6\n",
    "experiment/mine.yaml": RECIPE,
    "model/narrow.yaml": "_target_: mine.Narrow\n",
    "model/broken.yaml": "# a list that nobody closes\n_target_: mine.Dropped\nshare: [0.1\nname: x\n",
    "dataset/wrong.yaml": "_target_: mine.Wrong\nfault: none\n",
}
QUICK = ("training.epochs=5", "training.batch_size=20", "optimizer.learning_rate=0.05", "tracking=none")


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder: a module, and choices for it."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(MODULE)
    write_files(folder / "conf", CHOICES)
    return folder


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.wide)])
def test_a_model_and_a_dataset_of_ones_own(mine: Path, tmp_path: Path, backend: str) -> None:
    named = (
        "--config-dir",
        str(mine / "conf"),
        "model=dropped",
        "dataset=squares",
        "dataset.size=5",
        f"backend={backend}",
    )
    known = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(mine)}
    run = done(tmp_path, *named, *QUICK, **known)
    receipt = json.loads((run / "receipt.json").read_text())
    assert (receipt["parameters"], receipt["backend"]) == (5 * 5 * 2 + 2, backend)
    assert "imported_beside" not in receipt  # all that it imports is named in its code
    assert json.loads((run / "artifacts/model/card.json").read_text()) == {
        "task": "classification",
        "x": [5, 5, 1],
        "outputs": [2],
        "classes": ["dark", "bright"],
        "scale": 255.0,
    }
    scalars = json.loads((run / "result.json").read_text())["scalars"]
    assert scalars["test/accuracy"] > 0.9
    if backend == "torch":  # a saved run brings its choices along: no folder of choices is needed to use it
        again = done(tmp_path, "stage=evaluate", "run=latest", "backend=jax", "tracking=none", **known)
        assert json.loads((again / "result.json").read_text())["scalars"]["test/accuracy"] == scalars["test/accuracy"]
        said = refused(tmp_path, "stage=evaluate", f"run={run.name}")
        assert said.startswith("model._target_=mine.Dropped: not on the allow-list (pipeline); ")


@pytest.mark.wide
def test_by_the_search_path_in_a_recipe_and_in_a_grid(mine: Path, tmp_path: Path) -> None:
    known = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(mine)}
    named = (f"hydra.searchpath=[file://{mine / 'conf'}]", "experiment=mine", "seed=1,2")
    result = pipeline(tmp_path, "-m", *named, *QUICK, **known)
    assert result.returncode == 0, result.stderr
    assert "2 done · 0 failed" in result.stderr
    cells = [run for run in runs(tmp_path) if status(run).name != "mine"]  # the grid's own
    assert [status(run).name for run in cells] == ["mine-1", "mine-2"]
    hashes = {json.loads((run / "receipt.json").read_text())["data_sha256"] for run in cells}
    assert len(hashes) == 2


def test_refusals(mine: Path, tmp_path: Path) -> None:
    folder = ("--config-dir", str(mine / "conf"))
    known = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(mine)}
    assert refused(tmp_path, *folder, "model=only_torch", "backend=jax", **known) == (
        "model=onlytorch with backend=jax: OnlyTorch has no keras() builder; choose another backend or another model"
    )
    assert refused(tmp_path, *folder, "loss=no_numbers", **known) == (
        "loss._target_=mine.NoNumbers: has no numpy(outputs, targets)"
    )
    assert refused(tmp_path, *folder, "model=dropped", PYTHONPATH=str(mine)) == (
        "model._target_=mine.Dropped: not on the allow-list (pipeline); "
        "to allow a module of yours set PIPELINE_MODULES=<module>[,<module>]"
    )
    assert refused(tmp_path, *folder, "model=dropped", PIPELINE_MODULES="mine") == (
        "PIPELINE_MODULES=mine: no module mine on the path"
    )
    assert refused(tmp_path, *folder, "model=dropped", "model.share=1.0", **known) == (
        "model.share=1.0: should be less than 1"
    )
    models = {path.stem for conf in (conf_path(), mine / "conf") for path in (conf / "model").glob("*.yaml")}
    assert refused(tmp_path, *folder, "model=droped", **known) == (
        f"model=droped: no such choice (did you mean dropped?); choose from {', '.join(sorted(models))}"
    )
    assert refused(tmp_path, "--config-dir", "nowhere", **known).endswith("nowhere' not found")
    assert list(tmp_path.iterdir()) == []


def test_a_choice_that_is_not_yaml(mine: Path, tmp_path: Path) -> None:
    said = refused(tmp_path, "--config-dir", str(mine / "conf"), "model=broken")
    assert said == f"{mine}/conf/model/broken.yaml, line 4: not YAML: expected ',' or ']', but got ':'"


def test_choices_that_begin_from_each_other(tmp_path: Path) -> None:
    """A help page and a grid ended in a traceback."""
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / "conf/model").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"conf/model/{name}.yaml").write_text(f"defaults: [{other}]\n")
    words = ("--config-dir", str(tmp_path / "conf"), "dataset=digits", *QUICK)
    ends = "nested too deep; see whether the `defaults` of its files name each other"
    assert refused(tmp_path, *words, "model=one").endswith(ends)
    assert f"{ends} (cell 1: model=one)" in pipeline(tmp_path, *words, "-m", "model=one,mlp").stderr
    assert pipeline(tmp_path, *words[:2], "--help", "model=one").stdout.count("defaults: ") == 2
    for text in (b"defaults:\n", b"[1, 2]\n", b"a: [\n", b"\xff\n"):
        (tmp_path / "conf/model/two.yaml").write_bytes(text)
        assert pipeline(tmp_path, *words[:2], "--help", "model=one").returncode == 0


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.wide)])
def test_a_model_with_too_few_outputs(mine: Path, tmp_path: Path, backend: str) -> None:
    known = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(mine)}
    wanted = ("--config-dir", str(mine / "conf"), "model=narrow", "dataset=squares", f"backend={backend}", *QUICK[:2])
    said = refused(tmp_path, *wanted, **known)
    assert said == "model: gives (N, 1); the dataset's task needs (N, 2)"


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        ("grey", "train.x has shape (200, 6, 6); its task says (N, 6, 6, 1); grey images have C = 1"),
        ("labels", "train.y: labels 1 to 2; 2 classes are 0 to 1; the task is Classification"),
    ],
)
def test_a_dataset_that_breaks_the_contract(mine: Path, tmp_path: Path, fault: str, result: str) -> None:
    known = {"PIPELINE_MODULES": "mine", "PYTHONPATH": str(mine)}
    wanted = ("--config-dir", str(mine / "conf"), "dataset=wrong", f"dataset.fault={fault}", *QUICK[:2])
    assert refused(tmp_path, *wanted, **known) == f"dataset=wrong: {result} (see pipeline.datasets.Data)"


@pytest.mark.wide
def test_no_config_can_extend_the_allow_list(mine: Path, tmp_path: Path) -> None:
    (mine / "planted.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    for key in ("model", "stage", "dataset", "tracking", "profiler", "device"):
        said = refused(tmp_path, f"{key}._target_=planted.Planted", PYTHONPATH=str(mine))
        assert said.startswith(f"{key}._target_=planted.Planted: not on the allow-list (pipeline); ")
    assert list(tmp_path.iterdir()) == []
