"""CUDA C++ compiled for GPUs that are not there, and its machine code read: NVRTC and nvdisasm from packages."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import Impossible, RunError, UserError
from pipeline.kernels import nvrtc, on_card, sass
from pipeline.kernels.cuda import driver
from pipeline.kernels.cuda.built import built
from pipeline.kernels.cuda.function import COMMON, FOLDER
from pipeline.kernels.cuda.grid_stride import GridStride
from pipeline.kernels.cuda.naive import Naive
from pipeline.kernels.cuda.of_file import Source
from pipeline.kernels.cuda.source import CudaSource
from pipeline.kernels.cuda.tuned import Tuned
from pipeline.kernels.cuda.wgmma import Wgmma
from pipeline.kernels.cuda.wgmma_persistent import WgmmaPersistent
from pipeline.kernels.named import every
from pipeline.machine.device import Device, Gpu
from pipeline.machine.installed import is_installed
from pipeline.spec import build_as
from pipeline.stages.wmma import machine_code
from pipeline.stages.wmma.stage import Wmma

pytestmark = pytest.mark.skipif(nvrtc.missing_packages() is not None, reason="the extra `kernels` is not installed")

NOTHING: Any = SimpleNamespace(seed=0, device=Device())
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
KERNELS = tuple(kernel for kernel in every() if isinstance(kernel, CudaSource))


def check(kernel: CudaSource, dtype: str, architecture: int) -> None:
    """`built` refuses what exceeds the limits of the kernel, and what lacks its instructions."""
    made = built(kernel, dtype, architecture)
    assert 16 <= made.registers <= kernel.registers
    assert made.cubin.startswith(b"\x7fELF")


def test_naive_has_its_tensor_core_instructions_and_keeps_within_its_registers() -> None:
    check(Naive(), "fp16", 80)


@pytest.mark.wide
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda one: one.name)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "tf32", "int8"])
def test_every_build_has_its_tensor_core_instructions_and_keeps_within_its_registers(
    kernel: CudaSource, dtype: str
) -> None:
    if dtype not in kernel.dtypes:
        pytest.skip(f"{kernel.name} takes {', '.join(kernel.dtypes)}")
    oldest = kernel.architectures[dtype]
    for architecture in ARCHITECTURES:
        if architecture == oldest or (architecture > oldest and not kernel.specific):
            check(kernel, dtype, architecture)


def test_the_instructions_are_as_many_as_the_source_says() -> None:
    found = sass.instructions(nvrtc.compiled(FOLDER / "tiled.cu", 80, ("FP16",)).cubin)
    # A warp multiplies 2×2 tiles of 16×16×16 in each of two steps; one takes two instructions (m16n8k16).
    assert found["HMMA"] == 2 * 2 * 2 * 2
    assert found["BAR"] == 2
    assert found["LDSM"] == 2 * 2 * 2  # two tiles of A and two of B in each step
    assert not found["LDGSTS"]


@pytest.mark.wide
def test_each_commit_of_copies_is_an_instruction() -> None:
    """Two ways, each with one commit in the loop and, before it, one or (where the compiler unrolls that) two."""
    assert sass.instructions(built(Tuned(), "fp16", 90).cubin)["LDGDEPBAR"] in (4, 5, 6)


@pytest.mark.wide
@pytest.mark.parametrize("kernel", [Wgmma(), WgmmaPersistent()], ids=lambda one: one.name)
def test_wgmma_multiplies_and_copies_by_as_many_instructions_as_the_source_says(kernel: CudaSource) -> None:
    found = sass.instructions(built(kernel, "fp16", 90).cubin)
    boxes = 2 if kernel.name == "wgmma" else 1  # of 64 rows for each warpgroup
    assert found["HGMMA"] == boxes * 64 // 16
    assert found["UTMALDG"] == 2 + 1  # two boxes of A, one of B
    assert kernel.machine_code("fp16", 100) is None  # no later card runs it


@pytest.mark.wide
def test_products_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    for name in Wgmma.sources:
        shutil.copy(FOLDER / name, tmp_path)
    ring = tmp_path / "ring.cuh"
    ring.write_text(ring.read_text().replace("wgmma_commit();", "sums[0][0] += 1;\n        wgmma_commit();"))

    class Waits(Wgmma):
        source = tmp_path / "wgmma.cu"
        beside = tuple(tmp_path / name for name in Wgmma.sources[1:])

    with pytest.raises(RunError, match=r"sm_90: its products wait for each other: .*wgmma.*serialized"):
        built(Waits(), "fp16", 90)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kernel", "size"),
    [
        (Tuned(), "Shared"),
        (Wgmma(), "Ring<BLOCK_M, BLOCK_N, STAGES>"),
        (WgmmaPersistent(), "Ring<BLOCK_M, BLOCK_N, STAGES>"),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
@pytest.mark.parametrize("dtype", Tuned.dtypes)
def test_dynamic_shared_memory_is_as_large_as_the_launch_says(kernel: CudaSource, size: str, dtype: str) -> None:
    text = kernel.source.read_text()
    for architecture in (90,) if kernel.specific else (80, 86, 90, 120):
        check = f"{text}\nstatic_assert(sizeof({size}) == {kernel.shared(dtype, architecture)});\n"
        _compiled(check, *kernel.defines(dtype, architecture), architecture=architecture, specific=kernel.specific)


def _compiled(text: str, *defines: str, architecture: int = 80, specific: bool = False) -> nvrtc.Compiled:
    """A source that is not one of our files."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mine.cu"
        file.write_text(text)
        return nvrtc.compiled(file, architecture, defines, (FOLDER / COMMON,), specific=specific)


def test_a_build_whose_tensor_core_instructions_vanished_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.cu"
    text = (FOLDER / "naive.cu").read_text()
    file.write_text(text.replace("wmma::mma_sync(sums, a, b, sums);", "").replace("gemm_naive", "gemm"))

    class Mine(Source):
        tensor_core = Naive.tensor_core

    with pytest.raises(RunError, match=r"mine, fp16, sm_80: its machine code has no HMMA$"):
        built(Mine(file=str(file)), "fp16", 80)

    class Narrow(Source):
        registers = 24

    file.write_text(text.replace("gemm_naive", "gemm"))
    with pytest.raises(RunError, match=r"takes \d+ registers a thread, and may take 24$"):
        built(Narrow(file=str(file)), "fp16", 80)


def test_machine_code_is_made_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this and every later process, until the source changes; what is not whole is made again."""
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    made: list[str] = []
    compiled, counted = nvrtc.compiled, sass._counted

    def noted_compiled(*arguments: Any, **settings: Any) -> nvrtc.Compiled:
        made.append("compiled")
        return compiled(*arguments, **settings)

    def noted_counted(*arguments: Any) -> Any:
        made.append("counted")
        return counted(*arguments)

    monkeypatch.setattr(nvrtc, "compiled", noted_compiled)
    monkeypatch.setattr(sass, "_counted", noted_counted)
    first, again = (built(Naive(), "fp16", 80) for _ in range(2))
    assert first == again
    assert made == ["compiled", "counted"]
    built(Naive(), "bf16", 80)
    assert made == ["compiled", "counted"] * 2
    for file in (tmp_path / "kernels").iterdir():
        file.write_text(file.read_text()[:100])
    assert built(Naive(), "fp16", 80) == first
    assert made == ["compiled", "counted"] * 3

    class Changed(Naive):
        source = tmp_path / "naive.cu"

    Changed.source.write_text((FOLDER / "naive.cu").read_text() + "// changed\n")
    built(Changed(), "fp16", 80)
    assert made[6:] == ["compiled"]  # to the same machine code, which has been read


@pytest.mark.wide
def test_a_build_with_fewer_registers_than_setmaxnreg_hands_out_is_refused() -> None:
    """One that takes as many is `test_every_build_has_its_tensor_core_instructions_and_keeps_within_its_registers`."""

    class More(WgmmaPersistent):
        registers = 176

    said = r"takes 168 registers a thread; with fewer than 176 it would wait for ever$"
    with pytest.raises(RunError, match=said):
        built(More(), "fp16", 90)


def test_spilled_registers_are_counted() -> None:
    text = """extern "C" __global__ void __launch_bounds__(1024, 2) gemm(const float *A, float *D, int n) {
        float kept[96];
        #pragma unroll
        for (int i = 0; i < 96; i++) kept[i] = A[i * n + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 96; i++) D[i * n + threadIdx.x] = kept[95 - i] * kept[i];
    }"""
    made = _compiled(text)
    assert made.spilled > 100
    assert made.registers <= 32
    found = sass.instructions(made.cubin)
    assert found["STL"]
    assert found["LDL"]


def test_a_source_that_does_not_compile_is_shown_with_the_compilers_lines() -> None:
    with pytest.raises(
        UserError, match=r"mine\.cu: does not compile \(NVRTC 1\d\.\d+, sm_80\): mine\.cu\(1\): error: .*nothing"
    ):
        _compiled('extern "C" __global__ void gemm(int *x) { x[0] = nothing; }')


GROUPED = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void gemm(float *x) {
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    x[threadIdx.x] = cg::reduce(tile, x[threadIdx.x], cg::plus<float>());
}
"""


@pytest.mark.skipif(not is_installed(nvrtc.GROUPS), reason="their package is not installed")
def test_a_kernel_with_cooperative_groups_compiles() -> None:
    """Their headers include those of another package, which the extra `kernels` has."""
    assert sass.instructions(_compiled(GROUPED).cubin)["SHFL"]


def test_a_header_of_another_package_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "is_installed", lambda name: name != "nvidia-cuda-cccl")
    with pytest.raises(UserError, match=r"nvidia-cuda-cccl is not installed; .*pip install .*\[kernels\]'\)$"):
        _compiled('#include <cuda/nothing_of_the_kind>\nextern "C" __global__ void gemm(int *x) { x[0] = 1; }')


LARGE = """extern "C" __global__ void gemm(float *x) {
    __shared__ float kept[100000];
    kept[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = kept[99999 - threadIdx.x];
}
"""


def test_what_the_assembler_refuses_is_named_by_its_error() -> None:
    """The message had the assembler's first line, which is none: "ptxas info    : 0 bytes gmem"."""
    with pytest.raises(
        UserError, match=r"^mine\.cu: does not compile \(NVRTC .*, sm_80\): ptxas error .*uses too much shared data"
    ):
        _compiled(LARGE)


THREE = """extern "C" __global__ void __launch_bounds__(32) first(float *D) { D[threadIdx.x] = 1; }
extern "C" __global__ void gemm(const float *A, float *D) {
    __shared__ float kept[64];
    kept[threadIdx.x] = A[threadIdx.x];
    __syncthreads();
    D[threadIdx.x] = kept[63 - threadIdx.x] * A[3] + A[4];
}
extern "C" __global__ void last(float *D) { D[threadIdx.x] = 2; }
"""


def test_of_several_kernels_in_a_file_one_is_described(tmp_path: Path) -> None:
    """The one that is launched, wherever it stands."""
    file = tmp_path / "mine.cu"
    file.write_text(THREE)
    made = built(Source(file=str(file)), "fp32", 80)
    assert made.shared == 256
    assert sass.instructions(made.cubin, "gemm")["BAR"] == 1
    assert sass.instructions(made.cubin, "gemm")["FFMA"] == 1
    assert not sass.instructions(made.cubin, "last")["BAR"]
    file.write_text(THREE.replace("gemm", "product"))
    with pytest.raises(
        UserError, match=r'mine\.cu: no kernel gemm, it has last, product, first; declare it extern "C"'
    ):
        built(Source(file=str(file)), "fp32", 80)


def test_the_same_files_are_compiled_once_and_changed_ones_again(tmp_path: Path) -> None:
    header, file = tmp_path / "number.h", tmp_path / "mine.cu"
    file.write_text('#include "number.h"\nextern "C" __global__ void gemm(int *x) { x[0] = NUMBER; }')
    header.write_text("#define NUMBER 1\n")
    kernel = Source(file=str(file))
    first = built(kernel, "fp32", 80)
    assert built(kernel, "fp32", 80) is first
    assert built(kernel, "fp16", 80) is not first
    header.write_text("#define NUMBER 2\n")
    assert built(kernel, "fp32", 80).cubin != first.cubin


def test_an_architecture_that_nvrtc_lacks_is_named() -> None:
    with pytest.raises(UserError, match=r"naive\.cu for sm_70: NVRTC 1\d\.\d+ compiles for 75, 80, "):
        nvrtc.compiled(FOLDER / "naive.cu", 70, ("FP16",))


def test_nvrtc_compiles_each_time() -> None:
    """With a driver it keeps a cache on disk; what comes from there comes without the assembler's messages."""
    assert "--no-cache" in nvrtc.flags(80)


def test_missing_packages_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "is_installed", lambda name: name != "nvidia-cuda-crt")
    said = nvrtc.missing_packages()
    assert said is not None
    assert said.startswith("nvidia-cuda-crt is not installed; ")
    assert "[kernels]" in said


def headers_in(*roots: Path) -> SimpleNamespace:
    """The namespace of NVIDIA's packages, with the folders of several environments."""
    return SimpleNamespace(submodule_search_locations=list(map(str, roots)))


def test_headers_may_lie_in_two_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has the package of mma.h, the other that of crt/mma.h, which it includes."""
    headers = {file.name: file for folder in nvrtc._library()[0] for file in folder.iterdir()}  # here too, perhaps
    for root, left_out in (("one", "crt"), ("two", "mma.h")):
        folder = tmp_path / root / "cu13" / "include"
        folder.mkdir(parents=True)
        for name, file in headers.items():
            if name not in (left_out, "cccl"):
                (folder / name).symlink_to(file)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: headers_in(tmp_path / "one", tmp_path / "two"))
    monkeypatch.setattr(nvrtc, "missing_packages", lambda: None)
    monkeypatch.setattr(nvrtc, "_library", nvrtc._library.__wrapped__)
    assert [one.parts[-3] for one in nvrtc._library()[0]] == ["one", "two"]
    assert _compiled((FOLDER / "naive.cu").read_text(), "FP16").registers >= 16


def test_the_compiler_may_lie_in_another_environment(tmp_path: Path) -> None:
    """It ended in a traceback of cuda.bindings, which had looked for the library in its own environment alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "upper"], check=True, timeout=100)
    (site,) = (tmp_path / "upper").glob("lib/python*/site-packages")
    below = [one for one in sys.path if one.endswith("-packages")]
    (site / "below.pth").write_text("\n".join((*below, str(Path(nvrtc.__file__).parents[2]))))
    code = "from pipeline.kernels import nvrtc; print(nvrtc.version())"
    shown = subprocess.run(
        [tmp_path / "upper/bin/python", "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert shown.stdout == f"{nvrtc.version()}\n", shown.stderr


def test_what_nvrtc_opens_is_loaded_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC 13.0 compiled nothing: "failed to open libnvrtc-builtins.so.13.0", which lies beside it."""
    for name in ("include/mma.h", "include/crt/mma.h", "lib/libnvrtc.so.13", "lib/libnvrtc-builtins.so.13.0"):
        (tmp_path / "cu13" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cu13" / name).touch()
    loaded: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: headers_in(tmp_path))
    monkeypatch.setattr(nvrtc, "missing_packages", lambda: None)
    monkeypatch.setattr(nvrtc, "ctypes", SimpleNamespace(CDLL=loaded.append))
    nvrtc._library.__wrapped__()
    assert [Path(one).name for one in loaded] == ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]


def test_headers_that_are_lost_are_what_a_kernel_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In words: `numpy` runs beside it."""
    monkeypatch.setattr(on_card, "gpus", lambda: (Gpu(0, "a card", 1 << 34, (9, 0)),))
    monkeypatch.setattr(nvrtc, "missing_packages", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: headers_in(tmp_path))
    monkeypatch.setattr(nvrtc, "_library", nvrtc._library.__wrapped__)
    monkeypatch.setattr(nvrtc, "architectures", nvrtc.architectures.__wrapped__)
    said = driver.missing(Naive())
    assert said is not None
    assert said.startswith("an NVRTC that works: compiling CUDA C++: CUDA's headers are not beside their packages")


@pytest.mark.wide
def test_the_stage_shows_the_machine_code_of_what_cannot_be_run_here(tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text('#include "gemm.cuh"\nextern "C" __global__ void gemm(Element *x) { nothing(); }')
    kernels = (Naive(), GridStride(), Tuned(), Source(file=str(tmp_path / "mine.cu")))
    found = machine_code.built(kernels, lambda _: "fp16", (75, 80), 2)
    assert list(found)[:5] == [
        ("naive", "fp16", 75),
        ("naive", "fp16", 80),
        ("grid_stride", "fp16", 75),
        ("grid_stride", "fp16", 80),
        ("tuned", "fp16", 80),  # it needs 8.0
    ]
    refused = machine_code.refused(found)
    assert list(refused) == ["mine, fp16, sm_75", "mine, fp16, sm_80"]
    assert "mine.cu: does not compile (NVRTC" in refused["mine, fp16, sm_75"]
    (table,) = machine_code.table(found)
    assert {len(row) for row in table.rows} == {len(table.columns)}
    by_kernel = {row[:2]: row for row in table.rows}
    assert re.match(r"\d+ HMMA, \d+ FFMA, ", by_kernel["naive", "fp16, sm_80"][-1])
    assert "HMMA" not in by_kernel["grid_stride", "fp16, sm_80"][-1]
    assert "LDGSTS" in by_kernel["tuned", "fp16, sm_80"][-1]
    assert by_kernel["mine", "fp16, sm_75"][-1] == "REFUSED"


def test_an_architecture_that_there_is_not_is_refused_before_the_run() -> None:
    stage = Wmma(kernels=(Naive(),), dtype="fp16", architectures=(80, 70))
    with pytest.raises(UserError, match=r"stage\.architectures=70: no such choice; .*75, 80"):
        stage.check(NOTHING)


def test_an_architecture_that_none_of_the_kernels_is_compiled_for_is_refused() -> None:
    """In silence nothing would be compiled."""
    for kernels, dtype, said in (
        (("numpy",), None, r"=80: none of stage\.kernels=\[numpy\] is compiled for it in fp32; leave it out$"),
        (
            ("tuned", "numpy"),
            "fp16",
            r"=75: none of stage\.kernels=\[tuned\] is compiled for it in fp16; choose from 80, ",
        ),
        (("wgmma",), None, r"=100: none of stage\.kernels=\[wgmma\] is compiled for it in fp\d+; choose from 90$"),
    ):
        named = kernels if dtype is None else kernels[:1]
        one = {"numpy": 80, "tuned": 75, "wgmma": 100}[named[0]]
        stage = build_as(Wmma, {"kernels": named, "dtype": dtype, "architectures": (one,)}, "stage")
        with pytest.raises(UserError, match=rf"^stage\.architectures{said}"):
            stage.check(NOTHING)
    build_as(Wmma, {"kernels": ("numpy", "tuned"), "architectures": (80,)}, "stage").check(NOTHING)  # tuned, in fp16


@pytest.mark.parametrize(
    ("newest", "said"),
    [((13, 0), None), ((14, 1), None), (None, None), ((12, 8), "a driver for CUDA 13; this one runs CUDA 12.8")],
)
def test_a_driver_too_old_for_the_cubin_is_named_before_anything_is_launched(
    newest: tuple[int, int] | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_card, "gpus", lambda: (Gpu(0, "a card", 1 << 34, (9, 0)),))
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 5))
    monkeypatch.setattr(driver, "driver_cuda", lambda: newest)
    assert driver.missing(Naive()) == said
    monkeypatch.setattr(on_card, "gpus", lambda: (Gpu(0, "an old card", 1 << 34, (7, 0)),))
    assert driver.missing(Naive()) == "compute capability 7.5 or newer; an old card has 7.0"


def test_without_the_packages_nothing_is_shown_as_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "is_installed", lambda _: False)
    assert Wmma(dtype="fp16").compiled_for == ()
    with pytest.raises(Impossible, match=r"^stage\.architectures=\[80\]: .* not installed; .*\[kernels\]"):
        Wmma(dtype="fp16", architectures=(80,)).check(NOTHING)
