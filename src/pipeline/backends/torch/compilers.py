"""What torch's compiler has done: it leaves out, in whole or in part, what it cannot compile, and says little of it.

Variables of the environment switch it off, too; torch then runs what it was given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import torch

from pipeline.errors import RunError, cut

DYNAMO = ("TORCHDYNAMO_", "TORCH_COMPILE_")  # how the variables begin that torch.compile reads
SCRIPT = ("PYTORCH_JIT",)  # the one that torch.jit.script reads


def compiled_graphs() -> int:
    """How many graphs torch has compiled in this process; none where its compiler is switched off."""
    return int(torch._dynamo.utils.counters["aot_autograd"]["ok"])


def compilations() -> int:
    """A number that grows whenever torch's compiler is at work in this process, also where it leaves all as it is.

    It counts graphs, and functions unless each has to be one graph.
    """
    counters = torch._dynamo.utils.counters
    return int(counters["stats"]["unique_graphs"] + counters["frames"]["total"])


def reached_limit() -> int:
    """How many functions have been compiled anew so often that torch leaves them as they are from then on."""
    found = torch._dynamo.utils.counters["unimplemented"]
    return sum(n for reason, n in found.items() if reason.startswith("Dynamo recompile limit exceeded"))


def failed_conditions() -> dict[Any, int]:
    """How many conditions of each function's compilations have not held so far."""
    return {code: len(reasons) for code, reasons in torch._dynamo.utils.guard_failures.items()}


def why_anew(before: Mapping[Any, int]) -> str | None:
    """The condition on which a function had been compiled, and that no longer held when it was compiled anew; None
    where all held: what was compiled is a part that had not run yet, as the other side of a branch.

    `before`: failed_conditions() before that, since what else was compiled anew has conditions too.
    """
    reasons = [one[before.get(code, 0) :] for code, one in torch._dynamo.utils.guard_failures.items()]
    # Each reason begins with the number of the compilation whose condition it is, as 0/3: the newest says most.
    newest = max((str(one) for each in reasons for one in each), key=_compilation, default=None)
    if newest is None:
        return None
    condition, _, place = newest.partition("#")
    at = re.search(r"([^/\s]+):(\d+) in (\w+)", place.partition("\n")[0])
    where = f", in {at[3]} ({at[1]}, line {at[2]})" if at else ""
    return cut(" ".join(condition.partition(": ")[2].split()) or condition, 200) + where


def _compilation(reason: str) -> int:
    found = re.match(r"\d+/(\d+):", reason)
    return int(found[1]) if found else -1


def cannot_compile(what: str, error: Exception) -> RunError:
    """What to raise in place of an error of torch's compiler. `what`: "step", "pass"."""
    return RunError(f"backend.compile=true: torch cannot compile this {what}: {' '.join(str(error).split())[:300]}")


def check_compiled(what: str, before: int) -> None:
    """Raise RunError where torch has compiled nothing. `before`: compiled_graphs() then."""
    if compiled_graphs() == before:
        raise RunError(f"backend.compile=true: {compiled_nothing(DYNAMO, what)}; use backend.compile=false")


def compiled_nothing(variables: tuple[str, ...], what: str = "step") -> str:
    """What to say of what was to be compiled, with those of the variables that are set."""
    set_here = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(variables)]
    why = f" ({', '.join(set_here)} is set)" if set_here else ""
    return f"torch compiled nothing of this {what}{why}"


def drop_compilations() -> None:
    """Drop the kernels that wait to be compiled, where the process is about to end: Python waits there for torch's
    threads, which would compile all of them first. Those that are being compiled are waited for."""
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads

    if get_compile_threads() > 1:
        AsyncCompile.pool().shutdown(wait=False, cancel_futures=True)
