"""CUDA C++ compiled to machine code for a GPU that need not be there: NVRTC, from packages.

NVRTC is the compiler as a library (`nvidia-cuda-nvrtc`). CUDA's headers come with `nvidia-cuda-runtime` and
`nvidia-cuda-crt`, the calls with `cuda-bindings`. Options and results: docs.nvidia.com/cuda/nvrtc.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pipeline.errors import RunError, UserError
from pipeline.kernels.cpu.compiled import refused
from pipeline.machine.device import dotted
from pipeline.machine.installed import is_installed, not_installed

HEADERS = ("nvidia-cuda-runtime", "nvidia-cuda-crt")
PACKAGES = ("cuda-bindings", "nvidia-cuda-nvrtc", *HEADERS, "nvidia-cuda-nvdisasm")
GROUPS = "nvidia-cuda-cccl"  # headers that cooperative_groups.h includes: kernels of the user's alone need them
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
SERIALIZED = re.compile(r".*wgmma.*serialized.*")


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code and what the assembler says of it, for each thread: registers, bytes of stack and of
    spilled registers; `shared`: bytes of static shared memory of a block. `serialized`: the assembler's reason why the
    asynchronous products of a warpgroup are not asynchronous; empty where they are.
    """

    cubin: bytes
    architecture: int
    registers: int
    stack: int
    spilled: int
    shared: int
    serialized: str = ""


def missing_packages() -> str | None:
    """What is not installed, and the command that installs it; None where nothing is missing."""
    missing = tuple(name for name in PACKAGES if not is_installed(name))
    return not_installed(missing, ("kernels",)) if missing else None


@cache
def version() -> tuple[int, int]:
    """NVRTC's, as (13, 5)."""
    _, nvrtc = _library()
    major, minor = _checked(nvrtc, nvrtc.nvrtcVersion())
    return major, minor


@cache
def architectures() -> tuple[int, ...]:
    """The compute capabilities that this NVRTC compiles for, as 80 for 8.0."""
    _, nvrtc = _library()
    (found,) = _checked(nvrtc, nvrtc.nvrtcGetSupportedArchs())
    return tuple(int(one) for one in found)


def flags(architecture: int, defines: Sequence[str] = (), *, specific: bool = False) -> list[str]:
    """NVRTC's options, but the folders of headers."""
    of_all = [
        f"--gpu-architecture=sm_{architecture}{'a' if specific else ''}",
        "--std=c++17",
        "--ptxas-options=-v",
        "--no-cache",  # of code that comes from NVRTC's cache on disk the assembler says nothing
    ]
    return of_all + [f"-D{one}" for one in defines]


def compiled(
    source: Path,
    architecture: int,
    defines: Sequence[str] = (),
    beside: Sequence[Path] = (),
    entry: str = "",
    *,
    specific: bool = False,
    aloud: bool = True,
) -> Compiled:
    """`source` for an architecture as 80.

    `defines`: macros, as `FP16`. `beside`: the files that it includes. `entry`: the kernel whose registers are asked
    for, where it has several. `specific`: with the instructions that this architecture alone has (sm_90a).
    `aloud`: what the compiler says goes to standard error where it refuses.

    The same files are compiled once in a process: by what is in them, since they may have changed.
    Raises UserError with the compiler's first error where it does not compile, or where NVRTC lacks the architecture.
    """
    if architecture not in architectures():
        known = ", ".join(map(str, architectures()))
        raise UserError(f"{source.name} for sm_{architecture}: NVRTC {dotted(version())} compiles for {known}")
    files = tuple(one.resolve() for one in (source, *beside))
    contents = tuple(one.read_bytes() for one in files)
    options = tuple(flags(architecture, defines, specific=specific))
    return _compiled(source.name, files, contents, architecture, options, entry, aloud)


@lru_cache(maxsize=64)  # more than one stage=wmma has kernels and architectures
def _compiled(
    name: str,
    files: Sequence[Path],
    contents: Sequence[bytes],
    architecture: int,
    flags: Sequence[str],
    entry: str,
    aloud: bool,
) -> Compiled:
    """The first of `files`, called `name` in messages; `contents`: what is in each of them."""
    include, nvrtc = _library()
    folders = dict.fromkeys((*include, *(one.parent for one in files)))
    options = [*flags, *(f"-I{folder}" for folder in folders)]
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(contents[0], name.encode(), 0, [], []))[0]
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [one.encode() for one in options])[0]
        log = _text(nvrtc, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            by = f"NVRTC {dotted(version())}, sm_{architecture}"
            raise _explained(refused(name, by, log, aloud=aloud), log)
        (size,) = _checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        cubin = bytes(size)
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return _described(cubin, architecture, log, entry, name)


def _explained(error: UserError, log: str) -> UserError:
    """With what to do about a header that NVRTC lacks: it has CUDA's own, and none of the host's."""
    missing = re.search(r'cannot open source file "([^"]+)"', log)
    if missing is None:
        return error
    if missing[1].startswith(("cuda/", "nv/")):
        return error if is_installed(GROUPS) else UserError(f"{error} ({not_installed((GROUPS,), ('kernels',))})")
    return UserError(f"{error} (NVRTC has none of the host's headers; printf and assert need none)")


def _described(cubin: bytes, architecture: int, log: str, entry: str, source: str) -> Compiled:
    """With the numbers of the assembler's messages. Raises UserError where no kernel has that name."""
    serialized = SERIALIZED.search(log)
    if entry:
        log = _about(entry, log, source)
    frame, registers, shared = FRAME.search(log), REGISTERS.search(log), SHARED.search(log)
    if frame is None or registers is None:
        raise RunError(f"NVRTC {dotted(version())} does not say how many registers a kernel takes:\n{log}")
    stack, stored, loaded = map(int, frame.groups())
    return Compiled(
        cubin,
        architecture,
        int(registers[1]),
        stack,
        stored + loaded,
        int(shared[1]) if shared else 0,
        serialized[0].strip() if serialized else "",
    )


def _about(entry: str, log: str, source: str) -> str:
    """The messages on one kernel."""
    about = dict(re.findall(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", log, re.DOTALL))
    if entry not in about:
        found = f"it has {', '.join(about)}" if about else "it has no kernel"
        raise UserError(f'{source}: no kernel {entry}, {found}; declare it extern "C" __global__ void {entry}(...)')
    return about[entry]


@cache
def _library() -> tuple[tuple[Path, ...], Any]:
    """The folders of CUDA's headers, and the module of NVRTC's calls.

    The packages of the headers share a folder where one environment has both; an environment that sees another's
    packages may have one of them, and the other environment the other.
    """
    lacking = missing_packages()
    if lacking:
        raise UserError(f"compiling CUDA C++: {lacking}")
    from cuda.bindings import nvrtc

    namespace = importlib.util.find_spec("nvidia")
    roots = [Path(one) / "cu13" for one in (namespace and namespace.submodule_search_locations) or ()]
    library = next((file for root in roots for file in root.glob("lib/libnvrtc.so.*")), None)
    if library is not None:  # cuda.bindings takes one that is loaded, and seeks it in this environment alone
        # NVRTC 13.0, of torch's builds for CUDA 13.0, does not look beside itself for what it opens when it compiles.
        for file in (*library.parent.glob("libnvrtc-builtins.so.*"), library):
            ctypes.CDLL(str(file))
    folders = [root / "include" for root in roots]
    found = [next((one for one in folders if (one / name).is_file()), None) for name in ("mma.h", "crt/mma.h")]
    beside = [one / "cccl" for one in folders if (one / "cccl").is_dir()]  # of GROUPS
    headers = tuple(dict.fromkeys((*(one for one in found if one is not None), *beside)))
    if None in found:
        raise UserError(
            f"compiling CUDA C++: CUDA's headers are not beside their packages; reinstall {', '.join(HEADERS)}"
        )
    return headers, nvrtc


def _checked(nvrtc: Any, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call returns behind its status."""
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RunError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return tuple(values)


def _text(nvrtc: Any, program: Any) -> str:
    """What the compiler says."""
    (size,) = _checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program))
    log = bytes(size)
    _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
    return log.replace(b"\0", b"").decode(errors="replace").strip()
