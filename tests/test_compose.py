"""The configs of a grid's cells are those that Hydra composes, however they are put together."""

from __future__ import annotations

import re
from pathlib import Path

import hypothesis.strategies as st
import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from hypothesis import given, settings
from omegaconf import OmegaConf, flag_override

from pipeline.cli.conf_path import conf_path
from pipeline.cli.interpolation import resolved
from pipeline.errors import UserError
from pipeline.sweep.compose import Composer

WORDS = (
    *(
        "seed=3",
        "training.epochs=2",
        "optimizer=sgd",
        "optimizer.learning_rate=1e-3",
        "model=mlp",
        "name=one",
        "name=null",
    ),
    *("'name=a b'", "name=1", "name=1.0", "dataset.normalise=true", "training.metrics=[macro_f1]", "+model.frozen=1"),
    *("seed=${training.epochs}", "name=${oc.env:HOME}", "name='$'", "training.checkpoint={every: 3}"),
    *("training.checkpoint.every=3", "training.checkpoint=7", "~training.epochs", "name=???", "run=latest", "seed=1.5"),
)


@given(words=st.lists(st.sampled_from(WORDS), max_size=5, unique_by=lambda word: word.partition("=")[0]))
@settings(max_examples=12)
def test_a_cell_is_composed_as_by_hydra(words: list[str]) -> None:
    words = [word.strip("'") if word.startswith("'") else word for word in words]
    with initialize_config_dir(str(conf_path()), version_base="1.3", job_name="pipeline"):
        try:
            config = compose("config", words)
            with flag_override(config, ["struct", "readonly"], [False, False]):
                config.pop("hydra", None)
            expected = resolved(config)
        except Exception as error:
            with pytest.raises((type(error), UserError)):
                composer().config(words)
        else:
            found = composer().config(words)
            assert found == expected
            assert repr(found) == repr(expected)  # 1 is 1.0 and true, but not here


def test_a_value_alone_is_put_in_its_place() -> None:
    with initialize_config_dir(str(conf_path()), version_base="1.3", job_name="pipeline"):
        made = composer()
        first, second = (made.config([f"seed={seed}"]) for seed in (1, 2))
        assert made._base(()).plain is not None  # else each cell takes ten times as long
    assert (first["seed"], second["seed"]) == (1, 2)
    assert {**first, "seed": 2} == second


def test_the_page_names_every_optimizer_with_its_keys_and_defaults() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "training.md").read_text()
    table = page.partition("## Optimizers\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|.*?\| (.*) \|$", table, re.MULTILINE))
    said = {name: dict(re.findall(r"`(\w+)=([^`]*)`", row)) for name, row in rows.items()}
    for name, row in rows.items():
        if found := re.search(r"; else as `(\w+)`$", row):
            said[name] = said[found[1]] | said[name]
    assert set(said) == {path.stem for path in (conf_path() / "optimizer").glob("*.yaml")}
    with initialize_config_dir(str(conf_path()), version_base="1.3", job_name="pipeline"):
        for name, keys in said.items():
            optimizer = OmegaConf.to_container(compose("config", [f"optimizer={name}"]).optimizer)
            assert isinstance(optimizer, dict)
            del optimizer["_target_"]
            assert {key: yaml.safe_load(value.replace("e-", ".0e-")) for key, value in keys.items()} == optimizer, name


def composer() -> Composer:
    """With Hydra's loader, as it runs a grid."""
    loader = GlobalHydra.instance().config_loader()
    return Composer(loader, loader.load_configuration("config", [], RunMode.MULTIRUN))
