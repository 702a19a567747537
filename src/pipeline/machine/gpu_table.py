"""The table of known GPUs: what their units compute with, the hardware, the rates. It fits 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.machine.architecture import PRECISIONS
from pipeline.machine.device import Gpu
from pipeline.machine.known_gpus import KNOWN, KnownGpu, known

Row = tuple[str, str]

CUDA_RATES = ("FP64", "FP32", "FP16", "INT8")
TENSOR_RATES = ("FP64", "TF32", "FP16", "FP8", "FP4", "INT8", "INT4", "INT1")


def rows(here: tuple[Gpu, ...]) -> list[Row]:
    """All of it. The GPUs of this machine, `here`, are marked."""
    marked = {found.name: gpu for gpu in reversed(here) if (found := known(gpu.name))}
    return [
        *_part(_cells(PRECISIONS), _precisions, marked),
        ("", "C CUDA cores, c at 1/16 of FP32's rate or less, T Tensor Cores"),
        ("", ""),
        *_part("architecture   SMs  CUDA Tensor  memory   GB/s      W", _hardware, marked),
        ("", "compute capability after the architecture; cores of all SMs"),
        ("", ""),
        ("TFLOP/s, dense", f"{'CUDA cores':<21}Tensor Cores"),
        *_part(f"{_cells(CUDA_RATES)} {_cells(TENSOR_RATES)}", _rates, marked),
        ("", "BF16 as FP16 where Tensor Cores have it; INT: TOP/s; no sparsity"),
        ("", "-: the units do not have it; ?: not stated by the maker"),
        *((f"* {name}", f"is gpu:{gpu.index} here: {gpu.name}") for name, gpu in marked.items()),
        ("", ""),
        *((gpu.name, gpu.source) for gpu in KNOWN),
    ]


def _part(header: str, line: Callable[[KnownGpu], str], marked: Mapping[str, Gpu]) -> list[Row]:
    return [("", header), *((f"{'* ' if gpu.name in marked else ''}{gpu.name}", line(gpu)) for gpu in KNOWN)]


def _cells(texts: tuple[str, ...]) -> str:
    return "".join(f"{text:<5}" for text in texts)


def _precisions(gpu: KnownGpu) -> str:
    units = gpu.architecture
    marks = []
    for precision in PRECISIONS:
        cuda = ("c" if units.slow(precision) else "C") if precision in units.cuda else ""
        marks.append(cuda + ("T" if precision in units.tensor else "") or "-")
    return _cells(tuple(marks))


def _hardware(gpu: KnownGpu) -> str:
    major, minor = gpu.capability
    named = f"{gpu.architecture.name} {major}.{minor}"
    memory = f"{gpu.memory_gb} GB"
    return (
        f"{named:<14}{gpu.sms:>4}{gpu.cuda_cores:>6}{gpu.tensor_cores or '-':>7}{memory:>8}"
        f"{gpu.bandwidth_gb_s:>7}{gpu.watts:>7}"
    )


def _rates(gpu: KnownGpu) -> str:
    units = gpu.architecture
    cuda = tuple(_rate(gpu.cuda.get(name), name in units.cuda) for name in CUDA_RATES)
    tensor = tuple(_rate(gpu.tensor.get(name), name in units.tensor) for name in TENSOR_RATES)
    return f"{_cells(cuda)} {_cells(tensor)}"


def _rate(stated: float | None, has: bool) -> str:
    if stated is None:
        return "?" if has else "-"
    return f"{stated:.0f}" if stated >= 100 else f"{stated:.3g}"
