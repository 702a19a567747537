"""CUDA as it is installed: versions read off the packages, since a receipt begins before a framework is imported."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pipeline.contracts import Backend
from pipeline.machine.device import driver_version
from pipeline.machine.installed import installed_version

# NVIDIA's libraries that compute, or that choose and compile what computes. As they are published: CUDA 12's packages
# have a suffix; of CUDA 13's some have one.
LIBRARIES = ("cuda-runtime", "cudnn", "cublas", "cufft", "curand", "cusolver", "cusparse", "cuda-nvrtc", "cuda-nvcc")
PACKAGES = (
    *(f"nvidia-{library}{suffix}" for library in LIBRARIES for suffix in ("", "-cu12", "-cu13")),
    *(f"jax-cuda{major}-{part}" for major in (12, 13) for part in ("plugin", "pjrt")),
    "triton",
)


@cache
def versions(backend: Backend) -> Mapping[str, str]:
    """CUDA's libraries and the driver, where the backend's framework as installed can use them; otherwise nothing.

    Kept: a grid asks once a cell, and each answer is a file to read.
    """
    if backend.no_gpu_because() is not None:
        return {}
    found = {"torch-cuda": from_torch()} if "torch" in backend.packages else {}
    found |= {name: installed_version(name) for name in PACKAGES}
    return {**{name: version for name, version in found.items() if version}, "driver": driver_version() or "none"}


def is_cuda(name: str) -> bool:
    """Whether a version of that name is one of `versions`: it decides nothing on a CPU."""
    return name in PACKAGES or name in ("torch-cuda", "driver")


def from_torch() -> str | None:
    """The CUDA version that the installed torch was built for; None for a CPU build, "" where its files do not say."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).with_name("version.py")
    match = re.search(r"^cuda\b.*= (.+)$", file.read_text(encoding="utf-8") if file.exists() else "", re.MULTILINE)
    if match is None:
        return ""
    return None if match[1] == "None" else match[1].strip("'\"")
