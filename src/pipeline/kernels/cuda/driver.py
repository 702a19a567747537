"""A kernel on an NVIDIA GPU: compiled for it, its operands in the card's memory, launched through CUDA's driver API."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.contracts.kernels import Launch
from pipeline.errors import Readable, UserError
from pipeline.kernels import nvrtc
from pipeline.kernels.cpu.compiled import content_hash
from pipeline.kernels.cuda.batches import batches
from pipeline.kernels.cuda.built import built
from pipeline.kernels.cuda.card import Card, chosen
from pipeline.kernels.cuda.copies import copies
from pipeline.kernels.cuda.limits import Limits, refused_launch
from pipeline.kernels.cuda.tensor_map import tensor_map
from pipeline.kernels.on_card import missing_card
from pipeline.machine.device import dotted, driver_cuda

if TYPE_CHECKING:
    from pipeline.kernels.cuda.source import CudaSource
    from pipeline.kernels.gemm import Operands


def missing(kernel: CudaSource) -> str | None:
    """What keeps a kernel from running on the GPU, in words that follow "needs"; None where nothing does."""
    lacking = missing_card(kernel.minimum, exactly=kernel.specific)
    if lacking is not None:
        return lacking
    if nvrtc.missing_packages() is not None:
        return f"the packages that compile for a GPU: {nvrtc.missing_packages()}"
    gpu = chosen()
    major, minor = gpu.compute_capability
    try:
        known = nvrtc.architectures()
    except Readable as error:
        return f"an NVRTC that works: {error}"
    if 10 * major + minor not in known:
        return f"an NVRTC that knows {gpu.name} (sm_{major}{minor}); this one is {dotted(nvrtc.version())}"
    newest = driver_cuda()
    if newest is not None and newest[0] < nvrtc.version()[0]:
        return f"a driver for CUDA {nvrtc.version()[0]}; this one runs CUDA {dotted(newest)}"
    return None


def occupancy(card: Card, function: object, threads: int, dynamic: int) -> dict[str, object]:
    """How many blocks fit on a multiprocessor at once, and the share of the threads it has room for that they are."""
    blocks = int(card.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, dynamic))
    most = card.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
    return {"blocks_per_multiprocessor": blocks, "occupancy": blocks * threads / most}


class OnGpu(Launch):
    """A kernel with its operands on the GPU. Memory and code are freed with the object.

    `turned`: the operands are a problem by rows, as one by columns has them: A and B are swapped.
    """

    waits = True

    def __init__(self, kernel: CudaSource, operands: Operands, *, turned: bool = False) -> None:
        self._kernel, self._operands, self._turned = kernel, operands, turned
        gpu = chosen()
        major, minor = gpu.compute_capability
        dtype, architecture = operands.gemm.dtype, 10 * major + minor
        made, dynamic = built(kernel, dtype, architecture), kernel.shared(dtype, architecture)
        card = self._card = Card(kernel.name)
        function = card.function(made.cubin, kernel.entry)
        self._refuse(function, made.shared, dynamic)
        card.function_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES", function, dynamic)
        occupied = occupancy(card, function, math.prod(kernel.block), dynamic)
        self._copies = copies(operands)
        arguments = [self._on_card(one) for one in kernel.arguments(operands)]
        grid = kernel.grid(operands.gemm, card.attribute("MULTIPROCESSOR_COUNT"))
        self._launch = card.launcher(function, grid, kernel.block, dynamic, arguments)
        self._graphs: dict[int, Any] = {}  # by the number of their launches
        self.facts: Mapping[str, object] = {
            "card": f"gpu:{gpu.index} {card.name}",
            "card_memory_bytes": int(card.call("cuDeviceTotalMem", card.device)),
            "architecture": f"sm_{made.architecture}",
            "registers": made.registers,
            "spilled_bytes": made.spilled,
            "shared_bytes": made.shared + dynamic,
            **occupied,
            "compiler": f"NVRTC {dotted(nvrtc.version())}",
            "flags": " ".join(nvrtc.flags(architecture, kernel.defines(dtype, architecture), specific=kernel.specific)),
            "source_sha256": content_hash(dict.fromkeys((*kernel.user_files, *kernel.beside))),
            "driver": f"CUDA {dotted(driver_cuda() or (0, 0))}",
        }

    def run(self) -> None:
        self._card.enter()
        self._launch()
        self._card.wait()

    def result(self) -> np.ndarray:
        return self._copies["D"].inner(self._from_card("D"))

    def refill(self, d: np.ndarray) -> None:
        self._card.enter()
        self._card.upload(self._copies["D"].address, d)

    def inputs(self) -> tuple[np.ndarray, ...]:
        return tuple(map(self._from_card, "BAC" if self._turned else "ABC"))

    def seconds(self, calls: int) -> float:
        """By the card's clock: of one launch that Python makes, or of several that it replays.

        Small kernels end before Python has made the next launch; replayed as a graph they follow each other at once.
        """
        self._card.enter()
        graphs = [self._graph(launches) for launches in batches(calls)] if calls > 1 else []

        def work() -> None:
            if not graphs:
                self._launch()
            for graph in graphs:
                self._card.call("cuGraphLaunch", graph, self._card.stream)

        return self._card.seconds(work) / calls

    def _graph(self, launches: int) -> Any:
        """So many launches, one behind the other, ready on the card."""
        if launches not in self._graphs:
            call, driver, stream = self._card.call, self._card.driver, self._card.stream
            call("cuStreamBeginCapture", stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            try:
                for _ in range(launches):
                    self._launch()
            finally:
                captured = call("cuStreamEndCapture", stream)
            graph = call("cuGraphInstantiate", captured, 0)
            weakref.finalize(self, driver.cuGraphExecDestroy, graph)
            call("cuGraphDestroy", captured)
            call("cuGraphUpload", graph, stream)
            self._graphs[launches] = graph
        return self._graphs[launches]

    def _refuse(self, function: object, static: int, dynamic: int) -> None:
        """What the card cannot launch. Raises UserError with the setting and the limit."""
        limits = Limits(
            card=self._card.name,
            threads=self._card.function_attribute("MAX_THREADS_PER_BLOCK", function),
            shared=self._card.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        )
        refusal = refused_launch(self._kernel.block, static, dynamic, limits)
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
        copy.memory = self._card.allocated(argument.name, copy.whole.nbytes)
        self._card.upload(copy.memory, copy.whole)
        return np.array([copy.address], np.uint64)

    def _from_card(self, name: str) -> np.ndarray:
        """A matrix with its margins, as it is now."""
        self._card.enter()
        copy = self._copies[name]
        found = np.empty_like(copy.whole)
        self._card.download(copy.memory, found)
        return found
