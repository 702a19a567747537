"""GPUs side by side, as their maker states them. What follows from the compute capability is in `architecture.py`.

Rates are dense, in TFLOP/s (TOP/s of integers) at the boost clock; where a data sheet gives only figures "with
sparsity", half of them stands here, since those count products with zeros that are left out. On GeForce, whose Tensor
Cores are half as fast when they accumulate in FP32, that is the figure, since training accumulates so. What is not
stated, or not in one way by all of the maker's documents, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.machine.architecture import Architecture, architecture


@dataclass(frozen=True, kw_only=True)
class KnownGpu:
    """One GPU. `driver` matches the name that the driver gives; `cuda` and `tensor`: rates by precision."""

    name: str
    driver: str
    capability: tuple[int, int]
    sms: int
    cuda: Mapping[str, float]
    tensor: Mapping[str, float]
    memory_gb: int
    bandwidth_gb_s: int
    watts: int
    source: str

    @property
    def architecture(self) -> Architecture:
        return architecture(self.capability)

    @property
    def cuda_cores(self) -> int:
        return self.sms * self.architecture.cuda_cores

    @property
    def tensor_cores(self) -> int:
        return self.sms * self.architecture.tensor_cores

    def is_called(self, name: str) -> bool:
        """Whether the driver's `name` is this GPU's."""
        return re.fullmatch(rf"(NVIDIA |Tesla |GeForce )*({self.driver})", name) is not None


KNOWN: tuple[KnownGpu, ...] = (
    KnownGpu(
        name="P4",
        driver="P4",
        capability=(6, 1),
        sms=20,
        cuda={"FP32": 5.5, "INT8": 22},
        tensor={},
        memory_gb=8,
        bandwidth_gb_s=192,
        watts=75,
        source="Tesla P4 data sheet, 2016",
    ),
    KnownGpu(
        name="P100 SXM2",
        driver="P100-SXM2-16GB",
        capability=(6, 0),
        sms=56,
        cuda={"FP64": 5.3, "FP32": 10.6, "FP16": 21.2},
        tensor={},
        memory_gb=16,
        bandwidth_gb_s=732,
        watts=300,
        source="Pascal white paper, 2016; Tesla P100 data sheet, 2016 (bandwidth)",
    ),
    KnownGpu(
        name="V100 SXM2",
        driver="V100-SXM2-16GB",
        capability=(7, 0),
        sms=80,
        cuda={"FP64": 7.8, "FP32": 15.7, "FP16": 31.4},
        tensor={"FP16": 125},
        memory_gb=16,
        bandwidth_gb_s=900,
        watts=300,
        source="Volta white paper, 2017; Ampere white paper, 2020 (FP16 of the CUDA cores)",
    ),
    KnownGpu(
        name="T4",
        driver="T4",
        capability=(7, 5),
        sms=40,
        cuda={"FP32": 8.1},
        tensor={"FP16": 65, "INT8": 130, "INT4": 260},
        memory_gb=16,
        bandwidth_gb_s=320,
        watts=70,
        source="Turing white paper, 2018",
    ),
    KnownGpu(
        name="A10",
        driver="A10",
        capability=(8, 6),
        sms=72,  # as drivers are reported to say: the data sheet states no units
        cuda={"FP32": 31.2},
        tensor={"TF32": 62.5, "FP16": 125, "BF16": 125, "INT8": 250, "INT4": 500},
        memory_gb=24,
        bandwidth_gb_s=600,
        watts=150,
        source="A10 data sheet, 2021",
    ),
    KnownGpu(
        name="A100 SXM 40",
        driver="A100-SXM4-40GB",
        capability=(8, 0),
        sms=108,
        cuda={"FP64": 9.7, "FP32": 19.5, "FP16": 78, "BF16": 39},
        tensor={
            "FP64": 19.5,
            "TF32": 156,
            "FP16": 312,
            "BF16": 312,
            "INT8": 624,
            "INT4": 1248,
            "INT1": 4992,
        },
        memory_gb=40,
        bandwidth_gb_s=1555,
        watts=400,
        source="Ampere white paper, 2020",
    ),
    KnownGpu(
        name="A100 SXM 80",
        driver="A100-SXM4-80GB",
        capability=(8, 0),
        sms=108,
        cuda={"FP64": 9.7, "FP32": 19.5},
        tensor={"FP64": 19.5, "TF32": 156, "FP16": 312, "BF16": 312, "INT8": 624},
        memory_gb=80,
        bandwidth_gb_s=2039,
        watts=400,
        source="A100 data sheet, 2021",
    ),
    KnownGpu(
        name="L4",
        driver="L4",
        capability=(8, 9),
        sms=58,  # as drivers are reported to say: the data sheet states no units
        cuda={"FP32": 30.3},
        tensor={"TF32": 60, "FP16": 121, "BF16": 121, "FP8": 242.5, "INT8": 242.5},
        memory_gb=24,
        bandwidth_gb_s=300,
        watts=72,
        source="L4 data sheet, 2023 (half of its figures with sparsity)",
    ),
    KnownGpu(
        name="L40S",
        driver="L40S",
        capability=(8, 9),
        sms=142,
        cuda={"FP32": 91.6},
        # the sheet gives INT4 the rate of INT8, the white paper of the same chip twice that: left out
        tensor={"TF32": 183, "FP16": 362.05, "BF16": 362.05, "FP8": 733, "INT8": 733},
        memory_gb=48,
        bandwidth_gb_s=864,
        watts=350,
        source="L40S data sheet, 2023",
    ),
    KnownGpu(
        name="RTX 4090",
        driver="RTX 4090",
        capability=(8, 9),
        sms=128,
        cuda={"FP32": 82.6, "FP16": 82.6, "BF16": 82.6},
        tensor={"TF32": 82.6, "FP16": 165.2, "BF16": 165.2, "FP8": 330.3, "INT8": 660.6, "INT4": 1321.2},
        memory_gb=24,
        bandwidth_gb_s=1008,
        watts=450,
        source="Ada white paper, 2022 (accumulating in FP32)",
    ),
    KnownGpu(
        name="H100 PCIe",
        driver="H100 PCIe",
        capability=(9, 0),
        sms=114,
        cuda={"FP64": 25.6, "FP32": 51.2, "FP16": 102.4, "BF16": 102.4},
        tensor={"FP64": 51.2, "TF32": 378, "FP16": 756, "BF16": 756, "FP8": 1513, "INT8": 1513},
        memory_gb=80,
        bandwidth_gb_s=2039,
        watts=350,
        source="Hopper white paper, 2023",
    ),
    KnownGpu(
        name="H100 SXM",
        driver="H100 80GB HBM3",
        capability=(9, 0),
        sms=132,
        cuda={"FP64": 33.5, "FP32": 66.9, "FP16": 133.8, "BF16": 133.8},
        tensor={"FP64": 66.9, "TF32": 494.7, "FP16": 989.4, "BF16": 989.4, "FP8": 1978.9, "INT8": 1978.9},
        memory_gb=80,
        bandwidth_gb_s=3352,
        watts=700,
        source="Hopper white paper, 2023",
    ),
    KnownGpu(
        name="H200 SXM",
        driver="H200",
        capability=(9, 0),
        sms=132,  # as drivers are reported to say: the data sheet states no units
        cuda={"FP64": 34, "FP32": 67},
        tensor={"FP64": 67, "TF32": 494.5, "FP16": 989.5, "BF16": 989.5, "FP8": 1979, "INT8": 1979},
        memory_gb=141,
        bandwidth_gb_s=4800,
        watts=700,
        source="H200 data sheet, 2024 (half of its figures with sparsity)",
    ),
    KnownGpu(
        name="B200",
        driver="B200",
        capability=(10, 0),
        sms=148,  # as drivers are reported to say: the data sheet states no units
        cuda={"FP64": 37, "FP32": 75},
        tensor={
            "FP64": 37,
            "TF32": 1100,
            "FP16": 2250,
            "BF16": 2250,
            "FP8": 4500,
            "FP4": 9000,
            "INT8": 4500,
        },
        memory_gb=180,
        bandwidth_gb_s=7700,
        watts=1000,
        source="HGX B200 data sheet, 2025 (half of its figures with sparsity; an eighth of the board's memory)",
    ),
    KnownGpu(
        name="RTX 5090",
        driver="RTX 5090",
        capability=(12, 0),
        sms=170,
        cuda={"FP32": 104.8, "FP16": 104.8, "BF16": 104.8},
        tensor={"TF32": 104.8, "FP16": 209.5, "BF16": 209.5, "FP8": 419, "FP4": 1676, "INT8": 838},
        memory_gb=32,
        bandwidth_gb_s=1792,
        watts=575,
        source="RTX Blackwell white paper, 2025 (accumulating in FP32)",
    ),
)


def known(driver_name: str) -> KnownGpu | None:
    """The row of a GPU by the name that its driver gives; None for one that is not in the table."""
    return next((gpu for gpu in KNOWN if gpu.is_called(driver_name)), None)
