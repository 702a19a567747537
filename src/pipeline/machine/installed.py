"""What an experiment needs beyond the core installation, and the command that installs it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from pipeline.errors import Impossible

# Extras of pyproject.toml and the distributions that they add for our own specs; tests/test_installed.py compares them.
EXTRAS: dict[str, tuple[str, ...]] = {
    "tensorflow": ("tensorflow", "keras"),
    "jax": ("jax", "keras"),
    "deepxde": ("deepxde",),
    "physics": ("flax", "tensorflow-probability", "tf_keras"),
    "tensorboard": ("tensorboard",),
    "export": ("safetensors", "onnx", "onnxscript", "onnxruntime"),
    "huggingface": ("datasets",),
    "text": ("tokenizers",),
    "study": ("dvc", "ruamel.yaml"),
    "kernels": (
        *("cuda-bindings", "nvidia-cuda-cccl", "nvidia-cuda-crt"),
        *("nvidia-cuda-nvdisasm", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"),
    ),
    "triton": ("triton",),
    "slurm": ("submitit",),
    "ray": ("ray",),
}


def check_installed(needed: Mapping[str, Iterable[str]]) -> None:
    """Refuse what needs a distribution that is missing; `needed`: `group=choice` and its distributions.

    Imports nothing. Raises Impossible, so that a grid skips such a cell.
    """
    lacking = {what: [name for name in names if not is_installed(name)] for what, names in needed.items()}
    lacking = {what: names for what, names in lacking.items() if names}
    if lacking:
        missing = tuple(dict.fromkeys(name for names in lacking.values() for name in names))
        extras = dict.fromkeys(extra for what in lacking for extra in _extras(tuple(needed[what]), lacking[what]))
        raise Impossible(f"{' with '.join(lacking)}: {not_installed(missing, tuple(extras))}")


def not_installed(missing: tuple[str, ...], extras: tuple[str, ...]) -> str:
    """The end of a message: what is missing and the command that installs it."""
    names = missing[0] if len(missing) == 1 else f"{', '.join(missing[:-1])} and {missing[-1]}"
    return f"{names} {'is' if len(missing) == 1 else 'are'} not installed; {install(missing, extras)}"


def install(missing: tuple[str, ...], extras: tuple[str, ...]) -> str:
    """The command that installs the extras (or, where they are not ours, the distributions) for this Python."""
    pip = f"{os.path.relpath(sys.executable) if _below(Path.cwd()) else sys.executable} -m pip install"
    if not extras:
        return f"{pip} {' '.join(missing)}"
    checkout = Path(__file__).parents[3]
    wanted = f"[{','.join(extras)}]"
    if not (checkout / "constraints.txt").is_file():
        return f"{pip} 'pipeline{wanted}'"
    return f"{pip} -c {os.path.relpath(checkout / 'constraints.txt')} -e '{os.path.relpath(checkout)}{wanted}'"


@cache  # a grid asks for the same ones for each of its cells
def is_installed(distribution: str) -> bool:
    """Whether a distribution, or a module of its name, is there. The module alone counts: `tensorflow-cpu` has it."""
    try:
        if importlib.util.find_spec(distribution.replace("-", "_")) is not None:
            return True
    except (ModuleNotFoundError, ValueError):  # `ruamel.yaml` without `ruamel`
        pass
    return installed_version(distribution) is not None


def installed_version(distribution: str) -> str | None:
    """None where it is not there, or comes from conda or the system, which need not say so to Python."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extras(needed: tuple[str, ...], missing: list[str]) -> list[str]:
    """The extra that holds all that is needed, else one for each distribution that is missing."""
    for extra, names in EXTRAS.items():
        if set(needed) <= set(names):
            return [extra]
    return [next(extra for extra, names in EXTRAS.items() if name in names) for name in missing if _known(name)]


def _known(name: str) -> bool:
    return any(name in names for names in EXTRAS.values())


def _below(folder: Path) -> bool:
    return Path(sys.executable).is_relative_to(folder)
