"""Which GPUs an installed framework can use: decided from recorded facts of wheels, drivers and GPUs, on no GPU."""

from __future__ import annotations

import io
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pipeline import backends, ready, runner
from pipeline.errors import Impossible
from pipeline.machine import device, gpu_support, host
from pipeline.machine.capability import resolve
from pipeline.machine.device import Device, Gpu
from pipeline.machine.gpu_support import Build, runs_by, unusable
from pipeline.machine.installed import installed_version
from pipeline.runs import receipt
from pipeline.sweep import grid
from pipeline.sweep.plan import Cell, Decision

ROOT = Path(__file__).parent.parent

# As installed: torch 2.13.0 (torch/version.py, the text in libtorch_python.so) and TensorFlow 2.21.0 (build_info.py).
TORCH = Build("the installed torch", (13, 0), ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"))
TENSORFLOW = Build("the installed tensorflow", (12, 5), ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90"))
JAX = Build("the installed JAX", (13, 0))

CARDS = {
    "P100": (6, 0),
    "V100": (7, 0),
    "T4": (7, 5),
    "A100": (8, 0),
    "L4": (8, 9),
    "H100": (9, 0),
    "B200": (10, 0),
    "RTX PRO 6000": (12, 0),
}
NEW_DRIVER = ((13, 0), "580.95.05")


def card(name: str) -> Gpu:
    return Gpu(0, name, 80 * 2**30, CARDS[name])


@pytest.mark.parametrize(
    ("build", "refused"),
    [(TORCH, {"P100", "V100"}), (JAX, {"P100", "V100"}), (TENSORFLOW, set())],
    ids=lambda value: value.framework if isinstance(value, Build) else "",
)
def test_a_gpu_without_kernels_is_refused(build: Build, refused: set[str]) -> None:
    assert {name for name in CARDS if unusable(build, card(name), *NEW_DRIVER)} == refused


def test_an_old_driver_is_refused_and_named() -> None:
    said = unusable(TORCH, card("A100"), (12, 8), "570.86.15")
    assert said == (
        "the installed torch is built for CUDA 13.0, which needs driver 580 or newer; "
        "the driver here is 570.86.15 (CUDA 12.8)"
    )
    assert unusable(TENSORFLOW, card("A100"), (12, 8), "570.86.15") is None
    assert unusable(TENSORFLOW, card("A100"), (12, 2), "535.54.03") is None  # the same major version is enough
    assert unusable(TORCH, card("A100"), None, None) is None  # a driver that does not say is not refused


def test_ptx_needs_a_driver_that_can_compile_it() -> None:
    assert unusable(TENSORFLOW, card("B200"), (12, 8), "570.86.15") is None
    said = unusable(TENSORFLOW, card("B200"), (12, 4), "550.54.14")
    assert said is not None
    assert said.startswith("the installed tensorflow has only PTX of CUDA 12.5 for this architecture, which the driver")


def test_what_is_missing_is_named() -> None:
    torch_12 = Build("the installed torch", (12, 8), ("sm_75", "sm_80"))
    assert unusable(torch_12, card("H100"), *NEW_DRIVER) == (
        "the installed torch has kernels for sm_75 sm_80; gpu:0 (H100) has compute capability 9.0"
    )


@pytest.mark.parametrize(
    ("kernels", "capability", "how"),
    [
        (["sm_80"], (8, 0), "binary"),
        (["sm_80"], (8, 9), "binary"),
        (["sm_86"], (8, 0), None),
        (["sm_80"], (9, 0), None),
        (["compute_80"], (9, 0), "PTX"),
        (["compute_90"], (8, 9), None),
        (["compute_80", "sm_90"], (9, 0), "binary"),
        (["sm_90a"], (9, 0), "binary"),
        (["sm_100a"], (10, 3), None),
        (["sm_100f"], (10, 3), "binary"),
        (["compute_100f"], (12, 0), None),
        (["compute_100a"], (10, 3), None),
    ],
)
def test_kernels_run_by_nvidias_rules(kernels: list[str], capability: tuple[int, int], how: str | None) -> None:
    assert runs_by(kernels, capability) == how


# Installations: the packages as pip leaves them


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages before the real ones."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for found in (gpu_support.torch, gpu_support.tensorflow, gpu_support.jax):
        found.cache_clear()
        monkeypatch.setattr(gpu_support, found.__name__, found.__wrapped__)
    return tmp_path


def installed(site: Path, name: str, version: str, requires: str = "", **files: str) -> None:
    """A distribution, with files (path with / as __: text) that its RECORD names and that it writes over others."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
    lines = []
    for path, text in files.items():
        target = site / path.replace("__", "/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        lines.append(f"{path.replace('__', '/')},sha256=x,{len(text)}\n")
    (info / "RECORD").write_text("".join(lines))


def test_torchs_cudnn_does_not_stand_for_tensorflows(site: Path) -> None:
    """torch's wheel for CUDA 13 brings nvidia/cudnn, in which a TensorFlow without CUDA packages finds nothing."""
    installed(site, "nvidia-cudnn-cu13", "9.20.0.48", nvidia__cudnn__lib__libcudnn="")
    assert backends.TensorFlow().no_gpu_because() == (
        "TensorFlow's CUDA packages are not installed (nvidia-cublas-cu12; install pipeline[gpu-tensorflow])"
    )


def test_the_package_that_was_installed_last_is_left_of_two(site: Path) -> None:
    installed(site, "nvidia-cudnn-cu12", "9.28", nvidia__cudnn__lib__libcudnn="of 12")
    assert gpu_support.overwritten(["nvidia-cudnn-cu12"]) is None
    installed(site, "nvidia-cudnn-cu13", "9.20", nvidia__cudnn__lib__libcudnn="that of 13")
    lost = "nvidia-cudnn-cu12 is overwritten by nvidia-cudnn-cu13, which lies in the same folder: "
    names = ["nvidia-cublas-cu12", "nvidia-cudnn-cu12"]
    assert gpu_support.overwritten(names) == (
        f"{lost}remove the nvidia-...-cu13 packages and reinstall the nvidia-...-cu12 ones"
    )
    assert gpu_support.overwritten(names, "gpu-tensorflow") == (
        f"{lost}the registry's torch brings it, so pip install '.[gpu-tensorflow]' alone ends here; "
        "in a new environment install torch's CPU build first"
    )
    assert gpu_support.overwritten(["nvidia-cudnn-cu13"]) is None


def test_packages_that_one_gpu_does_without_are_not_asked_about(site: Path) -> None:
    for name in ("nccl", "nvshmem"):
        installed(site, f"nvidia-{name}-cu12", "1", **{f"nvidia__{name}__lib": "of 12"})
        installed(site, f"nvidia-{name}-cu13", "1", **{f"nvidia__{name}__lib": "that of 13"})
    assert gpu_support.overwritten(["nvidia-nccl-cu12", "nvidia-nvshmem-cu12"]) is None


def test_torch_is_read_without_importing_it(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # other tests of this process import the real one
    (site / "torch/lib").mkdir(parents=True)
    (site / "torch/__init__.py").write_text("raise SystemExit('imported')")
    (site / "torch/version.py").write_text("debug = False\ncuda: Optional[str] = '13.0'\n")
    flags = b"\0sm_90\xff \0sm_75 sm_80 sm_86 sm_90 sm_100 sm_120\0compute_\0"
    (site / "torch/lib/libtorch_python.so").write_bytes(flags)
    installed(site, "torch", "2.13.0", 'Requires-Dist: nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"\n')
    assert gpu_support.torch() == TORCH
    assert gpu_support.reason(gpu_support.torch(), None) is None


@pytest.mark.parametrize(
    ("texts", "kernels"),
    [
        ((b"sm_90", b"sm_80 sm_90"), ("sm_80", "sm_90")),
        ((b"sm_80 sm_90", b"sm_90", b"sm_80 sm_90"), ("sm_80", "sm_90")),
        ((b"sm_80 sm_90", b"sm_75 sm_80"), ()),
        ((b"sm_", b"gfx90a"), ()),
    ],
)
def test_torchs_architectures_are_the_longest_text_of_them(
    texts: tuple[bytes, ...], kernels: tuple[str, ...], tmp_path: Path
) -> None:
    library = tmp_path / "libtorch_python.so"
    library.write_bytes(b"\0" + b"\0".join(texts) + b"\0")
    assert gpu_support.torch_kernels(library) == kernels
    assert unusable(Build("torch", (13, 0), ()), card("H100"), *NEW_DRIVER) is None  # not recorded, not refused


OLD = ((11, 4), "470.0")


@pytest.mark.parametrize("text", [None, "", "cuda = version()\n"])
def test_a_torch_that_does_not_say_is_not_refused(
    text: str | None, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (site / "torch").mkdir()
    (site / "torch/__init__.py").touch()
    if text is not None:
        (site / "torch/version.py").write_text(text)
    build = gpu_support.torch()
    assert build == Build("the installed torch", None)
    assert unusable(build, card("P100"), *OLD) is None
    (site / "torch/version.py").write_text("cuda: Optional[str] = None\n")
    assert gpu_support.torch() == "the installed torch is a CPU build"


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (None, Build("the installed tensorflow", None)),
        ("build_info = made()\n", Build("the installed tensorflow", None)),
        ("build_info = (", Build("the installed tensorflow", None)),
        ("build_info = {'is_cuda_build': True}\n", Build("the installed tensorflow", None)),
        (
            "build_info = dict([\n ('is_cuda_build', True), ('cuda_compute_capabilities', ['sm_80', '9.0'])])\n",
            Build("the installed tensorflow", None),
        ),
        ("build_info = {\n 'is_cuda_build': False}\n", "the installed tensorflow is a CPU build"),
    ],
)
def test_a_tensorflow_that_does_not_say_is_not_refused(
    text: str | None, build: Build | str, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    (site / "tensorflow/python/platform").mkdir(parents=True)
    (site / "tensorflow/__init__.py").touch()
    if text is not None:
        (site / "tensorflow/python/platform/build_info.py").write_text(text)
    assert gpu_support.tensorflow() == build
    if isinstance(build, Build):
        assert unusable(build, card("P100"), *OLD) is None


def test_a_run_on_the_cpu_asks_no_framework_about_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(device, "gpus", lambda: (card("A100"),))
    monkeypatch.setattr(backends.Torch, "no_gpu_because", asked)
    parts = (backends.Torch(), Device(name="/CPU:0"), SimpleNamespace(name="fp32"))
    monkeypatch.setattr("pipeline.experiment.place_of", lambda _: parts)
    assert str(ready.cell_of({}).place) == "cpu"


def test_the_installed_tensorflow_is_read_without_importing_it() -> None:
    code = (
        "import sys; from pipeline.machine import gpu_support as g\n"
        "print(g.tensorflow_build((g._folder('tensorflow') / 'python/platform/build_info.py').read_text()))\n"
        "assert 'tensorflow' not in sys.modules"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'is_cuda_build': True" in found and "'cuda_compute_capabilities': ['sm_" in found


@pytest.mark.parametrize("name", gpu_support.JAX_CHOICES)
def test_jax_is_not_asked_for_what_the_environment_excludes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, excluded in (("cpu", True), ("cpu,tpu", True), ("cuda,cpu", False), ("GPU", False), ("", False)):
        assert bool(gpu_support.jax_excludes_cuda({name: value})) is excluded
    monkeypatch.setenv(name, "cpu")
    monkeypatch.setattr(gpu_support, "jax", gpu_support.jax.__wrapped__)
    why = backends.Jax().no_gpu_because()
    assert why == f"{name}=cpu excludes CUDA"
    found = resolve("jax", Device(), "fp32", (card("A100"),), (why,))
    assert (str(found.place), found.device_reason) == ("cpu", f"auto: {name}=cpu excludes CUDA")


def test_jax_leaves_out_a_plugin_of_another_version(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jaxlib = installed_version("jaxlib")
    assert backends.Jax().no_gpu_because() == "JAX's CUDA plugin is not installed (install pipeline[gpu-jax])"
    installed(site, "jax-cuda12-plugin", "0.0.1")
    assert backends.Jax().no_gpu_because() == (
        f"JAX leaves out its CUDA plugin 0.0.1 (jax-cuda12-plugin): jaxlib is {jaxlib}"
    )
    # A name that no environment has: torch's CUDA build brings those that JAX asks for.
    requires = 'Requires-Dist: nvidia-missing>=13.0.0.19; sys_platform == "linux" and extra == "with-cuda"\n'
    installed(site, "jax-cuda13-plugin", f"{jaxlib}", requires)
    monkeypatch.setattr(gpu_support, "_loads", lambda _: False)  # those of a CUDA torch that a test before has imported
    assert str(backends.Jax().no_gpu_because()).startswith("JAX's CUDA packages are not installed (nvidia-missing;")
    monkeypatch.setattr(gpu_support, "_loads", lambda _: True)  # CUDA of the system's
    assert gpu_support.jax() == JAX


def test_a_compiler_of_the_systems_stands_for_those_of_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only with libdevice, without which XLA compiles no exponential."""
    names = ("nvidia-cuda-nvcc", "nvidia-nvvm")

    def lacks(*names: str) -> str:
        return str(gpu_support.lacking(names, 14, "gpu-jax"))

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(gpu_support, "SYSTEMS", tmp_path)
    assert "(nvidia-cuda-nvcc; " in lacks(*names)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ptxas").touch(0o755)
    assert "(nvidia-cuda-nvcc; " in lacks(*names)
    (tmp_path / "nvvm/libdevice").mkdir(parents=True)
    (tmp_path / "nvvm/libdevice/libdevice.10.bc").touch()
    assert lacks(*names) == "None"
    assert "(nvidia-none; " in lacks(*names, "nvidia-none")


# What follows for a run


def test_auto_takes_the_first_gpu_that_the_framework_can_use() -> None:
    two = (card("V100"), Gpu(1, "A100", 80 * 2**30, (8, 0)))
    because = tuple(unusable(TORCH, gpu, *NEW_DRIVER) for gpu in two)
    found = resolve("torch", Device(), "fp32", two, because)
    assert str(found.place) == "gpu:1"
    assert found.device_reason == (
        "auto: the first GPU that it can use: the installed torch is built for CUDA 13.0, which needs compute "
        "capability 7.5 or newer; gpu:0 (V100) has compute capability 7.0"
    )
    with pytest.raises(Impossible, match=r"^device=gpu:0: .* compute capability 7\.0; device=gpu:1 runs here$"):
        resolve("torch", Device(name="gpu:0"), "fp32", two, because)
    alone = resolve("torch", Device(), "fp32", two[:1], because[:1])
    assert (str(alone.place), alone.device_reason) == ("cpu", f"auto: {because[0]}")
    with pytest.raises(Impossible, match=r"; device=cpu runs here$"):
        resolve("torch", Device(name="cuda:0"), "fp32", two[:1], because[:1])


def test_a_run_that_falls_back_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    run: Any = SimpleNamespace(id="r", say=said.append, checkpoint=None)
    experiment: Any = SimpleNamespace(name="x", precision=SimpleNamespace(name="fp32"), reads=lambda _: False)
    for gpus, expected in (((card("V100"),), 1), ((), 0)):
        monkeypatch.setattr(device, "gpus", lambda gpus=gpus: gpus)
        because = tuple(unusable(TORCH, gpu, *NEW_DRIVER) for gpu in gpus)
        said.clear()
        runner.announce(experiment, resolve("torch", Device(), "fp32", gpus, because), run)
        assert sum("device=auto: the installed torch is built for CUDA 13.0" in line for line in said) == expected


@pytest.mark.parametrize(
    ("precision", "flags", "warned"),
    [
        ("mixed", "avx2 fma", True),
        ("bf16", "avx2 fma", True),
        ("fp32", "avx2 fma", False),
        ("mixed", "avx2 avx512_bf16", False),
        ("mixed", "", False),  # the system does not say
    ],
)
def test_a_processor_without_bfloat16_is_named(
    monkeypatch: pytest.MonkeyPatch, precision: str, flags: str, warned: bool
) -> None:
    said: list[str] = []
    run: Any = SimpleNamespace(id="r", say=said.append, checkpoint=None)
    experiment: Any = SimpleNamespace(name="x", precision=SimpleNamespace(name=precision), reads=lambda _: True)
    monkeypatch.setattr(host, "_described", lambda: {"vector": flags})
    monkeypatch.setattr(receipt, "unscaled", lambda *_: None)
    runner.announce(experiment, resolve("torch", Device(), precision, (), ()), run)
    assert any("no instructions for bfloat16" in line for line in said) == warned


def test_a_grid_says_once_that_the_processor_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stood in the outputs of the cells alone, which nobody reads."""
    monkeypatch.setattr(host, "_described", lambda: {"vector": "avx2 fma"})
    experiment: Any = SimpleNamespace(reads=lambda _: True)
    decisions = []
    for number, precision in enumerate(("fp32", "bf16", "mixed", "bf16")):
        resolved = resolve("torch", Device(), precision, (), ())
        cell = Cell(number, {"precision": precision}, {}, [], experiment, resolved)
        decisions.append(Decision(cell, "done" if number == 3 else "run", "new"))
    written = io.StringIO()
    grid.announce(Console(file=written, width=200), decisions, every=False)
    said = [line for line in written.getvalue().splitlines() if "no instructions for bfloat16" in line]
    assert len(said) == 1 and said[0].startswith("2 of 3 cells to run: this processor "), written.getvalue()


# The extras


def test_no_extra_mixes_two_cudas() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    gpu = {name: needs for name, needs in project.items() if name.startswith("gpu")}
    assert gpu.keys() == {"gpu-jax", "gpu-tensorflow"}
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    for needs in gpu.values():
        (need,) = (need for need in needs if "==" in need)
        package, _, version = need.partition("==")
        assert f"{package.partition('[')[0]}=={version}" in pins
    assert gpu["gpu-jax"][-1].startswith("jax[cuda13]==")  # torch's registry build has CUDA 13 too
    assert not any("gpu" in need for name in ("all", "dev") for need in project[name])
