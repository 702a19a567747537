"""Whether an installed framework can use a GPU, read off its files: no framework is imported to find out.

A framework needs three things of a machine: its CUDA libraries, a driver of the same CUDA major version or newer
(https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html), and kernels for the GPU's
architecture. Where one is missing the framework says so late, in its own words, or computes on the CPU without a word.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.machine.cuda import from_torch
from pipeline.machine.device import Gpu, dotted, driver_cuda, driver_version
from pipeline.machine.installed import installed_version

DRIVERS = {
    11: 450,
    12: 525,
    13: 580,
}  # CUDA's major version -> the oldest driver, by the table there
OLDEST = {12: (5, 0), 13: (7, 5)}  # the oldest compute capability that a toolkit compiles for (its release notes)
ARCHITECTURE = re.compile(r"(?:sm|compute)_\d+[af]?")
TORCH_FLAGS = re.compile(rb"\0(sm_\d+[af]?(?: (?:sm|compute)_\d+[af]?)*)(?=\0)")
SYSTEMS = Path("/usr/local/cuda")
COMPILERS = ("nvidia-cuda-nvcc", "nvidia-nvvm")  # packages that a CUDA of the system's has too
JAX_CHOICES = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME")  # the newer and the older name; each may exclude CUDA


@dataclass(frozen=True)
class Build:
    """A framework as installed. `kernels`: architectures by nvcc's names (sm_80: binary, compute_90: PTX).

    No kernels: the framework compiles them on the machine (JAX), or does not say. No `cuda`: its files do not say.
    """

    framework: str
    cuda: tuple[int, int] | None
    kernels: tuple[str, ...] = ()


def reason(build: Build | str, gpu: Gpu | None) -> str | None:
    """Why a build cannot use `gpu` here (None: any GPU at all), in words; None where it can.

    A text instead of a build is the reason why it can use no GPU.
    """
    if isinstance(build, str):
        return build
    return None if gpu is None else unusable(build, gpu, driver_cuda(), driver_version())


def unusable(build: Build, gpu: Gpu, driver: tuple[int, int] | None, version: str | None) -> str | None:
    """Why `build` cannot use `gpu`; None if it can, or if its files do not say.

    The driver runs CUDA up to `driver` (None: unknown).
    """
    cuda = build.cuda or (0, 0)  # unknown: no driver and no GPU is too old
    needs = f"{build.framework} is built for CUDA {dotted(cuda)}"
    if driver is not None and driver[0] < cuda[0]:
        oldest = DRIVERS.get(cuda[0])
        newer = f"driver {oldest} or newer" if oldest else "a newer driver"
        return f"{needs}, which needs {newer}; the driver here is {version or '?'} (CUDA {dotted(driver)})"
    here = f"gpu:{gpu.index} ({gpu.name}) has compute capability {dotted(gpu.compute_capability)}"
    oldest_gpu = OLDEST.get(cuda[0], (0, 0))
    if gpu.compute_capability < oldest_gpu:
        return f"{needs}, which needs compute capability {dotted(oldest_gpu)} or newer; {here}"
    how = runs_by(build.kernels, gpu.compute_capability) if build.kernels else "binary"
    if how is None:
        return f"{build.framework} has kernels for {' '.join(build.kernels)}; {here}"
    if how == "PTX" and driver is not None and driver < cuda:
        return (
            f"{build.framework} has only PTX of CUDA {dotted(cuda)} for this architecture, which the driver "
            f"(CUDA {dotted(driver)}) is too old to compile; {here}"
        )
    return None


def runs_by(kernels: Iterable[str], capability: tuple[int, int]) -> str | None:
    """By what a GPU runs these kernels: "binary", "PTX" (which the driver compiles), or None.

    A binary runs on its own major version, from its minor version on; PTX on everything newer. `sm_90a` is for 9.0
    alone, `sm_100f` for its family, which is the major version
    (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility).
    """
    found = None
    for name in kernels:
        kind, _, digits = name.partition("_")
        number = int(digits.rstrip("af"))
        at = number // 10, number % 10
        if digits.endswith("a"):
            fits = capability == at
        elif kind == "compute" and not digits.endswith("f"):
            fits = capability >= at
        else:
            fits = capability[0] == at[0] and capability[1] >= at[1]
        if fits and kind == "sm":
            return "binary"
        found = "PTX" if fits else found
    return found


@cache
def torch() -> Build | str:
    """PyTorch: its version file names CUDA, its library holds the text that `torch.cuda.get_arch_list()` returns."""
    folder = _folder("torch")
    if folder is None:
        return "torch is not installed"
    cuda = from_torch()
    if cuda is None:
        return "the installed torch is a CPU build"
    lost = overwritten(_requirements("torch", ""))
    if lost:
        return f"torch's {lost}"
    return Build("the installed torch", _version(cuda), torch_kernels(folder / "lib" / "libtorch_python.so"))


def torch_kernels(library: Path) -> tuple[str, ...]:
    """The architectures of torch's kernels: the longest text of such names in its library.

    A shorter one is of something else; none where two are as long, which says nothing.
    """
    found = set(TORCH_FLAGS.findall(library.read_bytes())) if library.exists() else set()
    longest = [flags for flags in found if len(flags) == max(map(len, found))]
    return tuple(longest[0].decode().split()) if len(longest) == 1 else ()


@cache
def tensorflow() -> Build | str:
    """TensorFlow: a file of its package describes the build; NVIDIA's libraries are packages beside it."""
    folder = _folder("tensorflow")
    if folder is None:
        return "tensorflow is not installed"
    file = folder / "python" / "platform" / "build_info.py"
    about = tensorflow_build(file.read_text(encoding="utf-8") if file.exists() else "")
    if about.get("is_cuda_build") is False:
        return "the installed tensorflow is a CPU build"
    cuda = _version(str(about.get("cuda_version")))
    lost = lacking(_requirements("tensorflow", "and-cuda"), cuda[0], "gpu-tensorflow") if cuda else None
    return f"TensorFlow's {lost}" if lost else Build("the installed tensorflow", cuda, _names(about))


def tensorflow_build(text: str) -> dict[str, object]:
    """What TensorFlow's build_info.py says of the build; empty where it is written in another way."""
    try:
        statements = ast.parse(text).body
        for statement in statements:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "build_info":
                value = statement.value
                return dict(ast.literal_eval(value.args[0] if isinstance(value, ast.Call) else value))
    except (SyntaxError, ValueError, TypeError, IndexError):
        pass
    return {}


def _names(about: dict[str, object]) -> tuple[str, ...]:
    found = about.get("cuda_compute_capabilities")
    names = tuple(map(str, found)) if isinstance(found, list | tuple) else ()
    return names if all(map(ARCHITECTURE.fullmatch, names)) else ()


@cache
def jax() -> Build | str:
    """JAX: CUDA is a plugin, which must have jaxlib's version; XLA compiles the kernels on the machine."""
    excluded = jax_excludes_cuda(os.environ)
    if excluded:
        return excluded
    jaxlib = installed_version("jaxlib")
    if jaxlib is None:
        return "jaxlib is not installed"
    # In the order in which JAX takes them.
    found = {major: installed_version(f"jax-cuda{major}-plugin") for major in (13, 12)}
    versions = {major: version for major, version in found.items() if version}
    for major, version in versions.items():
        if _release(version) != _release(jaxlib):
            continue
        lost = lacking(_requirements(f"jax-cuda{major}-plugin", "with-cuda"), major, "gpu-jax")
        return f"JAX's {lost}" if lost else Build("the installed JAX", (major, 0))
    for major, version in versions.items():
        return f"JAX leaves out its CUDA plugin {version} (jax-cuda{major}-plugin): jaxlib is {jaxlib}"
    return "JAX's CUDA plugin is not installed (install pipeline[gpu-jax])"


def jax_excludes_cuda(variables: Mapping[str, str]) -> str | None:
    """The variable of JAX's by which it is to compute elsewhere, in words."""
    for name in JAX_CHOICES:
        value = variables.get(name, "")
        if value and not {"cuda", "gpu"} & set(value.lower().split(",")):
            return f"{name}={value} excludes CUDA"
    return None


def lacking(names: Iterable[str], major: int, extra: str) -> str | None:
    """Which of NVIDIA's packages are missing or broken, in words; None where all are there, or the system has CUDA."""
    names = tuple(names)
    missing = [name for name in names if installed_version(name) is None]
    if compiles():
        missing = [name for name in missing if not name.startswith(COMPILERS)]
    if not missing:
        return overwritten(names, extra)
    if all(map(_loads, (f"libcudart.so.{major}", "libcudnn.so.9"))):  # conda's, or the system's
        return None
    return f"CUDA packages are not installed ({missing[0]}; install pipeline[{extra}])"


def compiles() -> bool:
    """Whether XLA finds ptxas and libdevice outside NVIDIA's packages.

    ptxas may be on the PATH; libdevice is looked for below a CUDA's folder alone (openxla/xla, CandidateCudaRoots).
    """
    ptxas = shutil.which("ptxas") or (SYSTEMS / "bin/ptxas").exists()
    return bool(ptxas) and (SYSTEMS / "nvvm/libdevice/libdevice.10.bc").exists()


def overwritten(names: Collection[str], extra: str = "") -> str | None:
    """That another package has replaced the files of cuDNN, in words, and what mends it.

    cuDNN for CUDA 12 and for CUDA 13 lies in one folder, so the one that was installed last is left of both. NCCL and
    NVSHMEM share theirs too, but training on one GPU calls neither.
    """
    for major, other in (("12", "13"), ("13", "12")):
        name, by = f"nvidia-cudnn-cu{major}", f"nvidia-cudnn-cu{other}"
        if name not in names or installed_version(by) is None or intact(name):
            continue
        mend = f"remove the nvidia-...-cu{other} packages and reinstall the nvidia-...-cu{major} ones"
        if extra == "gpu-tensorflow":  # the registry's torch would bring them again
            mend = (
                "the registry's torch brings it, so pip install '.[gpu-tensorflow]' alone ends here; "
                "in a new environment install torch's CPU build first"
            )
        return f"{name} is overwritten by {by}, which lies in the same folder: {mend}"
    return None


def intact(name: str) -> bool:
    """Whether the files of an installed package have the sizes that its RECORD gives them."""
    files = importlib.metadata.files(name) or ()
    return all(_size(Path(str(file.locate()))) == file.size for file in files if file.size is not None)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def _requirements(name: str, extra: str) -> tuple[str, ...]:
    """NVIDIA's packages among the requirements of an installed one: its own, or those of one of its extras."""
    try:
        lines = importlib.metadata.requires(name) or ()
    except importlib.metadata.PackageNotFoundError:  # conda's packages need not say
        return ()
    wanted = [line for line in lines if line.startswith("nvidia-") and (f'extra == "{extra}"' in line) == bool(extra)]
    return tuple(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted)


def _loads(library: str) -> bool:
    """Whether the dynamic linker finds a library, or conda's folder has it."""
    if Path(sys.prefix, "lib", library).exists():
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _folder(package: str) -> Path | None:
    found = importlib.util.find_spec(package)
    return Path(found.origin).parent if found is not None and found.origin else None


def _release(version: str) -> str:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return match[0] if match else version


def _version(text: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2] or 0)) if match else None
