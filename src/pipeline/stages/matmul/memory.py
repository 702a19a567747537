"""The memory of one product: before its operands are there, with them, with the result, and at most (row A4)."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from pipeline.backends.shared.matrices import Matrices
from pipeline.machine.allocator import give_back_freed_memory
from pipeline.machine.memory import forget_process_peak
from pipeline.stages.matmul.problem import Problem, operands

TINY = 16  # the size of a first product, with which a framework allocates what it keeps


@dataclass(frozen=True)
class Used:
    """Bytes in use: of a GPU by the framework's allocator, else of the process in RAM. `matrices`: what three need.

    `peak`: the most since `before`, or since the process began where `peak_of` says so.
    """

    matrices: int
    before: int
    with_operands: int
    with_result: int
    peak: int
    peak_of: str = "product"


def used(matrices: Matrices, problem: Problem, seed: int) -> Used:
    """Of a product in a process that has made no other."""
    made = operands(problem, seed)
    tiny = operands(Problem(problem.dtype, TINY), seed)
    matrices.numbers(matrices.product(*(matrices.put(each, problem.dtype) for each in (tiny.a, tiny.b))))
    _now(matrices)  # imports psutil: what that frees later would be taken from the operands
    forgotten = forget_process_peak()
    before = _now(matrices)
    a, b = (matrices.put(each, problem.dtype) for each in (made.a, made.b))
    matrices.wait([a, b])
    with_operands = _now(matrices)
    result = matrices.product(a, b)
    matrices.wait([result])
    peak, with_result = matrices.memory().peak, _now(matrices)
    peak_of = "product" if forgotten else "process"
    return Used(problem.matrices_bytes, before, with_operands, with_result, max(with_result, peak), peak_of)


def _now(matrices: Matrices) -> int:
    """Bytes in use, without what the C library keeps of memory that was freed."""
    gc.collect()
    give_back_freed_memory()
    return matrices.memory().now
