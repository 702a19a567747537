"""Refuse sizes beyond the memory of the host, or of the GPU, before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import UserError
from pipeline.kernels.gemm import Gemm
from pipeline.kernels.on_card import card
from pipeline.machine.device import gpu_free_bytes
from pipeline.machine.free_memory import free_bytes
from pipeline.report.table import size as in_bytes


def check_memory(problems: Sequence[Gemm], kernels: int) -> None:
    """One problem at a time. Raises UserError."""
    free = free_bytes()
    for gemm in problems:
        need = needed_bytes(gemm, kernels)
        if need > free:
            raise UserError(
                f"stage.sizes=[[{gemm.m},{gemm.n},{gemm.k}]]: needs {in_bytes(need)} of memory for its operands "
                f"and their check in float64, and {in_bytes(free)} are free; use smaller sizes"
            )


def check_memory_around(problems: Sequence[Gemm], around: int | None) -> None:
    """All of them at once, since they are timed in turns. Raises UserError."""
    need, free = sum(needed_bytes(gemm, 2) for gemm in problems), free_bytes()
    if need > free:
        raise UserError(
            f"stage.around={around}: needs {in_bytes(need)} of memory for its {len(problems)} sizes, and "
            f"{in_bytes(free)} are free; use a smaller one"
        )


def check_card_memory(problems: Sequence[Gemm], beside: Sequence[Gemm], kernels: int, around: int | None) -> None:
    """Of the GPU, where each of its `kernels` has copies of the operands; `beside`: those of `around`. Raises
    UserError."""
    gpu = card()
    if not kernels or gpu is None:
        return
    free = gpu_free_bytes(gpu.index)
    asked_for = [(f"stage.sizes=[[{gemm.m},{gemm.n},{gemm.k}]]", kernels * gemm.memory) for gemm in problems]
    together = min(kernels, 2) * sum(gemm.memory for gemm in beside)  # all of them are timed in turns
    for what, need in (*asked_for, (f"stage.around={around}", together)):
        if need > free:
            raise UserError(
                f"{what}: needs {in_bytes(need)} of memory on gpu:{gpu.index} ({gpu.name}), where each kernel has "
                f"copies of the operands, and {in_bytes(free)} are free; use smaller ones, or fewer stage.kernels"
            )


def needed_bytes(gemm: Gemm, kernels: int) -> int:
    """Memory for the operands, a D of each kernel, and what checks D: matrices in float64.

    These are A and B with their absolute values, and D with its squares.
    """
    check = 16 * (gemm.m * gemm.k + gemm.k * gemm.n) + 16 * gemm.m * gemm.n
    return gemm.memory + kernels * gemm.memory_of_d + check
