"""Compile a CUDA source for the CPU and launch it there, every access to memory checked (README.md in this folder)."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from pipeline.errors import Readable, RunError, UserError, plural
from pipeline.kernels import nvrtc
from pipeline.kernels.cpu.compiled import Library, compiled, compiler, included

HERE = Path(__file__).parent
HEADERS = tuple(sorted((HERE / "include").rglob("*.*h")))
RUNTIME = (*sorted(HERE.glob("*.h")), *sorted(HERE.glob("*.cpp")), *HEADERS)
COMMON = ("-gdwarf-4", "-U_FORTIFY_SOURCE", f"-I{HERE / 'include'}")
# The compiler calls the shim at each access to memory and in each basic block. -nodefaultlibs: its own sanitizer, which
# would answer these calls, is not linked.
WATCHED = (
    "-O2",
    "-fsanitize=thread",
    "-fsanitize-coverage=trace-pc",
    "-fno-extern-tls-init",
    "-fno-gnu-unique",
    "-fno-tree-sra",  # one access for a vector, as float4: its parts would be checked, and not that it is aligned
    "-fno-strict-aliasing",  # what one type wrote is read as another, as float4
    "-fno-finite-loops",  # C++ lets a compiler leave out a loop that never ends
    "-Wno-unknown-pragmas",
)
LINKED = ("-Wl,-Bsymbolic", "-nodefaultlibs", "-lstdc++", "-lm", "-lc", "-lgcc_s")
ALIGNED = r"(?:(?:__align__|alignas)\s*\(\s*\w+\s*\)\s*)?"
DYNAMIC = re.compile(rf"extern\s+{ALIGNED}__shared__\s+{ALIGNED}([\w: ]+?)\s+(\w+)\s*\[\s*\]")
ANY_GPU = 90  # what a kernel is compiled for to see whether CUDA takes it
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
STEPS = 100_000_000  # basic blocks of a launch, all threads together: some seconds


class Fault(RunError):
    """What a kernel did wrong, with the thread, the address and the line."""


@dataclass(frozen=True)
class Array:
    """A matrix that a kernel may touch: `columns` runs of `rows` elements, one every `leading` elements of `buffer`."""

    name: str
    buffer: np.ndarray
    rows: int
    columns: int
    leading: int
    writable: bool = False


BOX_SIDE, SWIZZLED, STRIDE = 256, 128, 1 << 40  # numbers; bytes; bytes


@dataclass(frozen=True)
class Boxes:
    """A matrix of 16-bit numbers, for TMA to copy in boxes of `rows` × `columns`: what CUDA calls a tensor map.

    Raises UserError where CUDA refuses it (the Driver API's cuTensorMapEncodeTiled, with the 128-byte swizzle).
    """

    matrix: Array
    rows: int
    columns: int

    def __post_init__(self) -> None:
        called, size = f"{self.matrix.name} in boxes of {self.rows}×{self.columns}", self.matrix.buffer.itemsize
        if max(self.rows, self.columns) > BOX_SIDE:
            raise UserError(f"{called}: TMA copies {BOX_SIDE} rows and columns at most")
        if self.rows * size > SWIZZLED:
            raise UserError(f"{called}: a column has {self.rows * size} bytes, and the swizzle takes {SWIZZLED}")
        if self.matrix.leading * size >= STRIDE:
            raise UserError(
                f"{called}: columns are {self.matrix.leading * size:,} bytes apart; TMA takes less than 2^40"
            )

    def suits(self, address: int) -> bool:
        """Whether TMA can read the matrix at an address: columns begin at multiples of 16 bytes."""
        return address % 16 == 0 and self.matrix.leading * self.matrix.buffer.itemsize % 16 == 0


TENSOR_MAP = 128  # bytes, and its alignment
Argument = Array | Boxes | np.generic


class _View(ctypes.Structure):
    """`shim::View` of memory.cpp."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("run", ctypes.c_size_t),
        ("stride", ctypes.c_size_t),
        ("columns", ctypes.c_size_t),
        ("element", ctypes.c_uint),
        ("writable", ctypes.c_int),
    )


@dataclass(frozen=True)
class Program:
    """A kernel compiled for the CPU. `source`: the file that its messages name."""

    library: Library
    source: Path

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Argument],
        *,
        seed: int = 0,
        steps: int = STEPS,
    ) -> None:
        """Run the kernel once, with arguments as its signature has them; `seed`: in which order blocks and threads run.

        Raises Fault where it touches what it may not, races, waits for ever or takes more than `steps` basic blocks.
        """
        loaded = self._loaded()
        self._check_parameters(loaded, arguments)
        loaded.shim_launch.restype = ctypes.c_char_p
        arrays = [one for one in arguments if isinstance(one, Array)]
        views = (_View * len(arrays))(*map(_view, arrays))
        values = [_value(one) for one in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        granule = min([2, *(one.buffer.itemsize for one in arrays)])
        triple = ctypes.c_uint * 3
        message = loaded.shim_launch(
            loaded.shim_thread,
            triple(*grid),
            triple(*block),
            pointers,
            views,
            len(arrays),
            granule,
            ctypes.c_uint64(seed),
            ctypes.c_uint64(steps),
        )
        if message is not None:
            raise Fault(f"{self.source.name}: {self._with_lines(message.decode())}")

    def _loaded(self) -> ctypes.CDLL:
        try:
            return self.library.loaded()
        except OSError as error:  # a name that is declared and defined nowhere
            raise UserError(f"{self.source.name}: does not load: {str(error).rpartition('.so: ')[2]}") from error

    def _check_parameters(self, loaded: ctypes.CDLL, arguments: Sequence[Argument]) -> None:
        """CUDA takes whatever a kernel declares, and gives it the bytes of others."""
        loaded.shim_parameters.restype = ctypes.c_char_p
        declared, given = loaded.shim_parameters().decode().split(), list(map(_parameter, arguments))
        if len(declared) != len(given):
            has = plural(len(declared), "parameter")
            raise UserError(f"{self.source.name}: has {has}, and is called with {len(given)}")
        for number, (has, gets) in enumerate(zip(declared, given, strict=True), 1):
            if has[1:] != gets[1:] or (has != gets and "s" not in (has[0], gets[0])):
                raise UserError(
                    f"{self.source.name}: parameter {number} is {_in_words(has)}, and gets {_in_words(gets)}"
                )

    def _with_lines(self, message: str) -> str:
        """The message with the source's lines in place of addresses in the program."""
        return re.sub(r"\{pc:([0-9a-f]+)\}", lambda found: f"({self._line(int(found[1], 16))})", message)

    def _line(self, address: int) -> str:
        """File and line of a call in the program, by its return address; those in a kernel's file, if any are."""
        command = ["addr2line", "-i", "-e", str(self.library.file), hex(address - 1)]
        try:
            lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
        except OSError:  # no binutils
            return hex(address)
        places = [Path(line.split(" ")[0]).name for line in lines if line and "?" not in line]
        kernels = [place for place in places if re.search(r"\.cuh?:", place)]
        return (kernels or places or [hex(address)])[0]


def available() -> bool:
    """Whether the compiler takes the shim's flags: g++ 10 or newer does, clang does not know them all."""
    program = compiler()
    return program is not None and _takes_flags(program)


@cache
def _takes_flags(program: str) -> bool:
    command = [program, *COMMON, *WATCHED, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build(
    source: Path, kernel: str, defines: Sequence[str] = (), dynamic: int = 0, beside: Sequence[Path] = ()
) -> Program:
    """`source` with its function `kernel`, compiled for the CPU.

    `defines`: macros, as `FP16`. `dynamic`: bytes of its dynamic shared memory. `beside`: the files that it includes.
    Raises UserError with the compiler's lines where it does not compile.
    """
    names = [f"-D{one}" for one in defines]
    declared = _dynamic(source)
    if declared:
        names += [f"-DDYNAMIC_TYPE={declared[0]}", f"-DDYNAMIC_NAME={declared[1]}", f"-DDYNAMIC_BYTES={dynamic}"]
    flags = (
        *COMMON,
        *WATCHED,
        *names,
        f"-DKERNEL={kernel}",
        f'-DKERNEL_FILE="{source.resolve()}"',
        *_folders(source, beside),
        str(_runtime()),
        *LINKED,
    )
    decides = dict.fromkeys((source, *beside, *headers(source, defines, beside), *HEADERS))
    try:
        return Program(compiled(HERE / "program.cpp", tuple(decides), flags, source.name), source)
    except UserError as error:
        on_gpu = partial(nvrtc.compiled, source, ANY_GPU, defines, beside, kernel, aloud=False)
        raise _explained(error, source, kernel, on_gpu) from error


def _dynamic(source: Path) -> tuple[str, str] | None:
    """Type and name of a source's dynamic shared memory. Raises UserError where it declares several."""
    code = COMMENT.sub("", source.read_text(encoding="utf-8", errors="replace"))
    found = dict.fromkeys((each[1], each[2]) for each in DYNAMIC.finditer(code))
    if len(found) > 1:
        names = ", ".join(name for _, name in found)
        raise UserError(
            f"{source.name}: declares its dynamic shared memory as {names}, which CUDA places at one address; the shim "
            "takes one name: declare one, and point into it"
        )
    return next(iter(found), None)


def _explained(error: UserError, source: Path, kernel: str, on_gpu: Callable[[], object]) -> Readable:
    """Of what does not compile: what the shim lacks of CUDA. `on_gpu` compiles it for a GPU, as far as that is possible
    here, and raises Readable where CUDA refuses it too."""
    if re.search(rf"<command-line>.*\W{kernel}\W", str(error)):  # where the function's name stands
        declared = f'extern "C" __global__ void {kernel}(...)'
        return UserError(
            f"{source.name}: has no function {kernel}; declare it {declared}, with the arguments that docs/kernels.md "
            "gives"
        )
    lacking = _lacking(str(error))
    if nvrtc.missing_packages() is not None:
        if lacking is None:
            return error
        known = "if CUDA has it, the kernel may be right on a GPU"
    else:
        try:
            on_gpu()
        except Readable as refusal:  # CUDA refuses the kernel too: the first reason is as good
            return error if lacking is None or "header" not in lacking else refusal
        known = "NVRTC compiles the kernel for a GPU, where it may be right"
    what = f"lacks {lacking}" if lacking else f"does not take it: {error}"
    return UserError(
        f"{source.name}: the shim, by which a CPU runs a kernel to verify it, {what}; {known}: verify it there, or "
        "keep the line from the shim by #ifdef __CUDA_ARCH__"
    )


def _lacking(said: str) -> str | None:
    """What a compiler's message says to be missing, with its file and line; None where it is about something else."""
    where = r"([^/\s:]+:\d+):\d+: (?:fatal )?error: "
    name = re.search(where + r".(\w+). (?:was not declared|does not name a type|has not been declared)", said)
    header = re.search(where + r"(\S+): No such file or directory", said)
    limit = re.search(r"static assertion failed: the shim has ([^\n]+)", said)
    if name:
        return f"{name[2]} ({name[1]})"
    if header:
        return f"the header {header[2]} ({header[1]})"
    if limit:
        return f"the shape: it has {limit[1]}"
    ptx = re.search(r"([^/\s:]+:\d+): Error: |" + where + r".*\Wasm\W", said)  # of the assembler, or on its operands
    if ptx:
        return f"the PTX of an asm() ({ptx[1] or ptx[2]})"
    return None


def headers(source: Path, defines: Sequence[str], beside: Sequence[Path]) -> tuple[Path, ...]:
    """What a source includes, but the shim's and the system's headers."""
    flags = ("-x", "c++", f"-I{HERE / 'include'}", *_folders(source, beside), *(f"-D{one}" for one in defines))
    return tuple(one for one in included(source.resolve(), flags) if one not in HEADERS)


def _folders(source: Path, beside: Sequence[Path]) -> tuple[str, ...]:
    """Where a source's headers are looked for."""
    return tuple(f"-I{folder}" for folder in dict.fromkeys(one.resolve().parent for one in (source, *beside)))


@cache
def _runtime() -> Path:
    """The shim's own code, compiled once."""
    return compiled(HERE / "runtime.cpp", RUNTIME, (*COMMON, "-O2", "-c")).file


def _view(array: Array) -> _View:
    size = array.buffer.itemsize
    return _View(
        array.name.encode(),
        array.buffer.ctypes.data,
        array.rows * size,
        array.leading * size,
        array.columns,
        size,
        array.writable,
    )


def room_for_tensor_map() -> np.ndarray:
    """Zeros, at an address that suits."""
    memory = np.zeros(2 * TENSOR_MAP, np.uint8)
    begin = -memory.ctypes.data % TENSOR_MAP
    return memory[begin : begin + TENSOR_MAP]


def _tensor_map(boxes: Boxes) -> np.ndarray:
    """`TensorMap` of include/hopper.cuh; zeros where TMA cannot read the matrix."""
    made, matrix = room_for_tensor_map(), boxes.matrix
    address, size = matrix.buffer.ctypes.data, matrix.buffer.itemsize
    if boxes.suits(address):
        stride = matrix.leading * size
        words = struct.pack("@PQQQII", address, matrix.rows, matrix.columns, stride, boxes.rows, boxes.columns)
        made[: len(words)] = np.frombuffer(words, np.uint8)
    return made


def _parameter(argument: Argument) -> str:
    """What shim.h's `parameters` gives for it."""
    if isinstance(argument, Array):
        return "p8"
    if isinstance(argument, Boxes):
        return f"s{TENSOR_MAP}"
    return f"{'f' if isinstance(argument, np.floating) else 'i'}{argument.itemsize}"


def _in_words(parameter: str) -> str:
    kinds = {"p": "a pointer", "i": "a whole number", "f": "a real number", "s": "a class"}
    return f"{kinds[parameter[0]]} of {parameter[1:]} bytes"


def _value(argument: Argument) -> np.ndarray:
    """What a kernel's argument is: a number, a tensor map, or the address of an array."""
    if isinstance(argument, Boxes):
        return _tensor_map(argument)
    if isinstance(argument, Array):
        return np.array([argument.buffer.ctypes.data], np.uint64)
    return np.array([argument])
