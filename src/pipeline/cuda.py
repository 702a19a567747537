"""CUDA as it is installed: versions read off the packages, since a receipt begins before a framework is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import Any

from pipeline.device import driver_version

# As NVIDIA publishes them: CUDA 12's have a suffix, CUDA 13's runtime has none.
PACKAGES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")


def versions(backend: Any) -> dict[str, str]:
    """CUDA, cuDNN and the driver, where the backend's framework as installed can use them; otherwise nothing."""
    if backend.no_gpu_because() is not None:
        return {}
    found = {"torch-cuda": of_torch()} if "torch" in backend.packages else {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # conda and system packages bring these libraries without saying so to Python
    return {**{name: version for name, version in found.items() if version}, "driver": driver_version() or "none"}


def of_torch() -> str | None:
    """The CUDA version that the installed torch was built for; None for a CPU build."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    match = re.search(r"^cuda\b.*= '([\d.]+)'", text, re.MULTILINE)
    return match[1] if match else None
