"""Reading XLA's traces and programs: whose each moment is, and which products an instruction holds."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import done, environment
from hypothesis import given
from hypothesis import strategies as st

from pipeline.backends.keras import hlo
from pipeline.backends.keras.xla_ops import Operations
from pipeline.backends.shared import gpu_kernels
from pipeline.backends.shared.step_breakdown import in_memory
from pipeline.backends.shared.trace import HANDED_OVER, TASK_BEGINS, TASK_ENDS, Event, calls_by_owner, seconds_by_owner

# Traces


def event(name: str, start: float, end: float, thread: int = 0, **stats: Any) -> Event:
    """An event of a thread, in seconds."""
    return Event(name, ("/host:CPU", thread), start * 1e9, end * 1e9, stats)


def named(one: Event) -> str | None:
    """The operation is the event's name where that is a single letter."""
    return one.name if len(one.name) == 1 else None


def test_what_runs_inside_an_operation_is_not_counted_twice() -> None:
    seen = [event("a", 0, 10), event("b", 2, 5), event("waiting", 6, 7), event("b", 20, 21)]
    assert seconds_by_owner(seen, named) == pytest.approx({"a": 7, "b": 4})
    assert calls_by_owner(seen, named) == {"a": 1, "b": 2}


def test_threads_that_work_at_once_share_the_time() -> None:
    seen = [event("a", 0, 10), event("b", 4, 12, thread=1)]
    assert seconds_by_owner(seen, named) == pytest.approx({"a": 4 + 3, "b": 3 + 2})


def test_a_task_is_its_operations_wherever_it_runs() -> None:
    """a hands a task over and ends; another thread works on it, and sees to its own operation meanwhile."""
    seen = [
        event("a", 0, 2),
        event(HANDED_OVER, 1, 1, _p=7),
        event(TASK_BEGINS, 3, 3, thread=1, _c=7),
        event("b", 5, 6, thread=1),
        event("ThunkExecutor::Execute", 7, 8, thread=1),
        event(TASK_ENDS, 10, 10, thread=1),
        event("b", 11, 12, thread=1),
    ]
    assert seconds_by_owner(seen, named) == pytest.approx({"a": 2 + (10 - 3 - 1 - 1), "b": 2})


@st.composite
def spans(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(start, end, thread) that nest on each thread, as events do."""
    found: list[tuple[int, int, int]] = []
    for start, length, thread in draw(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(0, 2)))):
        others = [one for one in found if one[2] == thread]
        if all(end <= start or start + length <= begin or (begin < start and start + length < end)
               or (start < begin and end < start + length) for begin, end, _ in others):  # fmt: skip
            found.append((start, start + length, thread))
    return found


@given(spans())
def test_the_times_add_up_to_the_time_in_which_any_thread_worked(found: list[tuple[int, int, int]]) -> None:
    seen = [event("abc"[thread], start, end, thread) for start, end, thread in found]
    busy = [at for at in range(50) if any(start <= at < end for start, end, _ in found)]
    assert sum(seconds_by_owner(seen, named).values()) == pytest.approx(len(busy))


# Programs

DOTS = """HloModule made_up

%fused (param_0: f32[64,9], param_1: f32[9,32]) -> f32[64,32] {
  %param_0 = f32[64,9]{1,0} parameter(0)
  %param_1 = f32[9,32]{1,0} parameter(1)
  ROOT %dot.1 = f32[64,32]{1,0} dot(%param_0, %param_1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%cast (param_0.1: f32[64,9]) -> bf16[9,64] {
  %param_0.1 = f32[64,9]{1,0} parameter(0)
  %convert.1 = bf16[64,9]{1,0} convert(%param_0.1)
  ROOT %transpose.1 = bf16[9,64]{0,1} transpose(%convert.1), dimensions={1,0}
}

ENTRY %main (a: f32[64,9], b: f32[9,32], c: f32[5,64,9]) -> (f32[64,32], bf16[9,64]) {
  %a = f32[64,9]{1,0} parameter(0)
  %b = f32[9,32]{1,0} parameter(1)
  %c = f32[5,64,9]{2,1,0} parameter(2)
  %fusion.1 = f32[64,32]{1,0} fusion(%a, %b), kind=kCustom, calls=%fused, metadata={op_name="jit(f)/dense/dot_general"}
  %cast_fusion = bf16[9,64]{0,1} fusion(%a), kind=kLoop, calls=%cast
  %dot.2 = f32[5,9,9]{2,1,0} dot(%c, %c), lhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_batch_dims={0}, rhs_contracting_dims={1}
  %gather.1 = f32[64,9]{1,0} gather(%a, %a), metadata={op_name="jit(f)/while/body/data/gather" stack_frame_id=81}
  %update = f32[64,9]{1,0} add(%a, %a), metadata={op_name="jit(f)/optimizer/adam/add"}
  %gemm = (f32[64,32]{1,0}, s8[4096]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}
  %while.1 = f32[64,32]{1,0} while(%fusion.1), condition=%never, body=%fused
  ROOT %tuple = (f32[64,32]{1,0}, bf16[9,64]{0,1}) tuple(%fusion.1, %cast_fusion)
}
"""  # noqa: E501  # as XLA writes it


def test_products_and_kinds_of_a_program() -> None:
    found = Operations(DOTS)
    kinds = {name: found.kind(name) for name in ("fusion.1", "cast_fusion", "gather.1", "update", "gemm", "dot.2")}
    assert kinds == {
        "fusion.1": "products", "cast_fusion": "copies", "gather.1": "data", "update": "optimizer", "gemm": "products",
        "dot.2": "products",
    }  # fmt: skip
    assert found.sizes("fusion.1") == found.sizes("gemm") == [("product", 64, 32, 9, 1)]
    assert found.sizes("dot.2") == [("product", 9, 9, 64, 5)]
    assert found.sizes("update") == []


CONVOLUTIONS = """ENTRY %main () -> f32[8,4,4,16] {
  %x = f32[8,6,6,3]{3,2,1,0} parameter(0)
  %kernel = f32[3,3,3,16]{3,2,1,0} parameter(1)
  %y = f32[8,4,4,16]{3,2,1,0} parameter(2)
  %plain = f32[8,4,4,16]{3,2,1,0} convolution(%x, %kernel), window={size=3x3}, dim_labels=b01f_01io->b01f
  %forward = (f32[8,4,4,16]{3,2,1,0}, u8[0]{0}) custom-call(%x, %kernel), window={size=3x3}, dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$convForward"
  %to_x = (f32[8,6,6,3]{3,2,1,0}, u8[0]{0}) custom-call(%y, %kernel), window={size=3x3}, dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$convBackwardInput"
  %to_kernel = (f32[3,3,3,16]{3,2,1,0}, u8[0]{0}) custom-call(%x, %y), window={size=3x3}, dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$convBackwardFilter"
}
"""  # noqa: E501


@pytest.mark.parametrize("name", ["plain", "forward", "to_x", "to_kernel"])
def test_a_convolution_is_the_product_of_its_image_patches(name: str) -> None:
    found = Operations(CONVOLUTIONS)
    assert found.kind(name) == "products"
    assert found.sizes(name) == [("convolution", 8 * 4 * 4, 16, 3 * 3 * 3, 1)]


ATTENTION = """ENTRY %main () -> bf16[2,256,8,64] {
  %q = bf16[2,256,8,64]{3,2,1,0} parameter(0)
  %k = bf16[2,256,8,64]{3,2,1,0} parameter(1)
  %v = bf16[2,256,8,64]{3,2,1,0} parameter(2)
  %forward = (bf16[2,256,8,64]{3,2,1,0}, u8[0]{0}) custom-call(%q, %k, %v), custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config":{"bmm1_dot_dimension_numbers":{"lhs_contracting_dimensions":["3"],"rhs_contracting_dimensions":["3"],"lhs_batch_dimensions":["0","2"],"rhs_batch_dimensions":["0","2"]}}}
  %backward = (bf16[2,256,8,64]{3,2,1,0}, u8[0]{0}) custom-call(%q, %k, %v), custom_call_target="__cudnn$fmhaSoftmaxBackward", backend_config={"cudnn_fmha_backend_config":{}}
}
"""  # noqa: E501


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_attention_by_cudnn_is_a_product_without_sizes(name: str) -> None:
    """Keras's MultiHeadAttention is that on JAX and a GPU: its time counted as other work, its dtype was not seen."""
    found = Operations(ATTENTION)
    assert found.kind(name) == "products"
    assert found.sizes(name) == []  # two products are in it
    assert list(hlo.products(ATTENTION)) == ["bfloat16"] * 2


def test_events_belong_to_instructions() -> None:
    found = Operations(DOTS)
    assert found.owner(event("dot.2", 0, 1, hlo_op="dot.2")) == "dot.2"
    assert found.owner(event("while.1", 0, 1, hlo_op="while.1")) is None
    assert found.owner(event("another program's", 0, 1, hlo_op="add.7")) == "add.7"
    assert found.owner(event("WaitForWork", 0, 1)) is None
    for kernel, owner in {"fusion_1": "fusion.1", "MemcpyD2H": "MemcpyD2H"}.items():
        assert found.owner(Event(kernel, ("/device:GPU:0", 1), 0, 1, {})) == owner
    assert found.kind("MemcpyD2H") == "copies"


KERNELS = {  # as NVIDIA's libraries, Triton and XLA call them
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute": ("products", True),
    "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn": ("products", True),
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>": ("products", False),
    "ampere_sgemm_32x32_sliced1x4_nn": ("products", False),
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute": (
        "products",
        False,
    ),
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, cutlass::bfloat16_t>>": (
        "products",
        True,
    ),
    "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, cutlass::half_t>>": (
        "products",
        True,
    ),
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, cutlass::half_t>>": (
        "products",
        True,
    ),
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<64, cutlass::half_t>>": (
        "products",
        False,  # a sum over rows
    ),
    "fmha_cutlassF_f16_aligned_64x64_rf_sm75(PyTorchMemEffAttention::AttentionKernel)": ("products", True),
    "fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel)": ("products", True),
    "fmha_cutlassF_f32_aligned_64x64_rf_sm50(PyTorchMemEffAttention::AttentionKernel)": ("products", False),
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x": ("products", True),
    "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_3_64x64x128_4x1x1_kernel0_0": ("products", True),
    "triton_poi_fused_convolution_relu_1": ("other", False),  # torch's compiler names what is fused, or beside it
    "triton_red_fused__scaled_dot_product_cudnn_attention__to_copy_mean_mul_pow_rsqrt": ("other", False),
    "loop_convert_fusion_2": ("copies", False),
    "loop_add_fusion": ("other", False),
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_a_kernels_name_tells(name: str) -> None:
    assert (gpu_kernels.kind(name), bool(gpu_kernels.ON_TENSOR_CORES.search(name))) == KERNELS[name]


# Steps that torch has compiled

FUSED = """
import json
import torch
from torch.profiler import profile, record_function
from pipeline.backends.torch.products import kind_of, operations, shares

weight = torch.randn(64, 64, requires_grad=True)
forward = torch.compile(lambda x: torch.erf(x @ weight).square().sum())
update = torch.compile(lambda: weight.detach().sub_(torch.erf(weight.grad)))
x = torch.randn(4096, 64)
for watched in (False, True):
    with profile() if watched else torch.no_grad() as seen, torch.enable_grad():
        weight.grad = None
        forward(x).backward()
        with record_function("optimizer"):
            update()
fused = [event for event in seen.events() if event.name.startswith("## Call CompiledFxGraph")]
counted = {(one.name, one.kind) for one in operations(seen.events(), 1, gpu=False)}
print(json.dumps([[kind_of(event) for event in fused], sorted(pair for pair in counted if "fused" in pair[0])]))
"""


@pytest.mark.wide
def test_what_torch_has_fused_is_an_operation() -> None:
    """On a CPU its time counted as no operation at all, and the advice was to launch less."""
    ended = subprocess.run(
        [sys.executable, "-c", FUSED], env=environment(), capture_output=True, text=True, check=False, timeout=400
    )
    assert ended.returncode == 0, ended.stderr
    kinds, counted = json.loads(ended.stdout.splitlines()[-1])
    assert kinds == ["other", "other", "optimizer"]
    assert counted == [["fused by torch.compile", "optimizer"], ["fused by torch.compile", "other"]]


def of_torch(name: str, start: float, end: float, device: str = "CPU", **more: Any) -> Any:
    """An event of torch's profiler, in microseconds."""
    from torch._C._autograd import DeviceType
    from torch.autograd.profiler_util import FunctionEvent

    kind = getattr(DeviceType, device)
    return FunctionEvent(0, name, 0, start, end, device_type=kind, use_device="cuda", **more)


def test_the_kernels_of_a_captured_step_are_what_a_gpu_does_in_it() -> None:
    """No operation launches them: they counted as no work, and the advice was to launch less."""
    from pipeline.backends.torch.products import operations, shares

    kernels = [
        of_torch("nvjet_sm90_tst_128x64_64x8_1x2_h_bz_coopA_NNT", 10, 60, "CUDA"),
        of_torch("triton_poi_fused_gelu_0", 60, 80, "CUDA"),
        of_torch("Memcpy DtoD (Device -> Device)", 80, 90, "CUDA"),
        of_torch("void at::native::index_select", 0, 5, "CUDA"),
        of_torch("void flash_fwd_kernel<cutlass::half_t>", 90, 95, "CUDA"),
        of_torch("graph", 10, 90, "CUDA", is_user_annotation=True),
    ]
    data, graph = of_torch("data", 0, 2), of_torch("graph", 2, 4)
    gathered, own = of_torch("aten::index_select", 0, 2), of_torch("somebody::attention", 5, 6)
    gathered.set_cpu_parent(data)
    data.append_cpu_child(gathered)
    for event, kernel in ((gathered, kernels[3]), (own, kernels[4])):
        event.append_kernel(kernel.name, 0, kernel.time_range.elapsed_us())
    events = [*kernels, data, gathered, graph, own]
    assert shares(events, 100e-6, gpu=True) == pytest.approx(
        {"products": 0.55, "copies": 0.1, "data": 0.05, "optimizer": None, "other": 0.2, "outside": 0.1}
    )
    found = {one.name: one for one in operations(events, 1, gpu=True)}
    assert found["triton_poi_fused_gelu_0"].kind == "other"
    assert found["triton_poi_fused_gelu_0"].seconds == pytest.approx(20e-6)
    assert "void at::native::index_select" not in found


# The real thing


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm"])
def test_a_product_that_is_written_to_a_place_has_its_sizes(name: str) -> None:
    """As torch's compiler calls it: of two of them the place was taken for the second matrix."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from pipeline.backends.torch.products import products

    batch = (2,) if "bmm" in name else ()
    a, b, c = torch.ones(*batch, 64, 32), torch.ones(*batch, 32, 128), torch.ones(*batch, 64, 128)
    multiply = getattr(torch, name)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        multiply(*([c] if "add" in name else []), a, b, out=torch.empty_like(c))
    (found,) = products(seen.events(), (32,), 1, gpu=False)
    assert (found.m, found.n, found.k, found.calls) == (64, 128, 32, len(batch) + 1)


def sizes(folder: Path, *words: str) -> set[tuple[int, int, int]]:
    """The products that a run with a look into its step has seen, whichever way round."""
    run = done(
        folder, "dataset=digits", "training=quick", "training.epochs=1", "tracking=none", "stage.probe=true", *words
    )
    step = json.loads((run / "artifacts" / "probe" / "step.json").read_text())
    assert all(product["ceiling_FLOP_per_s"] > 0 for product in step["step_breakdown"]["products"])
    return {(*sorted((one["m"], one["n"])), one["k"]) for one in step["step_breakdown"]["products"]}


@pytest.mark.wide
def test_the_steps_of_a_streamed_training_are_those_that_its_loader_feeds(tmp_path: Path) -> None:
    """The step of loader=threads, not one with the batch in place: the loader's part of it is in the share of data."""
    run = done(
        tmp_path, "dataset=digits", "training.epochs=1", "tracking=none", "stage.probe=true", "model=mlp",
        "model.units=[16]", "loader=threads", "training.batch_size=64",
    )  # fmt: skip
    step_breakdown = json.loads((run / "artifacts" / "probe" / "step.json").read_text())["step_breakdown"]
    assert "of the training's own loop" in step_breakdown["how"]
    assert 0 < step_breakdown["shares"]["data"] < 1
    longest = {one["name"]: one["kind"] for one in step_breakdown["longest"]}
    assert "aten::index_select" not in longest  # how a resident batch is got
    assert {(one["m"], one["n"], one["k"]) for one in step_breakdown["products"]} >= {(64, 16, 64), (64, 10, 16)}
    assert sum(step_breakdown["shares"].values()) == pytest.approx(1)


@pytest.mark.wide
def test_tensorflows_own_convolutions_are_the_products_that_torch_sees(tmp_path: Path) -> None:
    """Without XLA: oneDNN's operations, whose sizes are read off the graph."""
    wanted = sizes(tmp_path, "model=cnn", "backend=torch")
    assert sizes(tmp_path, "model=cnn", "backend=tensorflow") == wanted


@pytest.mark.parametrize("width", [2, 8])
def test_what_is_moved_in_memory_goes_to_the_same_place(width: int) -> None:
    """Each framework's own copies went to new places, which the system clears: float64's a third as fast as memory."""
    move = in_memory(width)
    move()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    move()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100  # pages, of 8,192 at least
