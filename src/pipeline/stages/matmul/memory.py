"""The memory of one product: before its operands are there, with them, with the result, and at most (row A4)."""

from __future__ import annotations

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
    give_back_freed_memory()  # else the operands would lie in what was in use before
    forgotten = forget_process_peak()
    before = matrices.memory().now
    a, b = (matrices.put(each, problem.dtype) for each in (made.a, made.b))
    matrices.wait([a, b])
    with_operands = matrices.memory().now
    result = matrices.product(a, b)
    matrices.wait([result])
    now, peak = matrices.memory()
    peak_of = "product" if forgotten else "process"
    return Used(problem.matrices_bytes, before, with_operands, now, max(now, peak), peak_of)
