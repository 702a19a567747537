"""Floating-point operations of the matrix products that torch runs, by torch's own counter and two formulas more."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry, sdpa_flop_count

from pipeline.backends.torch.observer import Observer, is_product
from pipeline.runs.fit import Observation


def flop(run: Callable[[], object]) -> float | None:
    """Of all products of `run`; None where there are none, or where one lacks a formula."""
    formulas: dict[Any, Callable[..., int]] = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}
    with contextlib.suppress(AttributeError):  # a build of torch without oneDNN: then nothing calls it
        formulas[torch.ops.mkldnn._linear_pointwise] = _linear  # of models.torch_quick
    seen = Observation(how="")
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter, Observer(seen), _encoders_in_parts():
        run()
    known = {packet.__name__ for packet in (*flop_registry, *formulas) if hasattr(packet, "__name__")}
    if any(is_product(name) and name not in known for name, _, _ in seen.operations):
        return None
    return float(counter.get_total_flops()) or None


@contextlib.contextmanager
def _encoders_in_parts() -> Iterator[None]:
    """torch's own encoder and attention as their products, which have formulas, where they would be one operation."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _linear(a_shape: Sequence[int], b_shape: Sequence[int], *_: Any, **__: Any) -> int:
    """a (..., k) times b (n, k) transposed."""
    return 2 * math.prod(a_shape) * b_shape[0]


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Of all positions, also where each sees the earlier ones alone: as torch counts its other kernels."""
    found: int = sdpa_flop_count(query, key, value)
    return found
