"""The processor, as far as it decides the last bits of a result.

Libraries (oneDNN, MKL, OpenBLAS, XLA, NumPy) choose their code by the processor's maker, family and model and by its
vector instructions, and split sums by the size of its caches and the number of cores. Two machines of one name, rented
as "AMD EPYC", may differ in all of these.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
# Our name -> those of x86 and of Arm in /proc/cpuinfo.
FIELDS = {
    "vendor": ("vendor_id", "CPU implementer"),
    "family": ("cpu family", "CPU architecture"),
    "model": ("model", "CPU part"),
    "stepping": ("stepping", "CPU revision"),
    "cache": ("cache size",),
}
FLAGS = ("flags", "Features")
VECTOR = re.compile(r"s?sse|pni$|avx|fma|f16c|amx|asimd|sve|sme(?!p)|fphp|bf16|i8mm|fcma")


def cpu() -> dict[str, Any]:
    """The processor: its name, the cores that this process may use, and the fields of `described`."""
    return {"name": cpu_name(), "cores": len(os.sched_getaffinity(0)), **_described()}


def cpu_name() -> str:
    """The processor's model name."""
    return _first().get("model name") or platform.processor() or platform.machine()


def described(first: Mapping[str, str]) -> dict[str, Any]:
    """What libraries choose by, of a processor's entry in /proc/cpuinfo; what that does not say is left out."""
    found: dict[str, Any] = {
        ours: first[name] for ours, names in FIELDS.items() for name in names if first.get(name) is not None
    }
    flags = next((first[name] for name in FLAGS if name in first), "").split()
    return found | {"vector": " ".join(sorted(flag for flag in flags if VECTOR.match(flag)))}


def entry(text: str) -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    lines = text.strip().split("\n\n", 1)[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def lacks_bfloat16() -> bool:
    """Whether the processor has no instructions for bfloat16; False where the system does not list them."""
    flags = cpu()["vector"]
    return bool(flags) and "bf16" not in flags


def libc() -> str:
    """The C library, whose exp and sin differ in the last bit from version to version."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or platform.libc_ver()[0] or "unknown"
    except (OSError, ValueError):  # not glibc
        return "not glibc"


@cache
def _described() -> dict[str, Any]:
    return described(_first())


@cache
def _first() -> dict[str, str]:
    try:
        return entry(CPUINFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}
