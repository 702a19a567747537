"""The functions that measure a GPU's ceilings: products on registers, products of warpgroups, bytes from its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pipeline.kernels.cuda.function import COMMON, CudaFunction, Triple
from pipeline.kernels.cuda.tma import SHARED_BY_ALL
from pipeline.kernels.gemm import DTYPES, Gemm, decode, encode

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 4096  # int8's sums of 16 products, the largest that there are, stay below 2^31
# The instruction by which a Tensor Core multiplies fastest, by the major number of the compute capability; elsewhere it
# is a warp's (mma). PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions" and "TensorCore 5th Generation".
FASTEST = {9: "wgmma", 10: "tcgen05", 11: "tcgen05"}
LACKING = (("int8", 103),)  # what that instruction does not multiply there
# Units of rounding of a sum in a round, at most: a Tensor Core cuts off what is small beside the largest addend.
LOST = 8


class Probe(CudaFunction):
    """Products of the same small matrices, `rounds` times over: D = rounds·A·B for each team of threads.

    `team`: its threads; `shape`: M, N and K of a round, by dtype. `blocks`: of a multiprocessor. `what`: in words.
    """

    block: Triple = (256, 1, 1)
    team: ClassVar[int]
    blocks: ClassVar[int]
    what: ClassVar[str]
    word: ClassVar[str]
    rows: ClassVar[int]  # of a tile of A, which lies column by column

    @property
    def name(self) -> str:
        return f"the probe {self.word}"

    def shape(self, dtype: str) -> tuple[int, int, int]:
        """M, N and K that a team multiplies in a round."""
        raise NotImplementedError

    def teams(self, blocks: int) -> int:
        """In so many blocks."""
        return blocks * self.block[0] // self.team

    def flop(self, dtype: str, blocks: int, rounds: int) -> int:
        """Operations of a launch."""
        m, n, k = self.shape(dtype)
        return 2 * m * n * k * rounds * self.teams(blocks)


class OnRegisters(Probe):
    """Products of a warp, all of whose operands are registers (probe.cu)."""

    word = "mma"
    what = "products of warps, on registers"
    sources = ("probe.cu", COMMON)
    specific = False
    entry = "probe"
    team, blocks, rows = 32, 2, 16
    architectures: ClassVar[Mapping[str, int]] = {"fp16": 75, "int8": 75, "bf16": 80, "tf32": 80}
    registers = 128

    def shape(self, dtype: str) -> tuple[int, int, int]:
        return 32, 64, 8 if dtype == "tf32" else 16


class MultiplyAdds(Probe):
    """Multiply-adds of each thread, without Tensor Cores (probe.cu)."""

    word = "fma"
    what = "multiply-adds of threads, on registers"
    sources = ("probe.cu", COMMON)
    specific = False
    entry = "probe"
    team, blocks, rows = 32, 2, 32
    architectures: ClassVar[Mapping[str, int]] = {"fp32": 75}
    tensor_core: ClassVar[Mapping[str, str]] = {"fp32": "FFMA"}
    registers = 128

    def shape(self, dtype: str) -> tuple[int, int, int]:
        return 32, 32, 1


class OfWarpgroups(Probe):
    """Products of a warpgroup, whose sums alone are registers (probe_wgmma.cu)."""

    word = "wgmma"
    what = "products of warpgroups, from shared memory"
    sources = ("probe_wgmma.cu", *SHARED_BY_ALL)
    specific = True
    entry = "probe_wgmma"
    team, blocks, rows = 128, 1, 64
    architectures: ClassVar[Mapping[str, int]] = {"fp16": 90, "bf16": 90}
    tensor_core: ClassVar[Mapping[str, str]] = {"fp16": "HGMMA", "bf16": "HGMMA"}
    registers = 168

    def shape(self, dtype: str) -> tuple[int, int, int]:
        return 64, 256, 64


class Triad(CudaFunction):
    """Two arrays of the card's memory read, one written (triad.cu)."""

    sources = ("triad.cu",)
    specific = False
    entry = "triad"
    block: Triple = (256, 1, 1)
    architectures: ClassVar[Mapping[str, int]] = {"fp32": 75}
    tensor_core: ClassVar[Mapping[str, str]] = {}
    registers = 64

    @property
    def name(self) -> str:
        return "the triad"


PROBES: tuple[Probe, ...] = (MultiplyAdds(), OnRegisters(), OfWarpgroups())
TRIAD = Triad()


def unprobed(dtype: str, architecture: int) -> str | None:
    """The instruction that multiplies `dtype` fastest there, where no probe has it: then theirs are no ceilings."""
    if (dtype, architecture) in LACKING or dtype in MultiplyAdds.architectures:
        return None
    word = FASTEST.get(architecture // 10)
    made = {one.word for one in PROBES if one.compiles_for(dtype, architecture)}
    return None if word in made else word


def files() -> tuple[Path, ...]:
    """Their sources."""
    every = (one for part in (*PROBES, TRIAD) for one in (part.source, *part.beside))
    return tuple(dict.fromkeys(every))


@dataclass(frozen=True)
class Work:
    """What a probe multiplies. `a` and `b`: as the card has them. `once`: A·B in float64, of a single round; `size`: of
    their absolute values. `dtype`: of A and B.
    """

    dtype: str
    a: np.ndarray
    b: np.ndarray
    once: np.ndarray
    size: np.ndarray

    def fault(self, d: np.ndarray, rounds: int) -> str | None:
        """What is wrong with the teams' D, one behind the other; None where nothing is."""
        rows, columns = self.once.shape
        found = d.reshape(-1, columns, rows).transpose(0, 2, 1).astype(np.float64)
        bound = DTYPES[self.dtype].unit * LOST * rounds * rounds * self.size
        wrong = ~(np.abs(found - rounds * self.once) <= bound)  # a NaN is wrong
        if not wrong.any():
            return None
        team, row, column = (int(index[0]) for index in np.nonzero(wrong))
        return (
            f"{int(wrong.sum())} of {wrong.size} sums are wrong: that of team {team}, row {row}, column {column} is "
            f"{found[team, row, column]:.7g}, not {rounds * self.once[row, column]:.7g}"
        )


def work(probe: Probe, dtype: str, seed: int = 0) -> Work:
    """Numbers at random, as kernels get them: a Tensor Core takes less power, and runs faster, on numbers alike."""
    m, n, k = probe.shape(dtype)
    generator = np.random.default_rng(seed)

    def drawn(rows: int, columns: int) -> np.ndarray:
        if dtype == "int8":
            return encode(generator.integers(-128, 128, (rows, columns)).astype(np.float32), dtype)
        return encode(generator.uniform(-1, 1, (rows, columns)).astype(np.float32), dtype)

    a, b = drawn(m, k), drawn(k, n)
    tiles = a.reshape(m // probe.rows, probe.rows, k).transpose(0, 2, 1)
    a64, b64 = decode(a, dtype), decode(b, dtype)
    return Work(
        dtype,
        np.ascontiguousarray(tiles).ravel(),
        np.ascontiguousarray(b.T).ravel(),
        a64 @ b64,
        np.abs(a64) @ np.abs(b64),
    )


def room(probe: Probe, dtype: str, blocks: int) -> np.ndarray:
    """For the D of all teams: NaN, or a number that no sum is."""
    m, n, _ = probe.shape(dtype)
    out = Gemm(m=m, n=n, k=1, dtype=dtype).type.out
    return np.full(probe.teams(blocks) * m * n, np.nan if np.dtype(out).kind == "f" else -(2**31), out)
