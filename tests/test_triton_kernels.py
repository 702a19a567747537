"""Kernels in Triton: right in its interpreter, found out once a part is missing, compiled without a GPU."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import RunError, UserError
from pipeline.kernels import nvrtc
from pipeline.kernels.check import check
from pipeline.kernels.gemm import Gemm, operands
from pipeline.kernels.named import kernels_of
from pipeline.kernels.triton.source import TritonSource
from pipeline.kernels.triton.triton import Triton
from pipeline.kernels.triton.triton_tma import TritonTma
from pipeline.kernels.verify import all_cases, verify
from pipeline.machine.device import Device
from pipeline.stages.wmma.stage import Wmma

pytest.importorskip("triton")

SMALL = (16, 32, 16)  # blocks of which the problems below take several
KERNELS: tuple[TritonSource, ...] = (Triton(block=SMALL), TritonTma(block=SMALL))


def right(kernel: TritonSource, gemm: Gemm, nan_c: bool = False) -> str | None:
    """What is wrong with a kernel's D; None where nothing is."""
    made = operands(gemm, 0, nan_c=nan_c)
    launch = kernel.rehearse(made)
    assert launch is not None
    launch.run()
    return check(made, launch.result()).fault


@pytest.mark.wide
def test_triton_is_right_on_every_class_of_problems() -> None:
    found = verify(Triton(), all_cases("fp16"), Triton().rehearse, seed=0)
    assert found.fault is None, found.fault
    assert found.n == len(all_cases("fp16"))
    assert 0 < found.error <= 1


@pytest.mark.wide
def test_descriptors_are_right_on_the_problems_that_tma_takes() -> None:
    found = verify(TritonTma(), all_cases("fp16"), TritonTma().rehearse, seed=0)
    assert found.fault is None, found.fault
    assert found.n == 18  # of 52: those whose leading dimensions are multiples of 8


@pytest.mark.wide
def test_tf32_is_right_on_every_class_of_problems() -> None:
    found = verify(Triton(), all_cases("tf32"), Triton().rehearse, seed=1)
    assert found.fault is None, found.fault
    assert found.n == len(all_cases("tf32"))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda one: one.module)
def test_several_tiles_slices_and_groups(kernel: TritonSource) -> None:
    """More tiles than programs, and more rows of tiles than a group has."""
    gemm = Gemm(m=150, n=88, k=72, dtype="fp16", order="row", alpha=-0.5, beta=1.0, pad=(8, 8, 5))
    assert right(kernel, gemm) is None
    assert right(kernel, replace(gemm, m=88, n=152, order="column", beta=0.0), nan_c=True) is None


# Not the masks of rows of A and columns of B that lie outside: what is read there reaches no element of D, and the
# interpreter does not mind.
MUTANTS = {
    "pointers": [
        ("(inner[None, :] < K - k)", "(inner[None, :] >= 0)"),
        ("(inner[:, None] < K - k)", "(inner[:, None] >= 0)"),
        ("from_a += BLOCK_K", "from_a += 0"),
    ],
    "descriptors": [
        ("shape=[M, K]", "shape=[M, K + 8]"),
        ("shape=[K, N]", "shape=[K + 8, N]"),
        ("tl.num_programs(0)", "2 * tl.num_programs(0)"),
        ("dot(a.load([row, k])", "dot(a.load([row, 0])"),
    ],
    "tiles": [
        ("(rows[:, None] < M) & ", ""),
        (" & (columns[None, :] < N)", ""),
        ("if READS_C:", "if True:"),
        ("alpha * sums", "sums"),
        ("min(GROUP, down - group * GROUP)", "GROUP"),
    ],
}


@pytest.mark.wide
def test_a_program_without_one_of_its_masks_or_steps_is_found_out(tmp_path: Path) -> None:
    """In a copy of the package, whose programs are changed one by one."""
    source, copied = Path(__file__).parents[1] / "src", tmp_path / "src"
    shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__"))
    folder = copied / "pipeline/kernels/triton/programs"
    mutants = {module: {module: MUTANTS[module], "tiles": MUTANTS["tiles"]} for module in ("pointers", "descriptors")}
    command = [sys.executable, "-B", str(Path(__file__).parent / "in_triton.py"), str(folder), json.dumps(mutants)]
    variables = os.environ | {"PYTHONPATH": str(copied), "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_bf16_is_not_verified_without_a_gpu() -> None:
    made = operands(Gemm(m=8, n=8, k=8, dtype="bf16"), 0)
    for kernel in KERNELS:
        assert not kernel.rehearses("bf16")
        assert kernel.rehearse(made) is None


def test_what_the_interpreter_raises_is_one_message() -> None:
    kernel = Triton(block=(16, 16, 16), warps=4)
    object.__setattr__(kernel, "module", "tiles")  # which has no kernel
    launch = kernel.rehearse(operands(Gemm(m=8, n=8, k=8, dtype="fp16"), 0))
    assert launch is not None
    with pytest.raises(RunError, match=r"^AttributeError") as raised:
        launch.run()
    assert "\n" not in str(raised.value)
    large = Triton(block=(4096, 4096, 16)).rehearse(operands(Gemm(m=8, n=8, k=8, dtype="fp16"), 0))
    assert large is not None
    with pytest.raises(RunError, match=r"^Triton: .*exceeds triton maximum tensor numel"):  # without RunError before it
        large.run()


PROGRAM = """import triton
import triton.language as tl


@triton.jit
def inner(D):
    tl.store(D, tl.dott(1.0))


@triton.jit
def gemm({}):
    inner(D)
"""


@pytest.mark.wide
def test_what_triton_cannot_compile_is_named_without_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message had the program from its first line on, in one line, and not what was wrong in a function of it."""
    names = ["A", "B", "C", "D", "M", "N", "K", "lda", "ldb", "ldc", "alpha", "beta"]
    constants = (f"{name}: tl.constexpr" for name in Triton(block=(16, 16, 16)).constants(Gemm(m=1, n=1, k=1)))
    (tmp_path / "mine_in_triton.py").write_text(PROGRAM.format(", ".join((*names, *constants))))
    monkeypatch.syspath_prepend(tmp_path)

    class Mine(Triton):
        def program(self) -> Any:
            return importlib.import_module("mine_in_triton").gemm

    with pytest.raises(RunError) as raised:
        Mine(block=(16, 16, 16)).machine_code("fp16", 90)
    said = str(raised.value).partition("sm_90: ")[2]
    assert said.startswith("Triton: at ") and "no attribute 'dott'" in said
    assert "constexpr" not in said and "\n" not in said and len(said) < 200


def test_a_block_is_as_large_as_the_shared_memory_of_a_gpu_allows() -> None:
    assert Triton().fitted(227 << 10).shape == (128, 256, 64)
    assert Triton().fitted(99 << 10).shape == (128, 128, 64)
    assert Triton(stages=5).fitted(227 << 10).shape == (128, 128, 64)
    asked = Triton(block=(128, 256, 64))
    assert asked.fitted(99 << 10) is asked  # refused, not changed
    assert Triton().fitted(0).shape == (128, 128, 64)


def test_settings_are_checked_and_named() -> None:
    with pytest.raises(UserError, match=r"stage\.kernels: block: 100: needs a power of two from 16 on"):
        Triton(block=(100, 128, 64))
    with pytest.raises(UserError, match=r"stage\.kernels: warps: 3: needs a power of two from 1 on"):
        TritonTma(warps=3)
    node = {"_target_": "pipeline.kernels.triton.triton.Triton", "block": [64, 64, 32], "stages": 2}
    found = kernels_of(("triton", "triton_tma", node))
    assert isinstance(found, tuple)
    assert [one.name for one in found] == ["triton", "triton_tma", "triton_64x64x32x8x2"]


def test_leading_dimensions_that_tma_cannot_copy_are_refused() -> None:
    ragged = Gemm(m=37, n=64, k=64, dtype="fp16")
    assert TritonTma().refusal(ragged) == (
        "takes leading dimensions of A and B that are multiples of 8 (16 bytes), not 37 and 64"
    )
    assert TritonTma().refusal(replace(ragged, pad=(3, 0, 0))) is None
    assert TritonTma().refusal(replace(ragged, order="row")) is None  # C and D may have any
    assert TritonTma().refusal(replace(ragged, dtype="tf32")) == "takes fp16, bf16, not tf32"


def test_sizes_that_around_adds_are_refused_before_the_run() -> None:
    stage = Wmma(kernels=(TritonTma(),), dtype="fp16", sizes=((64, 64, 64),), around=64)
    with pytest.raises(
        UserError, match=r"^stage\.around=64: triton_tma takes leading dimensions .* not 65 and 65 \(65"
    ):
        stage.check(SimpleNamespace(seed=0, device=Device()))  # type: ignore[arg-type]


@pytest.mark.skipif(nvrtc.missing_packages() is not None, reason="the extra `kernels` is not installed")
@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "tf32"])
@pytest.mark.parametrize("kernel", [Triton(), TritonTma()], ids=lambda one: one.name)
def test_every_build_has_its_tensor_core_instructions(kernel: TritonSource, dtype: str) -> None:
    """`machine_code` refuses what lacks them, and what takes more shared memory than there is."""
    if dtype not in kernel.dtypes:
        pytest.skip(f"{kernel.name} takes {', '.join(kernel.dtypes)}")
    for architecture in (90, 100) if kernel.copies else (80, 86, 90, 100, 120):
        made = kernel.machine_code(dtype, architecture)
        assert made is not None
        assert 16 <= made.registers <= 255
        assert made.spilled == 0


@pytest.mark.skipif(nvrtc.missing_packages() is not None, reason="the extra `kernels` is not installed")
@pytest.mark.wide
def test_a_build_that_a_card_would_refuse_is_refused() -> None:
    assert TritonTma().machine_code("fp16", 80) is None  # which has no TMA
    with pytest.raises(
        RunError, match=r"sm_120: takes 1\d\d,\d+ bytes of shared memory a block, and there are 101,376"
    ):
        TritonTma(block=(128, 256, 64)).machine_code("fp16", 120)
    smaller = TritonTma().machine_code("fp16", 120)
    assert smaller is not None
    assert smaller.instructions["HMMA"] and smaller.instructions["UTMALDG"]

    class Vanished(Triton):
        copies = "UTMALDG"

    with pytest.raises(RunError, match=r"fp16, sm_90: its machine code has no UTMALDG$"):
        Vanished().machine_code("fp16", 90)


@pytest.mark.parametrize(("value", "fused"), [(None, True), ("1", True), ("0", False)])
def test_products_and_sums_are_fused_unless_the_environment_says_otherwise(
    value: str | None, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton 3.9 warns that its default will change, after the table of each run."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    if value is None:
        monkeypatch.delenv("TRITON_DEFAULT_FP_FUSION", raising=False)
    else:
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", value)
    with warnings.catch_warnings(action="error"):
        options = make_backend(GPUTarget("cuda", 90, 32)).parse_options(Triton().options)
    assert options.enable_fp_fusion is fused
