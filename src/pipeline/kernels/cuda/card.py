"""An NVIDIA GPU through CUDA's driver API: code and memory on it, and how long it takes.

Calls and their errors: the CUDA Driver API documentation, docs.nvidia.com/cuda/cuda-driver-api. The device's primary
context is used, the one that torch uses too.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.errors import RunError
from pipeline.kernels.on_card import card
from pipeline.machine.device import gpu_free_bytes
from pipeline.report.table import size as in_bytes

if TYPE_CHECKING:
    import numpy as np

    from pipeline.kernels.cuda.function import Triple
    from pipeline.machine.device import Gpu


def chosen() -> Gpu:
    """The GPU that kernels run on; there is one."""
    found = card()
    assert found is not None
    return found


class Card:
    """The chosen GPU. What is loaded and allocated by it is freed with the object. `who`: whom messages are about."""

    def __init__(self, who: str) -> None:
        from cuda.bindings import driver

        self.gpu, self.driver, self.who = chosen(), driver, who
        self.call("cuInit", 0)
        self.device = self.call("cuDeviceGet", self.gpu.index)
        self._context = self.call("cuDevicePrimaryCtxRetain", self.device)
        self.enter()
        weakref.finalize(self, driver.cuDevicePrimaryCtxRelease, self.device)
        # Not the legacy stream, which cannot be captured; one of this kind still waits for the copies on that.
        self.stream = self.call("cuStreamCreate", 0)  # CU_STREAM_DEFAULT
        weakref.finalize(self, driver.cuStreamDestroy, self.stream)
        # Of the 256 bytes those behind the name are whatever was there.
        self.name = self.call("cuDeviceGetName", 256, self.device).partition(b"\0")[0].decode()

    def enter(self) -> None:
        """A context belongs to a thread, and an object may be made in one and used in another."""
        self.call("cuCtxSetCurrent", self._context)

    def attribute(self, name: str) -> int:
        """A number of the device, by the end of its name in cuda.h."""
        return int(self.call("cuDeviceGetAttribute", self._named("CUdevice_attribute", name), self.device))

    def function(self, cubin: bytes, entry: str) -> Any:
        """A function of code that is loaded."""
        module = self.call("cuModuleLoadData", cubin)
        weakref.finalize(self, self.driver.cuModuleUnload, module)
        return self.call("cuModuleGetFunction", module, entry.encode())

    def allocated(self, what: str, size: int) -> int:
        """The address of `size` bytes of the card's memory, for `what`. Raises RunError where there are none."""
        try:
            address = int(self.call("cuMemAlloc", size))
        except RunError as error:
            free = gpu_free_bytes(self.gpu.index)
            raise RunError(
                f"{error}; {what} takes {in_bytes(size)} and {in_bytes(free)} are free on {self.gpu.name}; "
                "use smaller stage.sizes"
            ) from error
        weakref.finalize(self, self.driver.cuMemFree, address)
        return address

    def upload(self, address: int, values: np.ndarray) -> None:
        """Copy to the card."""
        self.call("cuMemcpyHtoD", address, values.ctypes.data, values.nbytes)

    def download(self, address: int, values: np.ndarray) -> None:
        """Copy from the card, into `values`."""
        self.call("cuMemcpyDtoH", values.ctypes.data, address, values.nbytes)

    def launcher(
        self, function: object, grid: Triple, block: Triple, dynamic: int, arguments: Sequence[np.ndarray]
    ) -> Callable[[], None]:
        """What launches a function, with arguments that are each an array of one number, or of a structure's bytes."""
        pointers = (ctypes.c_void_p * len(arguments))(*(one.ctypes.data for one in arguments))
        packed = (function, *grid, *block, dynamic, self.stream, ctypes.addressof(pointers), 0)

        def launch() -> None:
            assert pointers and arguments  # which have to live as long as what points to them
            self.call("cuLaunchKernel", *packed)

        return launch

    def wait(self) -> None:
        """Until the card has done all that it was given."""
        self.call("cuCtxSynchronize")

    def seconds(self, work: Callable[[], object]) -> float:
        """By the card's clock, between two events before and behind what `work` gives it."""
        began, ended = self.call("cuEventCreate", 0), self.call("cuEventCreate", 0)
        try:
            self.call("cuEventRecord", began, self.stream)
            work()
            self.call("cuEventRecord", ended, self.stream)
            self.call("cuEventSynchronize", ended)
            milliseconds: float = self.call("cuEventElapsedTime", began, ended)
        finally:
            self.driver.cuEventDestroy(began)
            self.driver.cuEventDestroy(ended)
        return milliseconds / 1000

    def call(self, name: str, *arguments: object) -> Any:
        """What a call of the driver returns. Raises RunError with the driver's own words."""
        status, *values = getattr(self.driver, name)(*arguments)
        if status != self.driver.CUresult.CUDA_SUCCESS:
            words = self.driver.cuGetErrorString(status)[1]
            raise RunError(f"{self.who}: {name}: {words.decode() if words else status}")
        return values[0] if values else None

    def function_attribute(self, name: str, function: object, value: int | None = None) -> int:
        """A number of a function, by the end of its name in cuda.h; `value`: what it becomes."""
        attribute = self._named("CUfunction_attribute", name)
        if value is not None:
            self.call("cuFuncSetAttribute", function, attribute, value)
        return int(self.call("cuFuncGetAttribute", attribute, function))

    def _named(self, kind: str, name: str) -> object:
        prefix = {"CUdevice_attribute": "CU_DEVICE_ATTRIBUTE_", "CUfunction_attribute": "CU_FUNC_ATTRIBUTE_"}[kind]
        return getattr(getattr(self.driver, kind), prefix + name)
