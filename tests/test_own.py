"""Any torch.nn.Module and any keras.Model trains, is saved, read back and gives the same; what cannot is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import TORCH_THEN_WIDE, done, refused, write_files
from own_nets import ChannelsFirst

from pipeline.errors import UserError
from pipeline.models import Shapes, takes_channels_first
from pipeline.runs.result import metrics_of

HERE = Path(__file__).parent
QUICK = ("dataset=digits", "dataset.train_size=320", "training.epochs=1", "tracking=none")
NAMES = {
    "torch": {
        "place": (8, 16),
        "scale": (),
        "steps": (8,),
        "enter.weight": (16, 32),  # its layer has a parameter with the common name, kernel
        "enter.kernel": (1,),
        "blocks.1.attend.in_proj_weight": (48, 16),
        "blocks.1.attend.out_proj.kernel": (16, 16),
        "blocks.1.mlp.up.parametrizations.weight.original1": (32, 16),
        "lstm.weight_hh_l1_reverse": (32, 8),
        "lazy.kernel": (3, 12),
        "heads.0": (12, 10),
    },
    "keras": {
        "place": (8, 16),
        "bare": (),
        "block_1.multi_head_attention_1.query.kernel": (16, 2, 8),
        "one.kernel": (8, 12),
    },
}


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder: a module, and a choice for each of its models."""
    folder = tmp_path_factory.mktemp("mine")
    write_files(folder, {"own_nets.py": (HERE / "own_nets.py").read_text()})
    for name in ("Anything", "Tcn", "Liquid", "ChannelsFirst"):
        write_files(folder, {f"conf/model/{name.lower()}.yaml": f"_target_: own_nets.{name}\n"})
    write_files(folder, {"conf/model/wrong.yaml": "_target_: own_nets.Wrong\nhow: pair\n"})
    return folder


def allowed(mine: Path) -> dict[str, str]:
    return {"PIPELINE_MODULES": "own_nets", "PYTHONPATH": str(mine)}


def trained_and_evaluated(mine: Path, folder: Path, *choices: str) -> Path:
    """The run, whose metrics its saved weights give again."""
    run = done(folder, "--config-dir", str(mine / "conf"), *QUICK, *choices, **allowed(mine))
    again = done(folder, "stage=evaluate", f"run={run.name}", "tracking=none", **allowed(mine))
    then, now = ({name: one.value for name, one in metrics_of(each).items()} for each in (run, again))
    assert {name: then[name] for name in ("test/loss", "test/accuracy")} == {
        name: now[name] for name in ("test/loss", "test/accuracy")
    }
    return run


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_any_model_trains_and_is_read_back(mine: Path, tmp_path: Path, backend: str) -> None:
    run = trained_and_evaluated(mine, tmp_path, "model=anything", f"backend={backend}")
    with np.load(run / "artifacts/model/weights.npz") as kept:
        shapes = {name: array.shape for name, array in kept.items()}
    wanted = NAMES["torch" if backend == "torch" else "keras"]
    assert {name: shapes.get(name) for name in wanted} == wanted
    started = json.loads((run / "receipt.json").read_text())["initial_weights"]
    assert (started["shared"], started["own"]) == ([], list(shapes))


@pytest.mark.parametrize(
    ("model", "package", "backend"),
    [
        ("tcn", "pytorch_tcn", "torch"),
        pytest.param("liquid", "ncps", "torch", marks=pytest.mark.wide),
        pytest.param("liquid", "ncps", "jax", marks=pytest.mark.wide),
    ],
)
def test_models_of_public_packages_train(mine: Path, tmp_path: Path, model: str, package: str, backend: str) -> None:
    pytest.importorskip(package)
    trained_and_evaluated(mine, tmp_path, f"model={model}", f"backend={backend}")


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_module_takes_channels_first(mine: Path, tmp_path: Path, backend: str) -> None:
    trained_and_evaluated(mine, tmp_path, "model=channelsfirst", f"backend={backend}")


WRONG = {
    (
        "torch",
        "first",
    ): "model: fails on a batch of shape (1, 8, 8, 1), but takes (1, 1, 8, 8): images are (N, H, W, C) "
    'here; write layout: ClassVar = "channels_first" in its class',
    ("torch", "narrow"): "model: fails on a batch of shape (1, 8, 8, 1): RuntimeError: mat1 and mat2 shapes cannot be "
    "multiplied (64x1 and 3x10)",
    ("torch", "lightning"): "model: LightningModule is a LightningModule, and this stage would never call its "
    "training_step; use stage=lightning, or give the module that it trains",
    ("torch", "pair"): "model: gives a tuple; give one tensor",
    ("torch", "none"): "model: torch() gives a NoneType; give a torch.nn.Module",
    ("jax", "compiled"): "model: sequential is compiled, and this stage uses the loss and the optimizer of the config; "
    "give it uncompiled, or use stage=keras",
    ("jax", "pair"): "model: gives a tuple; give one tensor",
    ("jax", "none"): "model: keras() gives a NoneType; give a keras.Model",
}


@pytest.mark.parametrize(("backend", "how"), WRONG)
def test_what_cannot_be_trained_is_refused_before_the_run(mine: Path, tmp_path: Path, backend: str, how: str) -> None:
    named = ("--config-dir", str(mine / "conf"), "model=wrong", f"model.how={how}", f"backend={backend}")
    assert refused(tmp_path, *QUICK, *named, **allowed(mine)) == WRONG[backend, how]


def test_channels_first_is_of_images() -> None:
    with pytest.raises(UserError) as caught:
        takes_channels_first(ChannelsFirst(), Shapes((5,), (2,)))
    assert str(caught.value) == (
        "model: layout=channels_first takes images (height, width, channels); "
        "the examples of this dataset have shape (5,)"
    )
