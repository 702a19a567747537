"""Whether torch has compiled: variables switch its compilers off, and torch then runs what it was given, silently."""

from __future__ import annotations

import os

import torch

DYNAMO = ("TORCHDYNAMO_", "TORCH_COMPILE_")  # how the variables begin that torch.compile reads
SCRIPT = ("PYTORCH_JIT",)  # the one that torch.jit.script reads


def compiled_graphs() -> int:
    """How many graphs torch has compiled in this process; none where its compiler is switched off."""
    return int(torch._dynamo.utils.counters["aot_autograd"]["ok"])


def compiled_nothing(variables: tuple[str, ...]) -> str:
    """What to say of a step that was to be compiled, with those of the variables that are set."""
    set_here = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(variables)]
    why = f" ({', '.join(set_here)} is set)" if set_here else ""
    return f"torch compiled nothing of this step{why}"


def drop_compilations() -> None:
    """Drop the kernels that wait to be compiled, where the process is about to end: Python waits there for torch's
    threads, which would compile all of them first. Those that are being compiled are waited for."""
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads

    if get_compile_threads() > 1:
        AsyncCompile.pool().shutdown(wait=False, cancel_futures=True)
