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
