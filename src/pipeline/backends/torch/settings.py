"""torch's process-wide settings: set for a run, put back afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from pipeline.machine.capability import Resolved
from pipeline.machine.found import check_torch
from pipeline.machine.precision import FORMATS

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@contextlib.contextmanager
def runtime_settings(experiment: Experiment, resolved: Resolved) -> Iterator[None]:
    """torch's process-wide settings as this run needs them, put back afterwards."""
    check_torch(torch, resolved.place)
    benchmark, threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    torch.backends.cudnn.benchmark = False
    if experiment.backend.threads:
        torch.set_num_threads(experiment.backend.threads)
    cards = [resolved.place.index] if resolved.place.kind == "gpu" else []
    try:
        with (
            torch.random.fork_rng(cards),
            _float32_products(FORMATS[resolved.precision].tf32),
            _memory_limit(experiment.device.memory_limit_bytes, resolved.place.index),
        ):
            yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _float32_products(tf32: bool) -> Iterator[None]:
    """float32 products in float32, or on a GPU in TF32, everywhere: cuBLAS, cuDNN and oneDNN.

    torch keeps these switches twice. They are set by the older names, which Lightning reads, but put back by both: the
    older alone make "medium" (bfloat16 products on a CPU) into "high", and cannot be read after a use of the newer.
    """
    cuda, cudnn, onednn = (vars(torch.backends)[name] for name in ("cuda", "cudnn", "mkldnn"))
    operations = (cuda.matmul, cudnn.conv, cudnn.rnn, onednn.matmul, onednn.conv)
    newer = [operation.fp32_precision for operation in operations]
    try:
        older = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    except RuntimeError:  # a mix of both names was in use: what the older ones said is past finding out
        older = None
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    cudnn.allow_tf32 = tf32
    onednn.matmul.fp32_precision = onednn.conv.fp32_precision = "ieee"
    try:
        yield
    finally:
        if older:
            torch.set_float32_matmul_precision(older[0])
            cudnn.allow_tf32 = older[1]
        for operation, precision in zip(operations, newer, strict=True):
            operation.fp32_precision = precision


@contextlib.contextmanager
def _memory_limit(limit: int | None, index: int) -> Iterator[None]:
    """At most `limit` bytes of a GPU's memory for torch's allocator, if there is a limit."""
    if limit is None:
        yield
        return
    before = torch.cuda.get_per_process_memory_fraction(index)
    total = torch.cuda.get_device_properties(index).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, index)
