"""The table of known GPUs: what the maker states, held against what follows from the units and the course's table."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import pipeline

from pipeline.machine import gpu_table
from pipeline.machine.architecture import ARCHITECTURES, PRECISIONS, architecture, since
from pipeline.machine.capability import runnable
from pipeline.machine.device import Gpu
from pipeline.machine.known_gpus import KNOWN, KnownGpu, known
from pipeline.machine.precision import FORMATS

NAMES = [gpu.name for gpu in KNOWN]
BY_NAME = {gpu.name: gpu for gpu in KNOWN}

# Row A12: the table of the course "Machine learning on GPUs", as NVIDIA's page on Tensor Cores has it; extended.
TENSOR = {
    "P4": "",
    "P100 SXM2": "",
    "V100 SXM2": "FP16",
    "T4": "FP16 INT8 INT4 INT1",
    "A100 SXM 40": "FP64 TF32 FP16 BF16 INT8 INT4 INT1",
    "RTX 4090": "TF32 FP16 BF16 FP8 INT8 INT4 INT1",
    "H100 SXM": "FP64 TF32 FP16 BF16 FP8 INT8",
    "H200 SXM": "FP64 TF32 FP16 BF16 FP8 INT8",
    "B200": "FP64 TF32 FP16 BF16 FP8 FP4 INT8",
    "RTX 5090": "TF32 FP16 BF16 FP8 FP4 INT8",
}
CUDA = {
    "P4": "FP64 FP32 FP16 INT8",
    "P100 SXM2": "FP64 FP32 FP16",
    "V100 SXM2": "FP64 FP32 FP16 INT8",
    "T4": "FP64 FP32 FP16 INT8",
    "A100 SXM 40": "FP64 FP32 FP16 BF16 INT8",
    "H100 SXM": "FP64 FP32 FP16 BF16 INT8",
}
SLOW = {"P4": {"FP64", "FP16"}, "P100 SXM2": set(), "T4": {"FP64"}, "L4": {"FP64"}, "H100 SXM": set()}

# Operations a clock and SM of the Tensor Cores: FP16's, and the other formats' as multiples of it.
FP16_OPERATIONS = {(7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192}
GEFORCE = ("RTX 4090", "RTX 5090")  # half of that with sums in FP32
MULTIPLES = {"TF32": 0.5, "FP16": 1, "BF16": 1, "FP8": 2, "INT8": 2, "INT4": 4, "FP4": 4, "INT1": 16}
FP64_OPERATIONS = {(8, 0): 128, (9, 0): 256, (10, 0): 128}

# CUDA cores and Tensor Cores, where the maker's documents (`source` of the row) state how many there are.
CORES = {
    "P4": (2560, 0),
    "P100 SXM2": (3584, 0),
    "V100 SXM2": (5120, 640),
    "T4": (2560, 320),
    "A100 SXM 40": (6912, 432),
    "L40S": (18176, 568),
    "RTX 4090": (16384, 512),
    "H100 PCIe": (14592, 456),
    "H100 SXM": (16896, 528),
    "RTX 5090": (21760, 680),
}


@pytest.mark.parametrize("name", CORES)
def test_the_cores_stated_are_those_of_the_sms(name: str) -> None:
    gpu = BY_NAME[name]
    assert CORES[name] == (gpu.cuda_cores, gpu.tensor_cores)


def test_each_row_has_a_source() -> None:
    assert all(gpu.source for gpu in KNOWN)


@pytest.mark.parametrize("name", NAMES)
def test_no_rate_is_stated_that_the_units_do_not_have(name: str) -> None:
    gpu = BY_NAME[name]
    assert gpu.cuda.keys() <= gpu.architecture.cuda.keys()
    assert gpu.tensor.keys() <= set(gpu.architecture.tensor)
    assert set(gpu.architecture.cuda) | set(gpu.architecture.tensor) <= set(PRECISIONS)
    assert gpu.capability in ARCHITECTURES


def clocks(gpu: KnownGpu) -> dict[str, float]:
    """The clock in GHz at which the units would reach each rate that is stated: one clock for a kind of unit."""
    cuda = {f"cuda {name}": rate / (gpu.sms * 2 * gpu.architecture.cuda[name]) for name, rate in gpu.cuda.items()}
    half = 0.5 if gpu.name in GEFORCE else 1.0
    tensor = {}
    for name, rate in gpu.tensor.items():
        if name == "FP64":
            operations = float(FP64_OPERATIONS[gpu.capability])
        else:
            integers = 1.0 if name.startswith(("INT", "FP4")) else half
            operations = FP16_OPERATIONS.get(gpu.capability, 1024) * MULTIPLES[name] * integers
        tensor[f"tensor {name}"] = rate / (gpu.sms * operations)
    return {name: 1000 * clock for name, clock in (cuda | tensor).items()}


@pytest.mark.parametrize("name", NAMES)
def test_all_rates_follow_from_one_clock(name: str) -> None:
    """Which no figure "with sparsity" would: it needs twice the clock of its neighbours."""
    result = clocks(BY_NAME[name])
    assert result
    assert all(1.0 < clock < 2.7 for clock in result.values()), result
    assert max(result.values()) / min(result.values()) < 1.15, result  # some have a lower clock for the Tensor Cores


@pytest.mark.parametrize("name", NAMES)
def test_bf16_has_the_rate_of_fp16_in_tensor_cores(name: str) -> None:
    gpu = BY_NAME[name]
    if "BF16" in gpu.architecture.tensor:  # the table has one column for both
        assert gpu.tensor["BF16"] == gpu.tensor["FP16"]


def test_what_tensor_cores_and_cuda_cores_take() -> None:
    for name, wanted in TENSOR.items():
        assert set(BY_NAME[name].architecture.tensor) == set(wanted.split()), name
    for name, wanted in CUDA.items():
        assert set(BY_NAME[name].architecture.cuda) == set(wanted.split()), name
    for name, slow in SLOW.items():
        units = BY_NAME[name].architecture
        assert {precision for precision in units.cuda if units.slow(precision)} == slow, name


@pytest.mark.parametrize("name", NAMES)
def test_what_runs_is_what_the_units_have(name: str) -> None:
    gpu = BY_NAME[name]
    result = runnable("torch", "gpu", Gpu(0, name, 1, gpu.capability))
    units = {"float64": "FP64", "float32": "FP32", "float16": "FP16", "bfloat16": "BF16"}
    for precision, form in FORMATS.items():
        needed = "TF32" if precision == "tf32" else units[form.compute]
        assert (result[precision] is None) == gpu.architecture.has(needed)


def test_since_when() -> None:
    assert {name: since(name) for name in ("FP16", "BF16", "TF32", "FP8", "FP4")} == {
        "FP16": "5.3",
        "BF16": "8.0",
        "TF32": "8.0",
        "FP8": "8.9",
        "FP4": "10.0",
    }


@pytest.mark.parametrize(
    ("capability", "like"), [((8, 7), (8, 6)), ((6, 2), (6, 1)), ((12, 1), (12, 0)), ((2, 0), (3, 0)), ((9, 0), (9, 0))]
)
def test_a_capability_that_is_not_listed(capability: tuple[int, int], like: tuple[int, int]) -> None:
    assert architecture(capability) is ARCHITECTURES[like]


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("Tesla P4", "P4"),
        ("Tesla P100-SXM2-16GB", "P100 SXM2"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
    ],
)
def test_a_gpu_is_known_by_its_drivers_name(driver: str, name: str | None) -> None:
    found = known(driver)
    assert (found.name if found else None) == name


def test_the_gpu_of_this_machine_is_marked() -> None:
    here = (Gpu(0, "NVIDIA A10G", 1, (8, 6)), Gpu(1, "NVIDIA H200", 1, (9, 0)), Gpu(2, "NVIDIA H200", 1, (9, 0)))
    result = gpu_table.rows(here)
    marked = [(name, value) for name, value in result if name.startswith("*")]
    assert [name for name, _ in marked] == ["* H200 SXM"] * 4
    assert marked[-1][1] == "is gpu:1 here: NVIDIA H200"
    assert not [name for name, _ in gpu_table.rows(()) if name.startswith("*")]


def test_the_table_fits_80_columns_and_needs_no_framework(tmp_path: Path) -> None:
    result = pipeline(tmp_path, "stage=devices", "stage.gpus=known", COLUMNS="80")
    assert (result.returncode, result.stderr) == (0, "")
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "H100 SXM        CT   C    T    CT   CT   T    -    CT   -    -" in lines
    assert "A100 SXM 40     Ampere 8.0     108  6912    432   40 GB   1555    400" in lines
    assert "A100 SXM 40     9.7  19.5 78   ?     19.5 156  312  -    -    624  1248 4992" in lines
    for gpu in KNOWN:  # three tables and the sources
        assert sum(line.startswith(f"{gpu.name} ") for line in lines) == 4
    assert not (tmp_path / "runs").exists()


@pytest.mark.wide
def test_the_table_of_this_machine_points_to_it(tmp_path: Path) -> None:
    result = pipeline(tmp_path, "stage=devices", COLUMNS="80", PIPELINE_CACHE=str(tmp_path))  # nothing is kept there
    assert result.returncode == 0
    assert "stage.gpus=known" in result.stdout
    assert len(result.stdout.splitlines()) <= 30
