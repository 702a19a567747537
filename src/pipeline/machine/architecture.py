"""What the arithmetic units of an NVIDIA GPU can compute with, by its compute capability.

The one rule of it: what runs here (`capability.py`) and the table of known GPUs (`known_gpus.py`) both ask this file.
Sources: NVIDIA's CUDA Programming Guide 13.1 (2025), tables 30 and 33 (Tensor Cores from 7.5 on), and CUDA C++ Best
Practices Guide, "Throughput of Native Arithmetic Instructions"; for 7.0 the Volta white paper (2017), for FP16 on the
CUDA cores of 8.6, 8.9 and 12.0 the white papers of those GPUs; for INT1 the guide's sub-byte WMMA (7.5 to 8.9: from
Hopper on NVIDIA names no INT1 of the Tensor Cores).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PRECISIONS = ("FP64", "FP32", "TF32", "FP16", "BF16", "FP8", "FP4", "INT8", "INT4", "INT1")

Capability = tuple[int, int]


@dataclass(frozen=True)
class Architecture:
    """An SM: its units, the CUDA cores' multiply-adds a clock by precision, and what the Tensor Cores take."""

    name: str
    cuda_cores: int
    tensor_cores: int
    cuda: Mapping[str, int]
    tensor: tuple[str, ...] = ()

    def has(self, precision: str) -> bool:
        """Whether any of its units multiplies in `precision`."""
        return precision in self.cuda or precision in self.tensor

    def slow(self, precision: str) -> bool:
        """Whether CUDA cores have `precision` for compatibility only: at a sixteenth of FP32's rate or less."""
        return 16 * self.cuda[precision] <= self.cuda["FP32"]


_FP16_TO_INT1 = ("FP16", "INT8", "INT4", "INT1")
_AMPERE = ("TF32", "BF16", *_FP16_TO_INT1)

# INT8 on CUDA cores is dp4a, four multiply-adds an instruction. FP32 of 8.6 and newer is twice that of 8.0.
ARCHITECTURES: dict[Capability, Architecture] = {
    (3, 0): Architecture("Kepler", 192, 0, {"FP64": 8, "FP32": 192}),
    (5, 0): Architecture("Maxwell", 128, 0, {"FP64": 4, "FP32": 128}),
    (5, 3): Architecture("Maxwell", 128, 0, {"FP64": 4, "FP32": 128, "FP16": 256}),
    (6, 0): Architecture("Pascal", 64, 0, {"FP64": 32, "FP32": 64, "FP16": 128}),
    (6, 1): Architecture("Pascal", 128, 0, {"FP64": 4, "FP32": 128, "FP16": 2, "INT8": 512}),
    (7, 0): Architecture("Volta", 64, 8, {"FP64": 32, "FP32": 64, "FP16": 128, "INT8": 256}, ("FP16",)),
    (7, 5): Architecture("Turing", 64, 8, {"FP64": 2, "FP32": 64, "FP16": 128, "INT8": 256}, _FP16_TO_INT1),
    (8, 0): Architecture(
        "Ampere", 64, 4, {"FP64": 32, "FP32": 64, "FP16": 256, "BF16": 128, "INT8": 256}, ("FP64", *_AMPERE)
    ),
    (8, 6): Architecture("Ampere", 128, 4, {"FP64": 2, "FP32": 128, "FP16": 128, "BF16": 128, "INT8": 256}, _AMPERE),
    (8, 9): Architecture(
        "Ada", 128, 4, {"FP64": 2, "FP32": 128, "FP16": 128, "BF16": 128, "INT8": 256}, ("FP8", *_AMPERE)
    ),
    (9, 0): Architecture(
        "Hopper",
        128,
        4,
        {"FP64": 64, "FP32": 128, "FP16": 256, "BF16": 256, "INT8": 256},
        ("FP64", "TF32", "FP16", "BF16", "FP8", "INT8"),
    ),
    (10, 0): Architecture(
        "Blackwell",
        128,
        4,
        {"FP64": 64, "FP32": 128, "FP16": 256, "BF16": 256, "INT8": 256},
        ("FP64", "TF32", "FP16", "BF16", "FP8", "FP4", "INT8"),
    ),
    (12, 0): Architecture(
        "Blackwell",
        128,
        4,
        {"FP64": 2, "FP32": 128, "FP16": 128, "BF16": 128, "INT8": 256},
        ("TF32", "FP16", "BF16", "FP8", "FP4", "INT8"),
    ),
}


def architecture(capability: Capability) -> Architecture:
    """The architecture of a compute capability: its own, or the newest that is not newer than it."""
    older = [known for known in ARCHITECTURES if known <= capability]
    return ARCHITECTURES[max(older, default=min(ARCHITECTURES))]


def since(precision: str) -> str:
    """The oldest compute capability that has `precision`, as people write it."""
    major, minor = min(known for known, units in ARCHITECTURES.items() if units.has(precision))
    return f"{major}.{minor}"


# KiB of shared memory that a block may have, by compute capability (CUDA Programming Guide, "Technical Specifications
# per Compute Capability").
_BLOCK_SHARED = {80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}


def block_shared(architecture: int) -> int | None:
    """Bytes of shared memory that a block may have, for an architecture as 80 for 8.0; None where it is not known."""
    known = _BLOCK_SHARED.get(architecture)
    return None if known is None else known * 1024
