"""A recipe beside another stage than its own: what the stage has chosen in its place, so that the recipe's keys do not
fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from pipeline.cli.conf_path import conf_path
from pipeline.errors import UserError
from pipeline.spec import group_of


def with_choices_to_add(error: Exception, overrides: Sequence[str], groups: Collection[str]) -> Exception:
    """The error, with the recipe's choices that the command should have named, where it is about a key of theirs."""
    given = {key: value for key, _, value in (one.partition("=") for one in overrides)}
    recipe, stage = given.get("experiment"), given.get("stage")
    if not (isinstance(error, UserError) and recipe and stage):
        return error
    try:
        alone, beside = _chosen([f"experiment={recipe}"]), _chosen([f"experiment={recipe}", f"stage={stage}"])
    except (HydraException, OmegaConfBaseException):
        return error
    lost = [group for group in groups if group not in {*given, "stage"} and alone[group] != beside[group]]
    if group_of(str(error).partition("=")[0]) not in lost:
        return error
    add = " ".join(f"{group}={alone[group]}" for group in lost)
    picked = " ".join(f"{group}={beside[group]}" for group in lost)
    return UserError(
        f"{error}; stage={stage} chose {picked}, and the keys of experiment={recipe} are for {add}: add these"
    )


def _chosen(overrides: Sequence[str]) -> Mapping[str, str]:
    """What is chosen in each group. Raises HydraException for what cannot be composed."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_path()), version_base="1.3"):
        found: Mapping[str, str] = compose("config", list(overrides), return_hydra_config=True).hydra.runtime.choices
        return found
