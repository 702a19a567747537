"""A recipe beside another choice than its own (a model, or a stage, which chooses more by itself): the recipe's keys do
not fit, and the user has not typed them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.cli.conf_path import conf_path
from pipeline.errors import UserError
from pipeline.spec import group_of


def with_choices_to_add(error: Exception, overrides: Sequence[str], groups: Collection[str]) -> Exception:
    """The error, with the recipe's choices that the command should have named, where it is about a key of theirs."""
    given = {key.lstrip("+"): value for key, _, value in (one.partition("=") for one in overrides)}
    recipe, stage = given.get("experiment"), given.get("stage")
    about = str(error).partition("=")[0].partition(":")[0]
    if not (isinstance(error, UserError) and recipe) or about in given:  # what the user wrote is wrong by itself
        return error
    group = group_of(about)
    if stage is None and group not in given:
        return error
    try:
        alone = _composed([f"experiment={recipe}"]).choices
        of_another = group in given and given[group] != alone[group]
        if of_another and _sets(recipe, about, f"{group}={given[group]}"):
            return UserError(
                f"experiment={recipe} with {group}={given[group]}: the recipe sets {about} for its own "
                f"{group}={alone[group]}; leave out experiment or {group}, and set what else you want of the recipe "
                f"by hand ({error})"
            )
        if stage is None:
            return error
        beside = _composed([f"experiment={recipe}", f"stage={stage}"]).choices
    except (HydraException, OmegaConfBaseException):
        return error
    lost = [one for one in groups if one not in {*given, "stage"} and alone[one] != beside[one]]
    if group not in lost:
        return error
    add = " ".join(f"{one}={alone[one]}" for one in lost)
    picked = " ".join(f"{one}={beside[one]}" for one in lost)
    return UserError(
        f"experiment={recipe} with stage={stage}: the recipe's keys are for {add}, but stage={stage} chooses {picked}; "
        f"add {add} ({error})"
    )


def _sets(recipe: str, key: str, chosen: str) -> bool:
    """Whether the recipe gives the key another value than the choice does by itself."""
    beside, alone = (_composed(words).config for words in ([f"experiment={recipe}", chosen], [chosen]))
    return bool(OmegaConf.select(beside, key) != OmegaConf.select(alone, key))


class _Composed(NamedTuple):
    config: DictConfig
    choices: Mapping[str, str]  # what is chosen in each group


def _composed(overrides: Sequence[str]) -> _Composed:
    """The config of these words. Raises HydraException for what cannot be composed."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_path()), version_base="1.3"):
        config = compose("config", list(overrides), return_hydra_config=True)
        return _Composed(config, config.hydra.runtime.choices)
