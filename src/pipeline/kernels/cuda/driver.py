"""A kernel on an NVIDIA GPU: compiled for it, its operands in the card's memory, launched through CUDA's driver API.

Calls and their errors: the CUDA Driver API documentation, docs.nvidia.com/cuda/cuda-driver-api. The device's primary
context is used, the one that torch uses too.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.contracts.kernels import Launch
from pipeline.errors import Readable, RunError, UserError
from pipeline.kernels import nvrtc
from pipeline.kernels.cpu.compiled import content_hash
from pipeline.kernels.cuda.built import built
from pipeline.kernels.cuda.copies import copies
from pipeline.kernels.cuda.limits import Limits, refused_launch
from pipeline.kernels.cuda.tensor_map import tensor_map
from pipeline.kernels.on_card import card, missing_card
from pipeline.machine.device import driver_cuda, gpu_free_bytes
from pipeline.report.table import size as in_bytes

if TYPE_CHECKING:
    from pipeline.kernels.cuda.source import CudaSource
    from pipeline.kernels.gemm import Operands
    from pipeline.machine.device import Gpu

NODES = 100  # launches in a graph; so many take the card longer than Python takes to ask for the next graph


def missing(kernel: CudaSource) -> str | None:
    """What keeps a kernel from running on the GPU, in words that follow "needs"; None where nothing does."""
    lacking = missing_card(kernel.minimum, exactly=kernel.specific)
    if lacking is not None:
        return lacking
    if nvrtc.missing_packages() is not None:
        return f"the packages that compile for a GPU: {nvrtc.missing_packages()}"
    gpu = _card()
    major, minor = gpu.compute_capability
    try:
        known = nvrtc.architectures()
    except Readable as error:
        return f"an NVRTC that works: {error}"
    if 10 * major + minor not in known:
        return f"an NVRTC that knows {gpu.name} (sm_{major}{minor}); this one is {_dotted(nvrtc.version())}"
    newest = driver_cuda()
    if newest is not None and newest[0] < nvrtc.version()[0]:
        return f"a driver for CUDA {nvrtc.version()[0]}; this one runs CUDA {_dotted(newest)}"
    return None


def _card() -> Gpu:
    """The GPU, of which `missing` says whether there is one."""
    found = card()
    assert found is not None
    return found


def batches(calls: int) -> list[int]:
    """How many launches each of the graphs has that are replayed for `calls` of them."""
    whole, rest = divmod(calls, NODES)
    return [NODES] * whole + [rest] * (rest > 0)


def occupancy(
    call: Callable[..., Any], driver: Any, device: object, function: object, threads: int, dynamic: int
) -> dict[str, object]:
    """How many blocks fit on a multiprocessor at once, and the share of the threads it has room for that they are."""
    blocks = int(call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, dynamic))
    room = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR
    most = int(call("cuDeviceGetAttribute", room, device))
    return {"blocks_per_multiprocessor": blocks, "occupancy": blocks * threads / most}


class OnGpu(Launch):
    """A kernel with its operands on the GPU. Memory and code are freed with the object.

    `turned`: the operands are a problem by rows, as one by columns has them: A and B are swapped.
    """

    waits = True

    def __init__(self, kernel: CudaSource, operands: Operands, *, turned: bool = False) -> None:
        from cuda.bindings import driver

        gpu = self._gpu = _card()
        self._driver, self._kernel, self._operands, self._turned = driver, kernel, operands, turned
        major, minor = gpu.compute_capability
        made = built(kernel, operands.gemm.dtype, 10 * major + minor)
        self._call("cuInit", 0)
        self._device = self._call("cuDeviceGet", gpu.index)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._enter()
        weakref.finalize(self, driver.cuDevicePrimaryCtxRelease, self._device)
        module = self._call("cuModuleLoadData", made.cubin)
        weakref.finalize(self, driver.cuModuleUnload, module)
        self._function = self._call("cuModuleGetFunction", module, kernel.entry.encode())
        name = self._call("cuDeviceGetName", 256, self._device).decode().rstrip("\0")
        self._refuse(made.shared, name)
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call("cuFuncSetAttribute", self._function, most, kernel.dynamic)
        occupied = occupancy(self._call, driver, self._device, self._function, math.prod(kernel.block), kernel.dynamic)
        # Not the legacy stream, which cannot be captured; one of this kind still waits for the copies on that.
        self._stream = self._call("cuStreamCreate", 0)  # CU_STREAM_DEFAULT
        weakref.finalize(self, driver.cuStreamDestroy, self._stream)
        self._copies = copies(operands)
        self._arguments = [self._on_card(one) for one in kernel.arguments(operands)]
        self._pointers = (ctypes.c_void_p * len(self._arguments))(*(one.ctypes.data for one in self._arguments))
        count = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        grid = kernel.grid(operands.gemm, int(self._call("cuDeviceGetAttribute", count, self._device)))
        launch = (*grid, *kernel.block, kernel.dynamic)
        self._packed = (self._function, *launch, self._stream, ctypes.addressof(self._pointers), 0)
        self._graphs: dict[int, Any] = {}  # by the number of their launches
        self.facts: Mapping[str, object] = {
            "card": f"gpu:{gpu.index} {name}",
            "card_memory_bytes": int(self._call("cuDeviceTotalMem", self._device)),
            "architecture": f"sm_{made.architecture}",
            "registers": made.registers,
            "spilled_bytes": made.spilled,
            "shared_bytes": made.shared + kernel.dynamic,
            **occupied,
            "compiler": f"NVRTC {_dotted(nvrtc.version())}",
            "flags": " ".join(nvrtc.flags(made.architecture, (operands.gemm.dtype.upper(),), specific=kernel.specific)),
            "source_sha256": content_hash(dict.fromkeys((*kernel.user_files, *kernel.beside))),
            "driver": f"CUDA {_dotted(driver_cuda() or (0, 0))}",
        }

    def run(self) -> None:
        self._enter()
        self._launch()
        self._call("cuCtxSynchronize")

    def result(self) -> np.ndarray:
        return self._copies["D"].inner(self._from_card("D"))

    def refill(self, d: np.ndarray) -> None:
        self._enter()
        copy = self._copies["D"]
        self._call("cuMemcpyHtoD", copy.address, d.ctypes.data, d.nbytes)

    def inputs(self) -> tuple[np.ndarray, ...]:
        return tuple(map(self._from_card, "BAC" if self._turned else "ABC"))

    def seconds(self, calls: int) -> float:
        """By the card's clock, between two events: of one launch that Python makes, or of several that it replays.

        Small kernels end before Python has made the next launch; replayed as a graph they follow each other at once.
        """
        self._enter()
        graphs = [self._graph(launches) for launches in batches(calls)] if calls > 1 else []
        began, ended = self._call("cuEventCreate", 0), self._call("cuEventCreate", 0)
        try:
            self._call("cuEventRecord", began, self._stream)
            if not graphs:
                self._launch()
            for graph in graphs:
                self._call("cuGraphLaunch", graph, self._stream)
            self._call("cuEventRecord", ended, self._stream)
            self._call("cuEventSynchronize", ended)
            milliseconds: float = self._call("cuEventElapsedTime", began, ended)
        finally:
            self._driver.cuEventDestroy(began)
            self._driver.cuEventDestroy(ended)
        return milliseconds / 1000 / calls

    def _graph(self, launches: int) -> Any:
        """So many launches, one behind the other, ready on the card."""
        if launches not in self._graphs:
            mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            self._call("cuStreamBeginCapture", self._stream, mode)
            try:
                for _ in range(launches):
                    self._launch()
            finally:
                captured = self._call("cuStreamEndCapture", self._stream)
            graph = self._call("cuGraphInstantiate", captured, 0)
            weakref.finalize(self, self._driver.cuGraphExecDestroy, graph)
            self._call("cuGraphDestroy", captured)
            self._call("cuGraphUpload", graph, self._stream)
            self._graphs[launches] = graph
        return self._graphs[launches]

    def _enter(self) -> None:
        """A context belongs to a thread, and an object may be made in one and used in another."""
        self._call("cuCtxSetCurrent", self._context)

    def _launch(self) -> None:
        self._call("cuLaunchKernel", *self._packed)

    def _refuse(self, static: int, name: str) -> None:
        """What the card cannot launch. Raises UserError with the setting and the limit."""
        attribute = self._driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        of_function = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        limits = Limits(
            card=name,
            threads=int(self._call("cuFuncGetAttribute", of_function, self._function)),
            shared=int(self._call("cuDeviceGetAttribute", attribute, self._device)),
        )
        refusal = refused_launch(self._kernel.block, static, self._kernel.dynamic, limits)
        if refusal:
            raise UserError(f"stage.kernels: {self._kernel.name}: {refusal}")

    def _on_card(self, argument: Any) -> np.ndarray:
        """An argument as the launch takes it: a number, a tensor map, or the address of a matrix copied to the card."""
        from pipeline.kernels.shim.program import Array, Boxes

        if isinstance(argument, Boxes):
            return tensor_map(argument, self._copies[argument.matrix.name].address)
        if not isinstance(argument, Array):
            return np.array([argument])
        copy = self._copies[argument.name]
        copy.memory = self._allocated(argument.name, copy.whole.nbytes)
        weakref.finalize(self, self._driver.cuMemFree, copy.memory)
        self._call("cuMemcpyHtoD", copy.memory, copy.whole.ctypes.data, copy.whole.nbytes)
        return np.array([copy.address], np.uint64)

    def _allocated(self, name: str, size: int) -> int:
        """The address of memory on the card, of `size` bytes for a matrix."""
        try:
            return int(self._call("cuMemAlloc", size))
        except RunError as error:
            free = gpu_free_bytes(self._gpu.index)
            raise RunError(
                f"{error}; {name} takes {in_bytes(size)} and {in_bytes(free)} are free on {self._gpu.name}; "
                "use smaller stage.sizes"
            ) from error

    def _from_card(self, name: str) -> np.ndarray:
        """A matrix with its margins, as it is now."""
        self._enter()
        copy = self._copies[name]
        found = np.empty_like(copy.whole)
        self._call("cuMemcpyDtoH", found.ctypes.data, copy.memory, found.nbytes)
        return found

    def _call(self, name: str, *arguments: object) -> Any:
        """What a call of the driver returns. Raises RunError with the driver's own words."""
        status, *values = getattr(self._driver, name)(*arguments)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            words = self._driver.cuGetErrorString(status)[1]
            raise RunError(f"{self._kernel.name}: {name}: {words.decode() if words else status}")
        return values[0] if values else None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
