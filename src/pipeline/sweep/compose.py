"""Composing many cells. Hydra takes 30 ms for a config; cells that choose the same groups share that work."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from pipeline.cli.composing_errors import explained
from pipeline.cli.conf_path import conf_path
from pipeline.cli.for_hydra import canonical_device
from pipeline.cli.interpolation import resolved
from pipeline.cli.overrides import keys_of
from pipeline.cli.streams import say
from pipeline.errors import UserError
from pipeline.experiment import GROUPS
from pipeline.kernels.named import with_own
from pipeline.runs.lookup import find_run
from pipeline.runs.start import Find

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.sweep.history import Ask

PLAIN = (bool, int, float, str)  # values that are the same in the config as in the override


class Composer:
    """Gives the resolved config of a cell, as plain data, from its overrides.

    `ask`: which kind of device a cluster's node gives a cell (history.Ask); None where cells run on this machine.
    `find`: the run that a name means, looked up once for all cells: one that ends meanwhile is not their `latest`.
    `latest`: the runs that it has found for that name.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig, ask: Ask | None = None) -> None:
        self.loader, self.master, self.ask = loader, master, ask
        self.parser = OverridesParser.create(config_loader=loader)
        self.groups = set(loader.list_groups(""))
        self.bases: dict[tuple[str, ...], Base] = {}
        self.known: dict[str, Override] = {}
        self.find: Find = cache(self._found)
        self.latest: set[str] = set()

    def say_latest(self, console: Console) -> None:
        """Which run `latest` is: where the command is given again, its own cells are later ones."""
        for name in sorted(self.latest):
            say(console, f"latest is {name}")

    def _found(self, root: Path, reference: str, holding: str) -> Path:
        found = find_run(root, reference, holding)
        if reference == "latest":
            self.latest.add(found.name)
        return found

    def config(self, overrides: Sequence[str]) -> dict[str, Any]:
        """As Hydra composes it: the choices first, then the values over them. Raises Hydra's errors."""
        return with_own(self._composed(overrides))

    def _composed(self, overrides: Sequence[str]) -> dict[str, Any]:
        parsed = self._parsed(overrides)
        choices = [override for override in parsed if self._is_choice(override)]
        values = [override for override in parsed if not self._is_choice(override)]
        base = self._base(tuple(str(override.input_line) for override in choices))
        if base.plain is not None:
            config: dict[str, Any] = pickle.loads(base.plain)
            if all(_set(config, override) for override in values):
                return config
        composed = pickle.loads(base.composed)
        ConfigLoaderImpl._apply_overrides_to_config(values, composed)
        return resolved(composed)

    def keys(self, overrides: Sequence[str]) -> list[str]:
        """The keys that `overrides` set."""
        return [override.key_or_group for override in self._parsed(overrides)]

    def _parsed(self, overrides: Sequence[str]) -> list[Override]:
        """The overrides as Hydra understands them; a text that stands in many cells is parsed once."""
        for text in overrides:
            if text not in self.known:
                (self.known[text],) = self.parser.parse_overrides([text])
        return [self.known[text] for text in overrides]

    def _is_choice(self, override: Override) -> bool:
        return override.key_or_group in self.groups or override.package is not None

    def _base(self, choices: tuple[str, ...]) -> Base:
        """The composed config of these choices, remembered as bytes."""
        if choices not in self.bases:
            config = self.loader.load_sweep_config(self.master, list(choices))
            with flag_override(config, ["struct", "readonly"], [False, False]):
                del config["hydra"]
            plain = OmegaConf.to_container(config, resolve=False)
            self.bases[choices] = Base(pickle.dumps(config), None if _is_open(plain) else pickle.dumps(plain))
        return self.bases[choices]


@dataclass(frozen=True)
class Base:
    """A config, pickled: a cell changes its own copy, and copy.deepcopy takes twice as long.

    `plain`: as plain data, which takes a value in a tenth of the time; None where something in it is resolved later.
    """

    composed: bytes
    plain: bytes | None


def _is_open(value: object) -> bool:
    """Whether a config has a value that is missing, or that other values decide."""
    if isinstance(value, str):
        return "${" in value or value == "???"
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_is_open, inside))


def _set(config: dict[str, Any], override: Override) -> bool:
    """Give a value to a key that has one; False, and nothing is changed, where Hydra has more to do than that."""
    *path, last = override.key_or_group.split(".")
    node: Any = config
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    value = None if override.is_sweep_override() else override.value()
    known = isinstance(node, dict) and last in node and not isinstance(node[last], dict | list)
    if override.type is not OverrideType.CHANGE or not known or type(value) not in PLAIN or _is_open(value):
        return False
    node[last] = value
    return True


def overridden(config: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """A resolved config, as plain data, with overrides as on the command line; and the keys that they set.

    A choice replaces its whole group by what the choice's file says. Raises UserError.
    """
    words = [canonical_device(text) for text in overrides]
    keys = keys_of(words, GROUPS, grid=False)
    try:
        parsed = OverridesParser.create().parse_overrides(words)
        strange = [text for text, one in zip(words, parsed, strict=True) if one.is_add() or one.is_delete()]
        if strange:
            raise UserError(f"{strange[0]}: a cell takes key=value and group=choice")
        changed = OmegaConf.create(config)
        for one in parsed:
            if one.key_or_group in GROUPS:
                changed[one.key_or_group] = _chosen(one.key_or_group, str(one.input_line))
        OmegaConf.set_struct(changed, True)
        ConfigLoaderImpl._apply_overrides_to_config([one for one in parsed if one.key_or_group not in GROUPS], changed)
        plain = resolved(changed)
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error, words) from error
    return plain, keys


@cache
def _chosen(group: str, line: str) -> dict[str, Any]:
    """What the choice `line` makes of its group."""
    # How a grid would be run is of no concern here, and our plugins for that need not be known to Hydra.
    lines = ["hydra/sweeper=basic", "hydra/launcher=basic", line]
    with _loader() as loader:
        whole = loader.load_configuration("config", lines, RunMode.RUN)
    return resolved(whole[group])


@contextlib.contextmanager
def _loader() -> Iterator[ConfigLoader]:
    """Hydra's own where it runs the command, which knows of --config-dir; else (a cell, the study) one for a while."""
    hydra = GlobalHydra.instance()
    if hydra.is_initialized():
        yield hydra.config_loader()
        return
    with initialize_config_dir(str(conf_path()), version_base="1.3", job_name="pipeline"):
        yield GlobalHydra.instance().config_loader()
