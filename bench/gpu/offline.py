"""python -m bench.gpu.offline FOLDER VENV: install what `make gpu` needs from a folder of wheels, without a network.

The Python that runs this has CUDA's torch already, and perhaps JAX; it may belong to an environment itself. VENV gets
what is missing, sees the rest through a .pth file, and changes none of it. What no wheel is there for is named, and
left to the parts that need it. This module is the first to run, so it needs the standard library alone, and pip.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ((3, 11), (3, 12), (3, 13))
EXTRAS = ("jax", "tensorflow", "kernels", "tensorboard", "text", "deepxde")  # of those that a part or a test can use
TESTS = ("pytest>=9", "pytest-timeout>=2.4", "pytest-xdist>=3.8", "hypothesis>=6.150")
KEPT = ("torch", "jax", "jaxlib", "tensorflow", "triton", "numpy")  # what computes stays as it is
WITHOUT = ("mlflow", "optuna", "cmaes")  # tracking is off and nothing is searched
MISSING = re.compile(r"no wheel of ([A-Za-z0-9_.-]+) in ")
NAME = re.compile(r"[A-Za-z0-9_.-]+")


def main(folder: Path, where: Path) -> None:
    """Install, unpack the data, and say what is missing; exit status 2 where no run could start."""
    if sys.version_info[:2] not in PYTHONS:
        pythons = "Python 3.11, 3.12 or 3.13"
        sys.exit(f"error: {sys.executable}: {pythons} is needed; say make gpu PYTHON=python3.12 WHEELS={folder}")
    if not folder.is_dir():
        sys.exit(f"error: WHEELS={folder}: no such folder")
    python = environment(where)
    core, others = requirements()
    lacking = install(python, folder, core) | install(python, folder, others)
    unpack(folder / "data", Path(os.environ.get("PIPELINE_CACHE") or where / "cache"))
    for name, why in lacking.items():
        print(f"not installed: {name}, {why}", file=sys.stderr)
    needed = sorted(set(map(name_of, core)) & set(lacking))
    if needed:
        print(f"error: WHEELS={folder}: every run needs {', '.join(needed)}; docs/gpu.md", file=sys.stderr)
        sys.exit(2)


def environment(where: Path) -> Path:
    """The environment's Python. A new one sees this Python's packages, and the checkout as it is."""
    python = where / "bin" / "python"
    if not python.exists():
        venv.create(where, symlinks=True, with_pip=False)
        paths = {"base": str(where), "platbase": str(where)}
        packages = Path(sysconfig.get_path("purelib", "venv", paths))
        users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        # CUDA's Python packages look for its libraries in site.getsitepackages(), which goes by these prefixes.
        lines = [f"import site; site.PREFIXES.append({sys.prefix!r})"]
        lines += [f"import site; site.addsitedir({path!r})" for path in (*site.getsitepackages(), *users)]
        (packages / "machine.pth").write_text("\n".join([str(ROOT / "src"), *lines]) + "\n")
    return python


def requirements() -> tuple[list[str], list[str]]:
    """What every run needs, and what some need: pyproject.toml's, without torch, which the machine has."""
    import tomllib  # which an older Python lacks

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = [one for one in project["dependencies"] if name_of(one) not in (*WITHOUT, "torch")]
    extras = project["optional-dependencies"]
    others = [one for extra in EXTRAS for one in extras[extra] if not one.startswith("pipeline[")]
    return core, list(dict.fromkeys([*others, *TESTS]))


def install(python: Path, folder: Path, wanted: Sequence[str]) -> dict[str, str]:
    """Install what is missing of `wanted`; of what cannot be, by name, why not."""
    lacking: dict[str, str] = {}
    left = list(wanted)
    while left and (why := _pip(python, folder, left)) is not None:
        missing = MISSING.search(why)
        without = [one for one in left if missing is None or name_of(one) != missing[1].lower()]
        if len(without) == len(left):  # something that one of them needs: which, only each alone can say
            reasons = {name_of(one): _pip(python, folder, [one]) for one in left}
            return lacking | {name: alone for name, alone in reasons.items() if alone is not None}
        lacking |= {name_of(one): why for one in left if one not in without}
        left = without
    return lacking


def _pip(python: Path, folder: Path, wanted: Sequence[str]) -> str | None:
    """One call of pip; None where it installed everything, else why it did not."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as kept:
        kept.writelines(f"{name}=={version}\n" for name in KEPT if (version := _version(name)))
        kept.flush()
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
        command += ["--disable-pip-version-check", "--no-compile", "--find-links", str(folder)]
        command += ["--constraint", kept.name, *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    missing = re.search(r"No matching distribution found for ([A-Za-z0-9_.-]+)", done.stderr)
    if missing:
        return f"no wheel of {missing[1].rstrip('.')} in {folder}"
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    return lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with {done.returncode}"


def unpack(data: Path, cache: Path) -> None:
    """Datasets that came with the wheels: `<name>/<file>.gz` into the cache, where their hashes are verified."""
    for packed in sorted(data.glob("*/*.gz")):
        target = cache / packed.parent.name / packed.stem
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f"{target.name}.tmp")
            with gzip.open(packed) as source, part.open("wb") as file:
                shutil.copyfileobj(source, file)
            part.replace(target)


def name_of(requirement: str) -> str:
    """The distribution that a requirement is for."""
    found = NAME.match(requirement)
    assert found is not None, requirement
    return found[0].lower()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m bench.gpu.offline FOLDER VENV")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
