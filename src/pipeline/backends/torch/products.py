"""Reading torch's profiler: the time of a step by kind of operation, and its matrix products with their sizes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pipeline.backends.shared import gpu_kernels
from pipeline.backends.shared.step_breakdown import Operation, Product, with_rest
from pipeline.backends.torch.observer import ATTENTION, RECURRENT, SPECIAL
from pipeline.errors import cut

MATMULS = (
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    *("aten::addmm_", "aten::baddbmm_", "aten::_addmm_activation"),  # addbmm and conv_tbc are several of the first
)
VECTORS = ("aten::addmv", "aten::addmv_")  # by one of which mv multiplies
LINEAR = "mkldnn::_linear_pointwise"
FORWARD = (
    *("aten::mkldnn_convolution", "aten::cudnn_convolution", "aten::_conv_depthwise2d", "aten::conv_depthwise3d"),
    *("aten::_slow_conv2d_forward", "aten::slow_conv3d_forward"),
    *("aten::slow_conv_dilated2d", "aten::slow_conv_dilated3d"),
)
CONVOLUTION = "aten::_convolution"  # which calls one of FORWARD or TRANSPOSED, for each group or for all
# oneDNN's transposed convolution is CONVOLUTION itself.
TRANSPOSED = ("aten::cudnn_convolution_transpose", "aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d")
BACKWARD = ("aten::convolution_backward",)
GRADIENTS = ("aten::_slow_conv2d_backward",)  # which one of BACKWARD calls, for each group or for all: of float64
WITHOUT_SIZES = tuple(f"aten::{name}" for name in (*RECURRENT, *SPECIAL))  # products of which m, n, k are not known
ALL = (*MATMULS, *VECTORS, LINEAR, *FORWARD, *TRANSPOSED, *BACKWARD, *GRADIENTS, *WITHOUT_SIZES)
COPIES = ("aten::copy_", "aten::_to_copy", "aten::contiguous", "aten::clone")
RANGES = ("data", "optimizer")  # as a training's steps name them
CAPTURED = "graph"  # as they name a replay of a CUDA graph
COMPILED = "## Call CompiledFxGraph"  # how the event begins in which torch's compiler runs what it has fused
FUSED = "fused by torch.compile"
LEAST_SECONDS = 1e-9  # of a kernel: less is rounding


def shares(events: Sequence[Any], wall_s: float, *, gpu: bool) -> dict[str, float | None]:
    """The share of `wall_s` in each kind: products, copies, data, optimizer, other; the rest is none's (`outside`).

    On a GPU it is the GPU's time, and `outside` is when it waits for work. None for the update of a captured step,
    whose kernels are among the others.
    """
    found: dict[str, float] = dict.fromkeys(("products", "copies", "data", "optimizer", "other"), 0.0)
    for event in events:
        kind = kind_of(event)
        if kind is not None and (gpu or kind != "data"):
            found[kind] += own_seconds(event, gpu=gpu) / wall_s
        elif event.name == "data" and not gpu:  # the whole range: waiting for a loader's workers is not an operation
            found["data"] += event.cpu_time_total / 1e6 / wall_s
    for _, kind, seconds in _kernels_beside(events) if gpu else ():
        found[kind] += seconds / wall_s
    whole: dict[str, float | None] = {**with_rest(found)}
    return whole | {"optimizer": None} if gpu and any(event.name == CAPTURED for event in events) else whole


def kind_of(event: Any) -> str | None:
    """The kind of an operation; None for what is none (a range, a kernel, the engine's own events)."""
    if not event.name.startswith(("aten::", COMPILED)) and event.name != LINEAR:
        return None
    return _range_of(event) or _kind_by_name(event)


def _range_of(event: Any) -> str | None:
    """The name among RANGES that an event lies in; None outside of all."""
    return next((str(one.name) for one in above(event) if one.name in RANGES), None)


def above(event: Any) -> Iterator[Any]:
    """What has called an event, or has its range around it: the innermost first."""
    while (event := event.cpu_parent) is not None:
        yield event


def _kind_by_name(event: Any) -> str:
    if event.name in ALL or ATTENTION.fullmatch(event.name.removeprefix("aten::")):
        return "products"
    if event.name == CONVOLUTION and _is_transposed(event):
        return "products"
    return "copies" if event.name in COPIES else "other"


def operations(events: Sequence[Any], steps: int, *, gpu: bool) -> list[Operation]:
    """The operations of one of `steps` steps, those of one name and kind together."""
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    for event in events:
        kind = kind_of(event)
        if kind is not None:
            name = FUSED if event.name.startswith(COMPILED) else event.name
            seconds[name, kind] += own_seconds(event, gpu=gpu) / steps
    for name, kind, time_s in _kernels_beside(events) if gpu else ():
        seconds[cut(name), kind] += time_s / steps
    return [Operation(*key, seconds=seconds[key]) for key in seconds]


def _kernels_beside(events: Iterable[Any]) -> Iterator[tuple[str, str, float]]:
    """A GPU's kernels that no operation of torch's has launched, by name, kind and seconds.

    A CUDA graph's are launched by none, and one of Triton's, or of a user's library, by an event of another kind.
    """
    left: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if _on_gpu(event):
            left[event.name] += 0.0 if event.is_user_annotation else own_seconds(event, gpu=True)
            continue
        beside = kind_of(event) is None
        for kernel in event.kernels:
            left[kernel.name] -= kernel.duration / 1e6
            if beside:
                yield kernel.name, _range_of(event) or gpu_kernels.kind(kernel.name), kernel.duration / 1e6
    for name, seconds in left.items():
        if seconds > LEAST_SECONDS:
            yield name, gpu_kernels.kind(name), seconds


def _on_gpu(event: Any) -> bool:
    return str(event.device_type).endswith("CUDA")


def own_seconds(event: Any, *, gpu: bool) -> float:
    """Time of an operation without those that it calls."""
    return float(event.self_device_time_total if gpu else event.self_cpu_time_total) / 1e6


def products(events: Sequence[Any], example: tuple[int, ...], steps: int, *, gpu: bool) -> list[Product]:
    """The products of one of `steps` steps, those of one kind and size together.

    `example`: the shape of one, (H, W, C) of an image.
    """
    back = [event for event in events if event.name in BACKWARD and not _is_transposed(event)]
    outputs = {_pair(event.input_shapes[1:]): event.input_shapes[0][2:] for event in back}
    seconds: defaultdict[tuple[str, int, int, int], float] = defaultdict(float)
    calls: defaultdict[tuple[str, int, int, int], float] = defaultdict(float)
    for event in events:
        sizes = _sizes(event, outputs, example)
        if sizes is not None and kind_of(event) == "products":
            name, m, n, k, count = sizes
            seconds[name, m, n, k] += own_seconds(event, gpu=gpu) / steps
            calls[name, m, n, k] += count / steps
    found = [Product(*key, seconds=seconds[key], calls=calls[key]) for key in seconds]
    return sorted(found, key=lambda product: -product.seconds)


def _sizes(event: Any, outputs: dict[Any, Any], example: tuple[int, ...]) -> tuple[str, int, int, int, int] | None:
    """Name, m, n, k of a product, and how many such products the call comes to."""
    shapes = event.input_shapes
    if event.name in MATMULS:
        left, right = shapes[:2] if event.name in ("aten::mm", "aten::bmm") else shapes[1:3]
        batch = left[0] if len(left) == 3 else 1
        return "product", left[-2], right[-1], left[-1], batch
    if event.name in VECTORS:
        m, k = shapes[1]
        return "product", m, 1, k, 1
    if event.name == LINEAR:
        (*rows, inputs), (units, _) = shapes[:2]
        return "product", math.prod(rows), units, inputs, 1
    if event.name in FORWARD and (output := outputs.get(_pair(_whole(event).input_shapes))) is not None:
        return "convolution", *_convolution(shapes[0], shapes[1], output), 1
    if event.name in (CONVOLUTION, *TRANSPOSED) and _is_transposed(whole := _whole(event)):
        return "convolution", *_transposed(*whole.input_shapes[:2]), 1 if event is whole else 0
    if event.name in GRADIENTS:  # the time is its, and how many products there are its caller's
        of_caller = _sizes(event.cpu_parent, outputs, example)
        return of_caller and (*of_caller[:-1], 0)
    if event.name in BACKWARD:
        given = [*example[-1:], *example[:-1]] == list(shapes[1][1:])  # nobody asks for the gradient of the images
        places = shapes[1][2:] if _is_transposed(event) else shapes[0][2:]
        return "convolution's gradients", *_convolution(shapes[1], shapes[2], places), 1 if given else 2
    return None


def _whole(event: Any) -> Any:
    """The convolution that one of FORWARD belongs to, whose shapes are those of its gradients: of one dimension, where
    FORWARD's have two, and of all groups, where FORWARD's may have one."""
    return next((one for one in (event, *above(event)) if one.name == CONVOLUTION), event)


def _is_transposed(event: Any) -> bool:
    """Whether CONVOLUTION, or one of BACKWARD, is of a transposed convolution: an argument, recorded as sizes are."""
    place = 6 if event.name == CONVOLUTION else 7
    return list(event.concrete_inputs or ())[place : place + 1] == [True]


def _transposed(x: Sequence[int], kernel: Sequence[int]) -> tuple[int, int, int]:
    """(m, n, k) of the product whose patches a transposed convolution adds up.

    x: (N, C, H, W), kernel: (C, F / groups, h, w).
    """
    return x[0] * math.prod(x[2:]), math.prod(kernel[1:]), kernel[0]


def _pair(shapes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(shapes[0]), tuple(shapes[1])


def _convolution(x: Sequence[int], kernel: Sequence[int], output: Sequence[int]) -> tuple[int, int, int]:
    """(m, n, k) of the product of image patches that a convolution is, of any dimension.

    x: (N, C, H, W), kernel: (F, C / groups, h, w), output: (H', W'). Of a transposed one's gradients, whose kernel is
    (C, F / groups, h, w), `output` is (H, W).
    """
    return x[0] * math.prod(output), kernel[0], math.prod(kernel[1:])


def tensor_core_share(events: Iterable[Any]) -> float | None:
    """Share of the GPU's busy time in kernels that, by their names, run on Tensor Cores; None where none ran.

    The profiler draws our named ranges over the kernels too: those are not work.
    """
    kernels = [event for event in events if _on_gpu(event) and not event.is_user_annotation]
    busy = sum(event.self_device_time_total for event in kernels)
    tensor = sum(event.self_device_time_total for event in kernels if gpu_kernels.ON_TENSOR_CORES.search(event.name))
    return tensor / busy if busy else None
