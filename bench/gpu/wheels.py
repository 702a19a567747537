"""python -m bench.gpu.wheels FOLDER: the wheels and datasets that `make gpu` needs on a machine without a network.

They are those of this environment (`make test` installs it), in the same versions, for another Python too, without
torch and Triton. `--there FILE`: the output of `pip freeze` or `pip list` there; what it names is left out.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.gpu.offline import requirements
from pipeline.datasets.mnist import Mnist
from pipeline.datasets.moby_dick import MobyDick
from pipeline.machine.cache_folder import cache_root

BROUGHT = ("torch", "triton")  # the machine's torch, and the Triton that came with it; what else did, `--there` says
LARGE = ("tensorflow",)  # hundreds of megabytes, and its wheel is of no use on a GPU without CUDA 12's packages
GLIBC = (5, 12, *range(17, 36))  # of manylinux_2_N: pip takes no range


def main(arguments: Sequence[str]) -> None:
    """Download what is missing there, and say what could not be had."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.wheels")
    parser.add_argument("folder", type=Path)
    here = ".".join(platform.python_version_tuple()[:2])
    parser.add_argument("--python", default=here, help="that machine's, such as 3.12")
    parser.add_argument("--there", type=Path, help="that machine's `pip freeze`: what it names is left out")
    parser.add_argument("--no-data", action="store_true", help="without Moby-Dick and MNIST")
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    core, others = requirements()
    wanted = [one for one in (*core, *others) if Requirement(one).name not in LARGE]
    there = named(asked.there.read_text()) if asked.there else set()
    lost = [name for name in closure(wanted, asked.python, there) if not fetched(name, asked.folder, asked.python)]
    if not asked.no_data:
        pack(asked.folder / "data")
    size = sum(path.stat().st_size for path in asked.folder.rglob("*") if path.is_file()) / 1e6
    print(f"{asked.folder}: {len(list(asked.folder.glob('*.whl')))} wheels; with the data {size:.0f} MB")
    if lost:
        sys.exit(f"error: no wheel for Python {asked.python} of {', '.join(lost)}")


def closure(wanted: Iterable[str], python: str, there: set[str]) -> list[str]:
    """Everything that the requirements come to in this environment, but what the machine has."""
    target: dict[str, str] = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}  # type: ignore[dict-item]
    found: list[str] = []
    waiting = [Requirement(one) for one in wanted]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name in found or name in there or name in BROUGHT:
            continue
        found.append(name)
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            extras = one.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({**target, "extra": extra}) for extra in extras):
                waiting.append(needed)
    return sorted(found)


def named(text: str) -> set[str]:
    """The distributions that a list of pip's names, one a line."""
    return {canonicalize_name(found[0]) for line in text.splitlines() if (found := re.match(r"[A-Za-z0-9_.-]+", line))}


def fetched(name: str, folder: Path, python: str) -> bool:
    """Whether the folder now holds a wheel of this environment's version, for another Python."""
    pin = f"{name}=={importlib.metadata.version(name)}"
    pip = [sys.executable, "-m", "pip"]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    kinds = [f"manylinux_2_{n}_{platform.machine()}" for n in GLIBC] + [f"manylinux2014_{platform.machine()}"]
    word = python.replace(".", "")
    tags = [word for kind in kinds for word in ("--platform", kind)]
    tags += [
        "--implementation",
        "cp",
        "--python-version",
        python,
        "--abi",
        f"cp{word}",
        "--abi",
        "abi3",
        "--abi",
        "none",
    ]
    download = [*pip, "download", *quiet, "--only-binary=:all:", *tags, "--dest", str(folder), pin]
    if subprocess.run(download, capture_output=True, check=False).returncode == 0:
        return True
    build = [*pip, "wheel", *quiet, "--wheel-dir", str(folder), pin]  # of a source that is Python alone
    before = set(folder.glob("*.whl"))
    if subprocess.run(build, capture_output=True, check=False).returncode:
        return False
    return all(path.name.endswith("-none-any.whl") for path in set(folder.glob("*.whl")) - before)


def pack(data: Path) -> None:
    """The files of the datasets that parts read, from the cache, gzipped; fetched first where they are missing."""
    for published in (MobyDick.published, Mnist.published):
        for file, content in zip(published.files, published.read(cache_root(None), None), strict=True):
            packed = data / published.name / f"{file.name}.gz"
            packed.parent.mkdir(parents=True, exist_ok=True)
            packed.write_bytes(gzip.compress(content.tobytes(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])
