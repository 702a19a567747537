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
    given = {key.lstrip("+"): value for key, _, value in (one.partition("=") for one in overrides)}
    recipe, stage = given.get("experiment"), given.get("stage")
    about = str(error).partition("=")[0].partition(":")[0]
    if not (isinstance(error, UserError) and recipe and stage):
        return error
    if about in given:  # what the user wrote is wrong by itself
        return error
    try:
        alone, beside = _chosen([f"experiment={recipe}"]), _chosen([f"experiment={recipe}", f"stage={stage}"])
    except (HydraException, OmegaConfBaseException):
        return error
    if group_of(about) == "stage" and alone["stage"] != beside["stage"]:
        return UserError(
            f"experiment={recipe} with stage={stage}: the recipe sets {about} for its own stage={alone['stage']}; "
            f"leave out experiment or stage, and set what else you want of the recipe by hand ({error})"
        )
    lost = [group for group in groups if group not in {*given, "stage"} and alone[group] != beside[group]]
    if group_of(about) not in lost:
        return error
    add = " ".join(f"{group}={alone[group]}" for group in lost)
    picked = " ".join(f"{group}={beside[group]}" for group in lost)
    return UserError(
        f"experiment={recipe} with stage={stage}: the recipe's keys are for {add}, but stage={stage} chooses {picked}; "
        f"add {add} ({error})"
    )


def _chosen(overrides: Sequence[str]) -> Mapping[str, str]:
    """What is chosen in each group. Raises HydraException for what cannot be composed."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_path()), version_base="1.3"):
        found: Mapping[str, str] = compose("config", list(overrides), return_hydra_config=True).hydra.runtime.choices
        return found
