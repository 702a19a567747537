"""What an operand on another device costs: a product with both in place, with one elsewhere, and copied (row A2)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipeline.backends.shared.form_bench import WrongResult
from pipeline.backends.shared.matrices import Matrices
from pipeline.raised import first_line
from pipeline.stages.matmul.problem import Operands, Problem, operands


@dataclass
class Misplaced:
    """Seconds of a product, waited for, with A on `here` and B on `there`, in turns; each result was right.

    `in_place`: with B on `here` too. `as_written`: with B elsewhere and nothing done about it; `result_on`: where the
    result then is; `refused`: what the framework raises instead. `copied`: with B copied to `here` each time.
    """

    here: str = ""
    there: str = ""
    missing: str | None = None
    fault: str | None = None
    refused: str | None = None
    result_on: str | None = None
    in_place: list[float] = field(default_factory=list)
    as_written: list[float] = field(default_factory=list)
    copied: list[float] = field(default_factory=list)


def misplaced(here: Matrices, there: Matrices, problem: Problem, seed: int, rounds: int) -> Misplaced:
    """Time a product whose operands lie on two devices of one framework."""
    made = operands(problem, seed)
    a, b = (here.put(each, problem.dtype) for each in (made.a, made.b))
    b_there = there.put(made.b, problem.dtype)
    here.wait([a, b])
    there.wait([b_there])
    found = Misplaced(here.device(a), there.device(b_there))
    ways: dict[str, Callable[[], Any]] = {
        "in_place": lambda: here.product(a, b),
        "as_written": lambda: here.product(a, b_there),
        "copied": lambda: here.product(a, here.moved(b_there)),
    }
    try:
        result = ways["as_written"]()
        here.wait([result])
        found.result_on = here.device(result)
    except Exception as error:  # whatever a framework raises of operands on two devices
        found.refused = first_line(error).partition(". ")[0]
        del ways["as_written"]
    try:
        for way in ways.values():
            made.reference.compare(here.numbers(way()))
        for _ in range(rounds):
            for name, way in ways.items():
                getattr(found, name).append(_seconds(here, way, made))
    except WrongResult as error:
        return Misplaced(found.here, found.there, fault=str(error))
    except Exception as error:  # whatever a framework raises, of memory above all: what was found before is kept
        return Misplaced(found.here, found.there, fault=first_line(error))
    return found


def _seconds(matrices: Matrices, way: Callable[[], Any], made: Operands) -> float:
    """Seconds that one product takes. Raises WrongResult for a result that is not right."""
    began = time.perf_counter()
    result = way()
    matrices.wait([result])
    took = time.perf_counter() - began
    if not matrices.ready([result]):
        raise WrongResult("the timer was stopped before its result was computed")
    made.reference.compare_sums(matrices.numbers(result))
    return took
