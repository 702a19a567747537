"""What needs an NVIDIA GPU: `make gpu`. Each run is the real command, on whatever GPU is the first."""

from __future__ import annotations

import csv
import gzip
import json
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pynvml
import pytest
from command import pipeline, runs, status
from in_backend import canary_on_gpu, outcomes
from packaging.version import Version

from bench.measure import peer
from pipeline.machine import gpu_support
from pipeline.machine.capability import runnable
from pipeline.machine.device import gpus, nvml_handle
from pipeline.machine.installed import is_installed
from pipeline.pinn.solvers.deepxde_adam import CROSSES_NO_PLANE
from pipeline.runs.records import read_config
from pipeline.runs.result import read_result, values

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpus(), reason="no NVIDIA GPU on this machine")]

BACKENDS = ("torch", "tensorflow", "jax")
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "mixed_fp16", "mixed_bf16")
SHORT = ("dataset=digits", "training=quick", "tracking=none", "device=gpu")
PRODUCTS = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "mixed_fp16": "float16",
    "mixed_bf16": "bfloat16",
}


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    """Skip, by name, a test of a package that is not installed: its name, or its parameters, have the package's."""
    for package in ("tensorflow", "jax", "deepxde", "tensorboard"):
        if package in request.node.name and not is_installed(package):
            pytest.skip(f"{package} is not installed")


def on_gpu(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command with the first GPU in sight."""
    return pipeline(folder, *words, CUDA_VISIBLE_DEVICES="0")


def receipt_of(folder: Path) -> dict[str, dict[str, object]]:
    """The receipt of the one run in `folder`."""
    (path,) = (folder / "runs").glob("*/receipt.json")
    found: dict[str, dict[str, object]] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cell_runs_on_the_gpu_as_asked_or_is_refused(backend: str, precision: str, tmp_path: Path) -> None:
    update = ("optimizer=sgd",) if precision == "fp16" else ()  # of Adam's, squares of gradients are 0 in float16
    done = on_gpu(tmp_path, *SHORT, *update, f"backend={backend}", f"precision={precision}")
    if runnable(backend, "gpu", gpus()[0])[precision]:
        assert done.returncode == 2
        return
    assert done.returncode == 0, done.stderr
    receipt = receipt_of(tmp_path)
    seen = receipt["precision"]["observed"]
    assert isinstance(seen, dict)
    assert receipt["precision"]["as_requested"] is True
    assert set(seen["matrix_products"]) == {PRODUCTS[precision]}
    assert receipt["device"]["effective"] == "gpu:0"  # where the products were seen
    assert receipt["device"]["as_requested"] is True
    assert any("cuda" in name.lower() or "gpu" in name.lower() for name in seen["devices"])
    assert receipt["peak_memory"]["device_bytes"]
    if precision in ("fp32", "tf32"):
        assert seen["tf32"] is (precision == "tf32")
        assert not str(seen["tf32_by"]).startswith("set, not seen")
    assert receipt["device"]["hardware"]["host"]["vector"]  # type: ignore[index]
    assert receipt["versions"]["driver"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_fp32_after_any_other_precision_gives_the_same_bits(backend: str) -> None:
    found = outcomes(canary_on_gpu)[backend]
    cells = [name for name, why in runnable(backend, "gpu", gpus()[0]).items() if why is None]
    assert found.fp32_after == dict.fromkeys(cells, found.alone)
    assert found.cells["fp32"] == found.alone
    assert {found.cells[name] for name in cells if name != "fp32"}.isdisjoint({found.alone})
    assert all(settings == found.settings["at first"] for settings in found.settings.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_auto_takes_the_gpu(backend: str, tmp_path: Path) -> None:
    done = on_gpu(tmp_path, "dataset=digits", "training=quick", "tracking=none", f"backend={backend}")
    assert done.returncode == 0, done.stderr
    assert receipt_of(tmp_path)["device"]["effective"] == "gpu:0"


def test_another_process_on_the_gpu_is_noted(tmp_path: Path) -> None:
    code = "import torch; x = torch.ones(9, device='cuda'); print(x.sum().item(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "9.0\n"
        done = on_gpu(tmp_path, "dataset=digits", "training=quick", "tracking=none")
        listed = {one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(nvml_handle(0))}
        other.communicate("\n")
    if other.pid not in listed:
        pytest.skip("the driver numbers processes as the host does")
    assert " used gpu:0 when this run ended" in done.stderr, done.stderr


USES = {
    "torch": "import torch; print(torch.cuda.is_available(), *torch.cuda.get_arch_list())",
    "tensorflow": "import tensorflow as tf; print(bool(tf.config.list_physical_devices('GPU')))",
    "jax": "import jax; print(jax.default_backend() == 'gpu')",
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_read_off_the_files_is_what_the_framework_finds(backend: str) -> None:
    code = USES[backend]
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    build = {"torch": gpu_support.torch, "tensorflow": gpu_support.tensorflow, "jax": gpu_support.jax}[backend]()
    assert (found[0] == "True") == (gpu_support.reason(build, gpus()[0]) is None)
    if backend == "torch" and isinstance(build, gpu_support.Build):
        assert build.kernels == tuple(found[1:])


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_memory_limit_is_a_limit(backend: str, tmp_path: Path) -> None:
    words = ["model=mlp", "model.units=[20000,20000]", "device.memory_limit=1GB", f"backend={backend}"]
    done = on_gpu(tmp_path, *SHORT, *words)
    assert done.returncode == 2
    assert "out of memory" in done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_that_fits_its_limit_is_trained(backend: str, tmp_path: Path) -> None:
    """This net takes 0.5 GiB; the framework may have taken all of the limit before it is asked for what is free."""
    limit = gpus()[0].memory_bytes * 6 // 10
    words = ("model=mlp", "model.units=[5000,5000]", f"device.memory_limit={limit}", f"backend={backend}")
    done = on_gpu(tmp_path, *SHORT, "training.epochs=1", *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(len(gpus()) < 2, reason="one GPU")
@pytest.mark.parametrize(
    "words", [(), ("device.memory_limit=2GiB",), ("stage=pinn", "dataset=function", "solver=deepxde")]
)
def test_tensorflow_runs_beside_a_second_gpu(words: tuple[str, ...], tmp_path: Path) -> None:
    common = ("backend=tensorflow", "device=gpu:1", "tracking=none")
    done = pipeline(tmp_path, *(words if "stage=pinn" in words else (*SHORT[:2], *words)), *common)
    assert done.returncode == 0, done.stderr
    assert receipt_of(tmp_path)["device"]["effective"] == "gpu:1"


@pytest.mark.parametrize("preallocate", ["true", "false"])
def test_jax_stays_within_its_limit_and_still_runs(preallocate: str, tmp_path: Path) -> None:
    words = [*SHORT, "backend=jax", "device.memory_limit=1GB"]
    done = pipeline(tmp_path, *words, CUDA_VISIBLE_DEVICES="0", XLA_PYTHON_CLIENT_PREALLOCATE=preallocate)
    assert done.returncode == 0, done.stderr  # the backend itself compares JAX's own bound with the limit
    peak = receipt_of(tmp_path)["peak_memory"]["device_bytes"]
    assert isinstance(peak, int)
    assert 0 < peak <= 10**9


def test_tensorflow_splits_a_gpu(tmp_path: Path) -> None:
    words = ["stage=devices", "backend=tensorflow", "device=gpu"]
    done = on_gpu(tmp_path, *words, "device.logical_devices=2", "device.memory_limit=768MiB")
    assert done.returncode == 0, done.stderr
    # the GPU's own full name, /job:localhost/replica:0/task:0/device:GPU:0, is in the table too
    assert set(re.findall(r"(?<!task:0)/device:GPU:\d+", done.stdout)) == {"/device:GPU:0", "/device:GPU:1"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_residual_net_trains_and_predicts_on_the_gpu(backend: str, tmp_path: Path) -> None:
    """Its strided convolutions and running statistics; then its passes, which are right before they are timed."""
    net = ("model=resnet", "model.blocks=1", "training.batch_size=64", f"backend={backend}")
    assert on_gpu(tmp_path, *SHORT, *net).returncode == 0
    words = ("stage=inference", "run=latest", "device=gpu", "precision=mixed_bf16", "stage.batches=[1,256]")
    done = on_gpu(tmp_path, *words, "stage.rounds=2", "tracking=none")
    assert done.returncode == 0, done.stderr
    (run,) = (one for one in runs(tmp_path) if status(one).name.startswith("inference"))
    receipt, result = json.loads((run / "receipt.json").read_text()), read_result(run)
    assert receipt["device"]["effective"] == "gpu:0"
    assert set(receipt["precision"]["observed"]["matrix_products"]) == {"bfloat16"}
    assert result is not None
    found = values(result.metrics)
    assert 0 < found["batch_256/matmul_share"] <= 1
    assert found["batch_256/device_peak_memory"] >= found["batch_1/device_peak_memory"] > 0


def artifacts(folder: Path) -> Path:
    """The artifacts of the one run in `folder`."""
    (found,) = (folder / "runs").glob("*/artifacts")
    return found


def test_the_torch_profiler_sees_kernels(tmp_path: Path) -> None:
    done = on_gpu(tmp_path, *SHORT, "training.batch_size=32", "profiler=torch")
    assert done.returncode == 0, done.stderr
    text = (artifacts(tmp_path) / "profile/operations.txt").read_text()
    assert "sorted by self_device_time_total" in text and "Self CUDA" in text
    trace = json.loads(gzip.decompress((artifacts(tmp_path) / "profile/trace.json.gz").read_bytes()))
    assert any(event.get("cat") == "kernel" for event in trace["traceEvents"])


def test_the_memory_profiler_tells_of_the_allocator(tmp_path: Path) -> None:
    done = on_gpu(tmp_path, *SHORT, "training.batch_size=32", "profiler=memory")
    assert done.returncode == 0, done.stderr
    folder = artifacts(tmp_path) / "profile"
    with (folder / "memory.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(0 < int(row["allocated_bytes"]) <= int(row["reserved_bytes"]) for row in rows)
    snapshot = pickle.loads((folder / "memory_snapshot.pickle").read_bytes())
    assert any(snapshot["device_traces"])
    assert len({row["allocated_bytes"] for row in rows}) > 1  # of this GPU, in a step


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensorboards_profile_has_the_gpu(backend: str, tmp_path: Path) -> None:
    done = on_gpu(tmp_path, *SHORT, "training.batch_size=32", "profiler=tensorboard", f"backend={backend}")
    assert done.returncode == 0, done.stderr
    (path,) = artifacts(tmp_path).glob("tensorboard/plugins/profile/*/*.xplane.pb")
    assert b"/device:GPU:0" in path.read_bytes()


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_a_steps_time_goes(backend: str, tmp_path: Path) -> None:
    words = ("model=cnn", "precision=mixed_bf16", "stage.probe=true", f"backend={backend}")
    done = on_gpu(tmp_path, *SHORT, *words)
    assert done.returncode == 0, done.stderr
    step_breakdown = json.loads((artifacts(tmp_path) / "probe/step.json").read_text())["step_breakdown"]
    shares = {kind: share for kind, share in step_breakdown["shares"].items() if share is not None}
    assert sum(shares.values()) == pytest.approx(1, abs=0.02)
    assert shares["products"] > 0
    products = step_breakdown["products"]
    assert products and not [one for one in products if not (one["ceiling_FLOP_per_s"] or 0) > 1e6]
    assert 0 <= step_breakdown["tensor_core_share"] <= 1


def test_where_a_captured_steps_time_goes(tmp_path: Path) -> None:
    """By its kernels: no operation launches them."""
    words = ("model=cnn", "precision=mixed_bf16", "stage.probe=true", "backend.compile=true", "training.batch_size=32")
    done = on_gpu(tmp_path, *SHORT, *words)
    assert done.returncode == 0, done.stderr
    step_breakdown = json.loads((artifacts(tmp_path) / "probe/step.json").read_text())["step_breakdown"]
    shares = step_breakdown["shares"]
    assert shares["optimizer"] is None
    assert shares["products"] > 0 and shares["other"] > 0
    assert sum(share or 0.0 for share in shares.values()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("what", ["flash", "efficient", "cudnn", "depthwise", "transposed", "lstm", "bmm"])
def test_the_time_of_products_is_known_on_a_gpu_whichever_kernel_it_is(what: str) -> None:
    """Forward and backward, by the operations that launch the kernels."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.profiler import ProfilerActivity, profile

    from pipeline.backends.torch.products import shares

    def attention(x: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(getattr(SDPBackend, f"{what.upper()}_ATTENTION")):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    layers: dict[str, tuple[Any, tuple[int, ...]]] = {
        "depthwise": (torch.nn.Conv2d(256, 256, 3, groups=256, bias=False), (32, 256, 64, 64)),
        "transposed": (torch.nn.ConvTranspose2d(128, 128, 3, stride=2, bias=False), (32, 128, 32, 32)),
        "lstm": (torch.nn.LSTM(512, 512), (128, 64, 512)),
        "bmm": (lambda x: x @ x.detach().mT, (64, 512, 512)),
    }
    layer, shape = layers.get(what, (attention, (8, 16, 2048, 64)))
    if isinstance(layer, torch.nn.Module):
        layer.to("cuda", torch.bfloat16)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def step() -> None:
        x.grad = None
        y = layer(x)
        y = y[0] if isinstance(y, tuple) else y
        y.backward(y.detach())

    step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as seen:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    found = shares(seen.events(), 1e3, gpu=True)
    found.pop("outside")
    products = found["products"]
    assert products is not None
    assert products / sum(share or 0.0 for share in found.values()) > 0.5, found


def test_nsys_records_the_window_or_is_refused(tmp_path: Path) -> None:
    done = on_gpu(tmp_path, *SHORT, "training.batch_size=32", "profiler=nsys", "profiler.gpu_metrics=false")
    if shutil.which("nsys") is None:
        assert done.returncode == 2
        assert done.stderr.startswith("error: profiler=nsys: no nsys on the PATH")
        return
    assert done.returncode == 0, done.stderr
    assert (artifacts(tmp_path) / "profile/report.nsys-rep").stat().st_size > 10_000


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_deepxde_solves_on_the_gpu(backend: str, precision: str, tmp_path: Path) -> None:
    words = (
        "stage=pinn",
        "tracking=none",
        "device=gpu",
        f"dataset={'poisson_lshape' if Version(np.__version__) < Version(CROSSES_NO_PLANE) else 'ode'}",
        "solver=deepxde_adam",
        "solver.steps=20",
    )
    done = on_gpu(tmp_path, *words, f"backend={backend}", f"precision={precision}")
    assert done.returncode == 0, done.stderr
    receipt = receipt_of(tmp_path)
    assert (receipt["device"]["effective"], receipt["device"]["as_requested"]) == ("gpu:0", True)
    assert receipt["precision"]["as_requested"] is True
    assert receipt["peak_memory"]["device_bytes"] > 0  # type: ignore[operator]


@pytest.mark.parametrize("backend", BACKENDS)
def test_cells_share_a_gpu_where_the_user_says_so(backend: str, tmp_path: Path) -> None:
    words = ("-m", "seed=0,1", "sweep.jobs=2", f"backend={backend}", *SHORT, "training.epochs=20")
    done = on_gpu(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    spans = [(status(run).started, status(run).ended or 0.0) for run in runs(tmp_path) if not (run / "cells").exists()]
    assert len(spans) == 2
    assert max(start for start, _ in spans) < min(end for _, end in spans)
    again = on_gpu(tmp_path, *words)
    assert "2 cells: 2 finished before" in again.stderr, again.stderr


@pytest.mark.parametrize("ahead", [True, False])
def test_the_host_is_one_step_ahead_of_the_gpu(ahead: bool) -> None:
    import torch

    from pipeline.backends.torch.blocks import StreamedBlocks
    from pipeline.loaders.batch_plan import Plan

    device = torch.device("cuda:0")
    plan = Plan(examples=20_000, batch_size=1000, steps=20, seed=0)
    profile = SimpleNamespace(loading=iter, steps=lambda batches, make: map(make, batches))
    watch = SimpleNamespace(profile=profile, blocks=lambda most: plan.period(0, most))

    def moved(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(one.to(device, non_blocking=True) for one in batch)

    module: Any = SimpleNamespace(home=device, input_dtype="float32", watch=watch, moved=moved)
    stream = [(torch.full((1000, 1000), float(n)).pin_memory(), torch.zeros(1000)) for n in range(20)]
    done: list[torch.cuda.Event] = []
    ((_, batches),) = StreamedBlocks(module, stream, 20, ahead=ahead)
    for x, _ in batches:
        assert all(event.query() for event in done[:-1])
        work = x
        for _ in range(50):
            work = work @ x  # longer than the host takes to ask for the next batch
        done.append(torch.cuda.Event())
        done[-1].record()


def test_copies_beside_the_steps_change_nothing(tmp_path: Path) -> None:
    words = ("-m", "loader=dataloader", "loader.pin_memory=false,true", "training.batch_size=32", "model.dropout=0.25")
    done = on_gpu(tmp_path, *SHORT, *words)
    assert done.returncode == 0, done.stderr
    receipts = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/receipt.json")]
    trained = [receipt["weights_sha256"] for receipt in receipts if "weights_sha256" in receipt]
    assert len(trained) == 2 and len(set(trained)) == 1


def test_a_gpt_reaches_a_plain_loops_loss_in_a_third_of_its_time(tmp_path: Path) -> None:
    """experiment=gpt_gpu against nanoGPT's configuration for an A100, compiled and in bfloat16 too, on one text.

    Seconds of steps alone on both sides: neither compiling nor validations count, nor the plain loop's first 20 steps.
    """
    plain = peer("gpt_plain.py", "5000", "0", "a100")
    done = on_gpu(tmp_path, "experiment=gpt_gpu", "stage.baselines=false", "stage.attention=false", "tracking=none")
    assert done.returncode == 0, done.stderr
    receipt, (run,) = receipt_of(tmp_path), runs(tmp_path)
    assert set(receipt["precision"]["observed"]["matrix_products"]) == {"bfloat16"}  # type: ignore[index]
    result, training = read_result(run), read_config(run)["training"]
    assert result is not None
    found = values((*result.metrics, *result.last_epoch))
    share, loss = found["model_flop_utilization"], found["validation/loss"]
    tokens = training["steps"] * training["batch_size"] * int(str(receipt["task"]["units"]))
    seconds = tokens / float(str(receipt["training_rate"]["min"]))  # the slowest period's
    ours = f"{seconds:.2f} s of steps, {loss:.4f} nats, {share:.1%} of a matmul's rate"
    print(f"the plain loop: {plain}; ours: {ours}, {receipt['training_s']} s with start and validations")
    assert loss <= plain["validation_loss"]
    assert seconds <= plain["seconds"] / 3
