"""Kernels that are torch's: what of them a CPU can show, and on a GPU whether they are right."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from pipeline.errors import RunError
from pipeline.kernels import on_card
from pipeline.kernels.cpu.numpy import Numpy
from pipeline.kernels.gemm import Gemm, operands
from pipeline.kernels.torch import onednn
from pipeline.kernels.torch.cublas import Cublas
from pipeline.kernels.torch.onednn import Onednn
from pipeline.kernels.verify import Verdict, all_cases, verify
from pipeline.machine.device import Gpu, gpus
from pipeline.stages.wmma.bench import Bench
from pipeline.stages.wmma.stage import Wmma

torch = pytest.importorskip("torch")


def test_torchs_product_is_right_on_every_class_of_problems() -> None:
    """On the CPU, where its views, alpha, beta and D's margins are those of cuBLAS."""
    from pipeline.kernels.torch.launch import Matmul

    prepare = partial(Matmul, device="cpu", holder=SimpleNamespace(), settings={})
    found = verify(Cublas(), all_cases("fp32"), prepare, seed=0)
    assert found.fault is None
    assert found.n == len(all_cases("fp32"))


def test_what_torch_raises_is_one_message() -> None:
    from pipeline.kernels.torch.launch import Matmul

    launch = Matmul(operands(Gemm(m=8, n=8, k=8, dtype="fp16"), 0), "cpu", SimpleNamespace(), {})
    with pytest.raises(RunError, match=r"^NotImplementedError: .*aten::mm\.dtype_out") as raised:  # CUDA alone has it
        launch.run()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("fails", [False, True])
def test_settings_of_torch_are_put_back(fails: bool) -> None:
    from pipeline.kernels.torch.launch import with_values

    matmul = torch.backends.cuda.matmul
    names = ("fp32_precision", "allow_fp16_reduced_precision_reduction")
    before = [getattr(matmul, name) for name in names]
    try:
        with with_values(matmul, dict(zip(names, ("tf32", False), strict=True))):
            assert [getattr(matmul, name) for name in names] == ["tf32", False]
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert fails
    assert [getattr(matmul, name) for name in names] == before


def test_what_cublas_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if gpus():
        pytest.skip("there is a GPU")
    assert Cublas().missing() == "an NVIDIA GPU"
    monkeypatch.setattr(on_card, "gpus", lambda: (Gpu(0, "a card", 2**30, (8, 0)),))
    if torch.version.cuda is None:
        assert Cublas().missing() == "a torch that can use a card: the installed torch is a CPU build"
    assert on_card.missing_card((9, 0)) == "compute capability 9.0 or newer; a card has 8.0"
    assert on_card.missing_card((8, 0)) is None


def test_on_a_gpu_cublas_is_the_yardstick_elsewhere_numpy() -> None:
    stage = Wmma(kernels=(Numpy(), Cublas()), sizes=((8, 8, 8),), threads=1)
    bench = Bench(stage.plan(0), None)  # type: ignore[arg-type]  # it has nothing to say
    bench.verdicts = {name: Verdict(1, 0.0, 0.0) for name in ("numpy", "cublas")}
    bench.absent = {"cublas": "needs an NVIDIA GPU"}
    assert bench.yardstick == "numpy"
    bench.absent = {}
    assert bench.yardstick == "cublas"


def test_to_know_all_kernels_no_framework_is_imported() -> None:
    code = "import sys; from pipeline.kernels.named import every; every(); print({'torch', 'triton'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_what_onednn_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "cpu", lambda: {"vector": "avx512f avx512_bf16"})
    assert Onednn().missing() == "a CPU with AMX for bfloat16 (Intel, from 2023 on)"
    monkeypatch.setattr(onednn, "cpu", lambda: {"vector": "amx_bf16 avx512f"})
    monkeypatch.setattr(onednn, "version", lambda _: "2.13.0+cpu")
    assert Onednn().missing() is None
    monkeypatch.setattr(onednn, "version", lambda _: "2.11.0+cu130")  # it makes small products in float32
    assert Onednn().missing() == "torch 2.13 or newer"


def test_a_product_that_onednn_does_not_make_in_bfloat16_is_a_fault() -> None:
    """Here by a setting; on a processor without AMX torch takes float32 by itself."""
    from pipeline.kernels.torch.launch import OneDnn

    class InFloat32(OneDnn):
        precision = "ieee"

    with pytest.raises(RunError, match=r"^torch multiplies 128 bf16, column-major in float32 here$"):
        InFloat32(operands(Gemm(m=128, n=128, k=128, dtype="bf16"), 0), 2)


def test_a_product_that_torch_makes_in_float32_is_refused() -> None:
    small = "needs M, N and K from 32 on: torch makes smaller products in float32"
    assert Onednn().refusal(Gemm(m=64, n=64, k=31, dtype="bf16")) == small
    assert Onednn().refusal(Gemm(m=32, n=32, k=32, dtype="bf16")) is None
    assert Onednn().refusal(Gemm(m=8, n=8, k=8)) == "takes bf16, not fp32"


@pytest.mark.skipif(Onednn().missing() is not None, reason=f"needs {Onednn().missing()}")
def test_onednn_multiplies_in_bfloat16_on_its_own_threads_and_puts_settings_back() -> None:
    before = torch.get_num_threads(), torch.backends.mkldnn.matmul.fp32_precision
    launch = Onednn().prepare(operands(Gemm(m=128, n=128, k=128, dtype="bf16", pad=(3, 5, 7)), 0), before[0] + 1)
    launch.run()
    assert launch.facts["threads"] == before[0] + 1
    assert (torch.get_num_threads(), torch.backends.mkldnn.matmul.fp32_precision) == before


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", Cublas.dtypes)
def test_on_a_gpu_cublas_is_right_and_timed(dtype: str) -> None:
    if Cublas().missing():
        pytest.skip(f"needs {Cublas().missing()}")
    found = verify(Cublas(), all_cases(dtype), partial(Cublas().prepare, threads=1), seed=0)
    assert found.fault is None, found.fault
    launch = Cublas().prepare(operands(Gemm(m=1024, n=1024, k=1024, dtype=dtype), 0), 1)
    launch.run()
    assert 1e-6 < launch.seconds(10) < 1
    small = Cublas().prepare(operands(Gemm(m=64, n=64, k=64, dtype=dtype), 0), 1)
    small.run()
    assert small.seconds(250) < small.seconds(1)  # replayed, not launched by Python one after the other
