"""A kernel on an NVIDIA GPU: compiled for it, its operands in the card's memory, launched through CUDA's driver API.

Calls and their errors: the CUDA Driver API documentation, docs.nvidia.com/cuda/cuda-driver-api. The device's primary
context is used, the one that torch uses too.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.contracts.kernels import Launch
from pipeline.errors import Readable, RunError
from pipeline.kernels import nvrtc
from pipeline.kernels.cuda.built import built
from pipeline.machine.device import driver_cuda, gpus

if TYPE_CHECKING:
    from pipeline.kernels.cuda.source import CudaSource
    from pipeline.kernels.gemm import Operands


def missing(kernel: CudaSource) -> str | None:
    """What keeps a kernel from running on the first GPU, in words that follow "needs"; None where nothing does."""
    cards, needed = gpus(), kernel.minimum
    if not cards:
        return "an NVIDIA GPU"
    if needed is not None and cards[0].compute_capability < needed:
        return (
            f"compute capability {_dotted(needed)} or newer; {cards[0].name} has {_dotted(cards[0].compute_capability)}"
        )
    if nvrtc.missing_packages() is not None:
        return f"the packages that compile for a GPU: {nvrtc.missing_packages()}"
    major, minor = cards[0].compute_capability
    try:
        known = nvrtc.architectures()
    except Readable as error:
        return f"an NVRTC that works: {error}"
    if 10 * major + minor not in known:
        return f"an NVRTC that knows {cards[0].name} (sm_{major}{minor}); this one is {_dotted(nvrtc.version())}"
    newest = driver_cuda()
    if newest is not None and newest[0] < nvrtc.version()[0]:
        return f"a driver for CUDA {nvrtc.version()[0]}; this one runs CUDA {_dotted(newest)}"
    return None


class OnGpu(Launch):
    """A kernel with its operands on the first GPU. Memory and code are freed with the object."""

    def __init__(self, kernel: CudaSource, operands: Operands) -> None:
        from cuda.bindings import driver

        self._driver, self._kernel, self._operands = driver, kernel, operands
        major, minor = gpus()[0].compute_capability
        made = built(kernel, operands.gemm.dtype, 10 * major + minor)
        self._call("cuInit", 0)
        device = self._call("cuDeviceGet", 0)
        self._context = self._call("cuDevicePrimaryCtxRetain", device)
        self._enter()
        weakref.finalize(self, driver.cuDevicePrimaryCtxRelease, device)
        module = self._call("cuModuleLoadData", made.cubin)
        weakref.finalize(self, driver.cuModuleUnload, module)
        self._function = self._call("cuModuleGetFunction", module, kernel.entry.encode())
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call("cuFuncSetAttribute", self._function, most, kernel.dynamic)
        self._arguments = [self._on_card(one) for one in kernel.arguments(operands)]
        self._pointers = (ctypes.c_void_p * len(self._arguments))(*(one.ctypes.data for one in self._arguments))
        self.facts: Mapping[str, object] = {
            "architecture": f"sm_{made.architecture}",
            "registers": made.registers,
            "spilled_bytes": made.spilled,
            "shared_bytes": made.shared + kernel.dynamic,
            "compiler": f"NVRTC {_dotted(nvrtc.version())}",
            "driver": f"CUDA {_dotted(driver_cuda() or (0, 0))}",
        }

    def run(self) -> None:
        self._enter()
        self._launch()
        self._call("cuCtxSynchronize")

    def result(self) -> np.ndarray:
        self._enter()
        d = np.empty_like(self._operands.d)
        self._call("cuMemcpyDtoH", d.ctypes.data, int(self._arguments[3][0]), d.nbytes)
        return d

    def refill(self, d: np.ndarray) -> None:
        self._enter()
        self._call("cuMemcpyHtoD", int(self._arguments[3][0]), d.ctypes.data, d.nbytes)

    def seconds(self, calls: int) -> float:
        """By the card's clock: two events around `calls` launches, without a pause between these."""
        self._enter()
        began, ended = self._call("cuEventCreate", 0), self._call("cuEventCreate", 0)
        try:
            self._call("cuEventRecord", began, 0)
            for _ in range(calls):
                self._launch()
            self._call("cuEventRecord", ended, 0)
            self._call("cuEventSynchronize", ended)
            milliseconds: float = self._call("cuEventElapsedTime", began, ended)
        finally:
            self._driver.cuEventDestroy(began)
            self._driver.cuEventDestroy(ended)
        return milliseconds / 1000 / calls

    def _enter(self) -> None:
        """A context belongs to a thread, and an object may be made in one and used in another."""
        self._call("cuCtxSetCurrent", self._context)

    def _launch(self) -> None:
        grid, block = self._kernel.grid(self._operands.gemm), self._kernel.block
        pointers = ctypes.addressof(self._pointers)
        self._call("cuLaunchKernel", self._function, *grid, *block, self._kernel.dynamic, 0, pointers, 0)

    def _on_card(self, argument: Any) -> np.ndarray:
        """An argument as the launch takes it: a number, or the address of a matrix that was copied to the card."""
        from pipeline.kernels.shim.program import Array

        if not isinstance(argument, Array):
            return np.array([argument])
        memory = self._call("cuMemAlloc", argument.buffer.nbytes)
        weakref.finalize(self, self._driver.cuMemFree, memory)
        self._call("cuMemcpyHtoD", memory, argument.buffer.ctypes.data, argument.buffer.nbytes)
        return np.array([int(memory)], np.uint64)

    def _call(self, name: str, *arguments: object) -> Any:
        """What a call of the driver returns. Raises RunError with the driver's own words."""
        status, *values = getattr(self._driver, name)(*arguments)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            words = self._driver.cuGetErrorString(status)[1]
            raise RunError(f"{self._kernel.name}: {name}: {words.decode() if words else status}")
        return values[0] if values else None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
