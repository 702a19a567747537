"""Bare matrix products by torch: what a step's products could reach, apart from the step."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.backends.shared.step_breakdown import ROUNDS, SECONDS, Product
from pipeline.backends.torch.products import above, kind_of, own_seconds
from pipeline.machine.quiet import captured_stderr
from pipeline.models.torch_quick import onednn_product

LEAST_CALLS, MOST_CALLS = 3, 50  # of a bare product, in one round
BARE = "bare product "  # how the range of each turn begins


def with_ceilings(found: Sequence[Product], device: torch.device, dtype: torch.dtype) -> list[Product]:
    """The products, each with the rate of a bare one of its sizes: of the quickest way and round."""
    ways = [
        (place, multiply)
        for place, product in enumerate(found)
        for multiply in ways_to_multiply(*operands(product, device, dtype))
    ]
    calls = [calls_for(product) for product in found]
    best: dict[int, float] = {}
    turns = ways * ROUNDS
    for turn, seconds in bare_seconds([(multiply, calls[place]) for place, multiply in turns], device).items():
        place = turns[turn][0]
        best[place] = min(best.get(place, math.inf), seconds / calls[place])
    return [
        dataclasses.replace(product, ceiling_FLOP_per_s=2.0 * product.m * product.n * product.k / best[place])
        if best.get(place)
        else product
        for place, product in enumerate(found)
    ]


def bare_seconds(turns: Sequence[tuple[Callable[[], torch.Tensor], int]], device: torch.device) -> dict[int, float]:
    """Seconds in the products of each turn, (a call, how often), without what calls them: by the profiler.

    By the clock a short product would be a time of calling it.
    """
    gpu = device.type == "cuda"
    whole = profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])])
    with torch.inference_mode():
        with captured_stderr():
            whole.start()
        for turn, (multiply, calls) in enumerate(turns):
            multiply()
            with record_function(f"{BARE}{turn}"):
                for _ in range(calls):
                    multiply()
        if gpu:
            torch.cuda.synchronize(device)
        with captured_stderr():
            whole.stop()
    found: defaultdict[int, float] = defaultdict(float)
    for event in whole.events():
        number = _turn_of(event)
        if number is not None and kind_of(event) == "products":
            found[number] += own_seconds(event, gpu=gpu)
    return dict(found)


def _turn_of(event: Any) -> int | None:
    """The turn whose range an operation lies in."""
    return next((int(one.name.removeprefix(BARE)) for one in above(event) if one.name.startswith(BARE)), None)


def operands(product: Product, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers (m, k) and (k, n) for a bare product."""
    return (
        torch.randn(product.m, product.k, device=device).to(dtype),
        torch.randn(product.k, product.n, device=device).to(dtype),
    )


def calls_for(product: Product) -> int:
    """How many bare products take about SECONDS."""
    return min(MOST_CALLS, max(LEAST_CALLS, int(SECONDS * product.calls / max(product.seconds, 1e-9))))


def onednn_multiplies(a: torch.Tensor) -> bool:
    """Whether oneDNN has products of such tensors that torch itself does not take."""
    return a.device.type == "cpu" and a.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def ways_to_multiply(a: torch.Tensor, b: torch.Tensor) -> list[Callable[[], torch.Tensor]]:
    """Calls that each give a @ b: torch's own, and in float32 on a CPU oneDNN's too."""
    ways = [lambda: torch.mm(a, b)]
    if onednn_multiplies(a):
        ways.append(lambda: onednn_product(a, b.T))
    return ways
