"""A kernel that takes torch's tensors: the operands as strided views, on the CPU or in a GPU's memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from pipeline.contracts.kernels import Launch
from pipeline.errors import Readable, RunError
from pipeline.kernels.cuda.batches import batches
from pipeline.kernels.cuda.copies import Copy
from pipeline.kernels.gemm import Operands
from pipeline.kernels.on_card import card_index

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
}
OMP_SPINS_S = 0.01  # torch's threads wait for work by spinning for some milliseconds
Method = TypeVar("Method", bound=Callable[..., Any])


def card_name() -> str:
    """As torch calls the GPU that the other kernels run on too."""
    return f"cuda:{card_index() or 0}"


def one_message(method: Method) -> Method:
    """What torch, Triton and CUDA raise, as a RunError of one line: the other kernels are still measured.

    Triton alone raises errors of a dozen kinds: of its compiler, of the C compiler that it starts, of the driver.
    """

    @wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except Readable:
            raise
        except Exception as error:
            raise RunError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error

    return called  # type: ignore[return-value]


class TorchLaunch(Launch):
    """A, B, C and D as `self.a` to `self.d`, each (rows, columns) with the strides that its order gives it.

    On the CPU they are the operands' own memory, on a GPU copies with their margins. `device`: as torch names it. `d`:
    where D is to be (None: in a new buffer). `turned`: the operands are another order's, with A and B swapped.
    """

    @one_message
    def __init__(self, operands: Operands, device: str, d: np.ndarray | None = None, *, turned: bool = False) -> None:
        gemm = self.gemm = operands.gemm
        self.device, self.turned = torch.device(device), turned
        self.waits = self.device.type == "cuda"
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by the number of their launches
        self.stored = operands.room() if d is None else d
        self.copies: dict[str, tuple[Copy, torch.Tensor]] = {}  # by matrix, of those on a GPU: and the whole of it
        self.buffer = self.placed("D", self.stored)
        element = DTYPES[gemm.dtype]
        self.a = self.matrix(self.placed("A", operands.a).view(element), gemm.m, gemm.k, gemm.lda)
        self.b = self.matrix(self.placed("B", operands.b).view(element), gemm.k, gemm.n, gemm.ldb)
        self.c = self.matrix(self.placed("C", operands.c), gemm.m, gemm.n, gemm.ldc)
        self.d = self.matrix(self.buffer, gemm.m, gemm.n, gemm.ldc)

    @abstractmethod
    def launch(self) -> None:
        """Begin to compute D: on a GPU it need not be there on return."""

    def settings(self) -> AbstractContextManager[object]:
        """torch's process-wide settings for `launch`, put back afterwards."""
        return nullcontext()

    @one_message
    def run(self) -> None:
        with self.settings(), self.on_device():
            self.launch()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def on_device(self) -> AbstractContextManager[object]:
        """Launches go to the current GPU."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    @one_message
    def result(self) -> np.ndarray:
        if self.device.type == "cpu":
            return self.stored
        return self.copies["D"][0].inner(self._from_card("D"))

    @one_message
    def inputs(self) -> tuple[np.ndarray, ...] | None:
        if self.device.type == "cpu":
            return None
        return tuple(map(self._from_card, "BAC" if self.turned else "ABC"))

    @one_message
    def refill(self, d: np.ndarray) -> None:
        self.buffer.copy_(torch.from_numpy(d))

    @one_message
    def seconds(self, calls: int) -> float:
        """By the card's clock: of one launch that Python makes, or of several that it replays as CUDA graphs, as those
        of the CUDA kernels are: small products end before Python has made the next launch."""
        if self.device.type == "cpu":
            return super().seconds(calls)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.settings(), self.on_device():
            work = [self.graph(launches).replay for launches in batches(calls)] if calls > 1 else [self.launch]
            began.record()
            for each in work:
                each()
            ended.record()
            ended.synchronize()
        return float(began.elapsed_time(ended)) / 1000 / calls

    def graph(self, launches: int) -> torch.cuda.CUDAGraph:
        """So many launches, one behind the other. A run has come before: nothing is compiled or chosen any more."""
        if launches not in self.graphs:
            made = torch.cuda.CUDAGraph()
            with torch.cuda.graph(made, capture_error_mode="thread_local"):
                for _ in range(launches):
                    self.launch()
            self.graphs[launches] = made
        return self.graphs[launches]

    def placed(self, name: str, buffer: np.ndarray) -> torch.Tensor:
        """A buffer where the kernel reads it: on the CPU the same memory."""
        if self.device.type == "cpu":
            return torch.from_numpy(buffer)
        copy = Copy.of(buffer)
        whole = torch.from_numpy(copy.whole).to(self.device)
        self.copies[name] = copy, whole
        return copy.inner(whole)

    def _from_card(self, name: str) -> np.ndarray:
        """A matrix with its margins, as it is now."""
        found: np.ndarray = self.copies[name][1].cpu().numpy()
        return found

    def matrix(self, buffer: torch.Tensor, rows: int, columns: int, leading: int) -> torch.Tensor:
        """A view (rows, columns) of a buffer."""
        strides = (1, leading) if self.gemm.order == "column" else (leading, 1)
        return buffer.as_strided((rows, columns), strides)


class Matmul(TorchLaunch):
    """torch.mm into D; alpha and beta in passes over D by themselves, whose time counts, as with NumPy.

    `settings`: values of the attributes of a module of torch's settings, while it multiplies.
    """

    def __init__(self, operands: Operands, device: str, holder: object, settings: Mapping[str, object]) -> None:
        super().__init__(operands, device)
        self.holder, self.values = holder, settings
        self.facts: Mapping[str, object] = {"torch": torch.__version__, **settings}

    def settings(self) -> AbstractContextManager[object]:
        return with_values(self.holder, self.values)

    def launch(self) -> None:
        if self.a.dtype == self.d.dtype:
            torch.mm(self.a, self.b, out=self.d)
        else:
            torch.mm(self.a, self.b, self.d.dtype, out=self.d)
        if self.gemm.alpha != 1:
            self.d.mul_(self.gemm.alpha)
        if self.gemm.beta:
            self.d.add_(self.c, alpha=self.gemm.beta)


def by_cublas(operands: Operands) -> Matmul:
    """On the GPU; TF32 for `tf32` alone, and no sum of fp16 or bf16 in less than fp32."""
    precision = "tf32" if operands.gemm.dtype == "tf32" else "ieee"
    sums = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    settings = {"fp32_precision": precision, **dict.fromkeys(sums, False)}
    made = Matmul(operands, card_name(), torch.backends.cuda.matmul, settings)
    library = str(torch.backends.cuda.preferred_blas_library()).rpartition(".")[2]  # cuBLAS, or cuBLASLt
    made.facts = {**made.facts, "cuda": torch.version.cuda, "library": library}
    return made


class OneDnn(Matmul):
    """By oneDNN, which rounds float32 tensors to bfloat16 and adds up in float32. Raises RunError where it does not.

    Asked for each problem, by the numbers of a product of these sizes and layouts: torch leaves some to MKL.
    """

    precision: ClassVar[str] = "bf16"  # as torch calls it

    @one_message
    def __init__(self, operands: Operands, threads: int) -> None:
        settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch's stubs lack it
        super().__init__(operands, "cpu", settings, {"fp32_precision": self.precision})
        self.a, self.b = self.a.float(), self.b.float()  # strides stay; leading dimensions become the smallest
        self.threads = threads
        self.rest_s = OMP_SPINS_S if threads > 1 else 0.0
        self.facts = {**self.facts, "threads": threads}
        if not self.multiplies_in_bfloat16():
            raise RunError(f"torch multiplies {self.gemm} in float32 here")

    @contextmanager
    def settings(self) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with super().settings():
                yield
        finally:
            torch.set_num_threads(before)

    def multiplies_in_bfloat16(self) -> bool:
        """By a product of numbers that bfloat16 rounds to 1, laid as A, B and D are."""
        a, b = torch.full_like(self.a, 1 + 2**-10), torch.ones_like(self.b)
        with self.settings():
            found = torch.mm(a, b, out=torch.empty_strided(self.d.size(), self.d.stride()))
        return float(found[0, 0]) < self.gemm.k * (1 + 2**-11)


@contextmanager
def with_values(holder: object, values: Mapping[str, object]) -> Iterator[None]:
    """Attributes of `holder` for a while; they are put back also where something is raised."""
    before = {name: getattr(holder, name) for name in values}
    try:
        for name, value in values.items():
            setattr(holder, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)
