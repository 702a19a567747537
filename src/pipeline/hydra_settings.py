"""Hydra's own part of a config. It could call anything (callbacks, handlers of a log, launchers) and change the
environment, so it is held against a short list before Hydra makes an object of it.

What the list leaves: who runs the cells of a grid (`hydra/launcher`, `hydra/sweeper` and their settings, with -m), and
where else choices lie (`hydra.searchpath`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.hydra import Hydra
from hydra._internal.sources_registry import SourcesRegistry
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipeline.allowed import ALLOW_VARIABLE, allowed_modules
from pipeline.cli.conf_path import check_own
from pipeline.cli.overrides import OF_GRIDS
from pipeline.errors import UserError, cut, shown
from pipeline.machine.collector import uncollected
from pipeline.sweep.hydra_plugins import MODULE, PLUGINS

# Settings that have to be as conf/config.yaml has them, and what to use instead.
FIXED: dict[str, tuple[Any, str]] = {
    "run.dir": (".", "output_dir says where runs lie"),
    "sweep.dir": (".", "output_dir says where runs lie"),
    "output_subdir": (None, "a run's folder has its config already"),
    "job.chdir": (False, "a command stays in its folder"),
    "job.env_set": ({}, "set the variable in the shell"),
    "callbacks": ({}, "nothing but the pipeline is called"),
    "verbose": (False, "PIPELINE_TRACEBACK=1 shows where an error message comes from"),
}
NOT_AVAILABLE = "provider=.* is not available"  # what Hydra says of a folder of the search path that is not there
LOGGING = ("job_logging", "hydra_logging")
NO_LOGGING = {"version": 1, "root": None, "disable_existing_loggers": False}


def check_composed(hydra: DictConfig) -> None:
    """Refuse what a file of the configuration sets in Hydra's own part. Raises UserError."""
    for key, (usual, instead) in FIXED.items():
        value = _plain(OmegaConf.select(hydra, key))
        if value != usual and not (key == "job.chdir" and value is None):
            raise UserError(f"hydra.{key}={cut(shown(value))}: cannot be set; {instead}")
    for key in LOGGING:
        if _plain(hydra[key]) != NO_LOGGING:
            raise UserError(
                f"hydra.{key}: cannot be set; choose `override hydra/{key}: none`, as conf/config.yaml does"
            )
    for key in OF_GRIDS:
        # Resolved, since an interpolation may lead to a mapping with a `_target_`.
        node = hydra[key]
        _check_plugin(key, OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node)


def _check_plugin(key: str, node: Any) -> None:
    """A launcher or a sweeper has to be one of ours; Hydra would call whatever a `_target_` further inside names."""
    ours = [f"{MODULE}.{plugin.__name__}" for plugin in PLUGINS if plugin.__name__.lower().endswith(key)]
    target = node.get("_target_") if isinstance(node, Mapping) else node
    if target not in ours:
        names = ("workers", "submitit_local", "submitit_slurm", "ray") if key == "launcher" else ("basic", "optuna")
        raise UserError(
            f"hydra.{key}._target_={cut(shown(target))}: not a {key} of the pipeline; choose {_list(key, names)}"
        )
    for name, value in node.items():
        if name != "_target_" and (str(name).startswith("_") or _calls(value)):
            raise UserError(f"hydra.{key}.{cut(name)}: settings are values; none has a key that begins with _")
        if name in ("parameters", "params") and not isinstance(value, Mapping | None):
            raise UserError(f"hydra.{key}.{name}={cut(shown(value))}: should be a mapping")


def _list(key: str, names: tuple[str, ...]) -> str:
    return ", ".join(f"hydra/{key}={name}" for name in names)


def _calls(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(str(name).startswith("_") or _calls(item) for name, item in value.items())
    return isinstance(value, list) and any(map(_calls, value))


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node


class Packages(ImportlibResourcesConfigSource):
    """`pkg://<package>` in Hydra's search path, which imports the package: Hydra's own, and what the user allows."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider=provider, path=path)
        top = self.path.partition(".")[0]
        if top not in ("hydra", *(name.partition(".")[0] for name in allowed_modules())):
            raise UserError(
                f"pkg://{cut(self.path)}: not on the allow-list ({', '.join(allowed_modules())}); "
                f"to allow a package of yours set {ALLOW_VARIABLE}=<package>, or write file://<folder>"
            )


@contextmanager
def hydra_kept_in_bounds(explained: Callable[[Exception], UserError]) -> Iterator[None]:
    """Hydra composes once, logs nothing, and what it composed is checked before anything in it is called.

    Left to itself it composes everything once more beforehand, to look for a mode in the config; here only -m decides.
    What fails while it composes is the config's fault, whatever it raises; `explained` says it in a message.
    """
    mode, compose = Hydra.get_mode, Hydra.compose_config

    def checked(self: Hydra, *arguments: Any, with_log_configuration: bool = False, **settings: Any) -> DictConfig:
        try:
            with warnings.catch_warnings(), uncollected():
                warnings.filterwarnings("error", NOT_AVAILABLE)
                config = compose(self, *arguments, **settings)
        except (UserError, HydraException, OmegaConfBaseException, YAMLError):
            raise
        except UserWarning as warning:
            path = str(warning).rpartition("path=")[2].partition(" ")[0]
            raise UserError(f"hydra.searchpath: {cut(path)} is not there; write file://<folder>") from warning
        except Exception as error:  # an assertion or a TypeError of Hydra's, of a choice that is a list, say
            raise explained(error) from error
        check_composed(config.hydra)
        for source in config.hydra.runtime.config_sources:
            if source.provider.startswith("hydra.searchpath"):
                folder = files(source.path) if source.schema == "pkg" else source.path
                check_own(Path(str(folder)), f"hydra.searchpath: {source.schema}://{source.path}")
        return config

    SourcesRegistry.instance().types["pkg"] = Packages
    Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]
    Hydra.compose_config = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.get_mode, Hydra.compose_config = mode, compose  # type: ignore[method-assign]
