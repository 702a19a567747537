"""What a receipt says of the code, the config and the versions, apart from the run that it belongs to."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import brought, environment, failed, pipeline, refused
from in_backend import experiment

from pipeline import experiment as experiments
from pipeline.machine import host as machine
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Gpu, Place
from pipeline.machine.environment import differences
from pipeline.machine.environment import environment as variables
from pipeline.runs import receipt as receipts
from pipeline.runs.hardware import device_differences
from pipeline.runs.receipt import hardware, unscaled, versions
from pipeline.runs.repositories import git_state, repositories
from pipeline.sweep.history import software_differences

SOURCE = Path(__file__).parents[1] / "src" / "pipeline"
GIT = ("git", "-c", "user.name=me", "-c", "user.email=me@example.org")


def said(code: str, folder: Path, *search: Path) -> Any:
    """What a process in `folder` that imports from the folders of `search` prints as JSON."""
    result = environment(PYTHONPATH=":".join(map(str, search)))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=result, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


# The commit


def git(folder: Path, *words: str) -> str:
    done = subprocess.run([*GIT, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def committed(folder: Path) -> str:
    """Make `folder` a repository of all that it holds and does not ignore; its commit."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return git(folder, "rev-parse", "HEAD")


def state(folder: Path, search: Path) -> Any:
    return said(
        "import json; from pipeline.runs.repositories import git_state; print(json.dumps(git_state()))", folder, search
    )


def package(where: Path) -> Path:
    shutil.copytree(SOURCE, where / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    return where


def test_commit_of_a_checkout_and_what_makes_it_dirty(tmp_path: Path) -> None:
    package(tmp_path / "src")
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mlp.yaml").write_text("units: [128]\n")
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    commit = committed(tmp_path)
    assert state(tmp_path, tmp_path / "src") == {"commit": commit, "dirty": False}
    (tmp_path / "notes.txt").write_text("of no consequence")
    assert state(tmp_path, tmp_path / "src")["dirty"] is False
    for name in ("conf/model/mine.yaml", "src/pipeline/models/mine.py"):
        (tmp_path / name).write_text("# new\n")
        assert state(tmp_path, tmp_path / "src") == {"commit": commit, "dirty": True}
        (tmp_path / name).unlink()
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    assert state(tmp_path, tmp_path / "src")["dirty"] is True


def test_a_repository_that_only_contains_the_installed_package_is_not_its_commit(tmp_path: Path) -> None:
    site = package(tmp_path / ".venv" / "site-packages")
    (tmp_path / ".gitignore").write_text(".venv/\n")
    committed(tmp_path)
    assert state(tmp_path, site) == {"commit": None, "dirty": None}


def module(folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True)
    (folder / "models.py").write_text("UNITS = 1\n")
    return {"models": folder / "models.py"}


def test_repositories_of_the_users_code_and_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of this package's checkout says nothing about them, and theirs nothing about it."""
    own = module(tmp_path / "lab" / "src")
    here = tmp_path / "paper"
    here.mkdir()
    (here / "notes.md").write_text("first")
    commits = [committed(tmp_path / "lab"), committed(here)]
    monkeypatch.chdir(here)
    found = repositories(own)
    assert found["pipeline"] == git_state()
    assert found["own_code"] == {"lab": {"commit": commits[0], "dirty": False, "modules": "models"}}
    assert found["current_folder"] == {"repository": "paper", "commit": commits[1], "dirty": False}

    (here / "notes.md").write_text("second")
    assert repositories(own)["current_folder"]["dirty"] is True
    assert repositories(own)["own_code"]["lab"]["dirty"] is False
    (here / "notes.md").write_text("first")
    own["models"].write_text("UNITS = 2\n")
    assert repositories(own)["own_code"]["lab"]["dirty"] is True
    assert repositories(own)["current_folder"]["dirty"] is False
    own["models"].write_text("UNITS = 1\n")
    (own["models"].parent / "unused.py").write_text("")
    assert repositories(own)["own_code"]["lab"]["dirty"] is False
    (own["models"].parent / "new.py").write_text("")
    both = {**own, "new": own["models"].parent / "new.py"}
    assert repositories(both)["own_code"]["lab"] == {"commit": commits[0], "dirty": True, "modules": "models new"}
    monkeypatch.chdir(own["models"].parent)
    assert repositories(own).keys() == {"pipeline", "own_code"}  # the current folder's is named already


def test_a_file_that_the_code_reads_and_git_has_not_makes_it_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = module(tmp_path / "lab")
    for name in ("kept.npy", "new.npy", "ignored.npy"):
        (tmp_path / "lab" / name).write_text("1")
    (tmp_path / "lab" / ".gitignore").write_text("ignored.npy\nnew.npy\n")
    (tmp_path / "lab" / "link.npy").symlink_to(tmp_path / "far.npy")
    (tmp_path / "far.npy").write_text("1")
    committed(tmp_path / "lab")
    (tmp_path / "lab" / ".gitignore").write_text("ignored.npy\n")
    git(tmp_path / "lab", "commit", "--quiet", "--all", "--message", "ignored")
    for names, dirty in (
        (["kept.npy", "link.npy", "../far.npy"], False),
        (["new.npy"], True),
        (["kept.npy", "ignored.npy"], True),
    ):
        read = {"models": [tmp_path / "lab" / name for name in names]}
        assert repositories(own, read)["own_code"]["lab"]["dirty"] is dirty, names


def test_own_code_in_no_repository_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nowhere = {"commit": None, "dirty": None, "modules": "models"}
    assert repositories(module(tmp_path / "free"))["own_code"] == {"no repository": nowhere}
    inside = module(tmp_path / "other" / "ignored")
    (tmp_path / "other" / ".gitignore").write_text("ignored\n")
    committed(tmp_path / "other")
    assert repositories(inside)["own_code"] == {"other": nowhere}
    monkeypatch.chdir(inside["models"].parent)
    assert repositories({}).keys() == {"pipeline"}  # of this folder the repository has nothing


# The machine

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
cpu MHz\t\t: 2596.138
cache size\t: 1024 KB
flags\t\t: fpu sse sse2 pni fma avx f16c smep avx2 smap avx512f avx512_bf16

processor\t: 1
stepping\t: 2
"""
XEON = EPYC.replace("AuthenticAMD", "GenuineIntel").replace("avx512_bf16", "avx512_bf16 amx_tile amx_bf16")
ARM = """processor\t: 0
BogoMIPS\t: 2000.00
Features\t: fp asimd evtstrm aes fphp asimddp sve i8mm bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 1
"""


def test_what_libraries_choose_by_is_read_off_the_processor() -> None:
    assert machine.described(machine.entry(EPYC)) == {
        "vendor": "AuthenticAMD",
        "family": "25",
        "model": "17",
        "stepping": "1",
        "cache": "1024 KB",
        "vector": "avx avx2 avx512_bf16 avx512f f16c fma pni sse sse2",
    }
    assert {"amx_tile", "amx_bf16"} <= set(machine.described(machine.entry(XEON))["vector"].split())
    arm = machine.described(machine.entry(ARM))
    assert (arm["vendor"], arm["model"], arm["vector"]) == ("0x41", "0xd4f", "asimd asimddp bf16 fphp i8mm sve")
    assert machine.described({}) == {"vector": ""}


def test_processors_of_one_name_are_told_apart() -> None:
    one, other = ({"name": "AMD EPYC", "cores": 2, **machine.described(machine.entry(text))} for text in (EPYC, XEON))
    assert device_differences(one, one) == []
    assert device_differences(one, {**one, "stepping": "2"}) == ["the device (AMD EPYC: stepping 1 -> 2)"]
    assert device_differences({"name": "AMD EPYC", "cores": 2}, one)[0].startswith(
        "the device (AMD EPYC: vendor None -> AuthenticAMD, family None -> 25, "
    )
    assert device_differences(one, {**other, "vendor": one["vendor"]}) == [
        "the device (AMD EPYC: vector +amx_bf16 +amx_tile)"
    ]
    card = {"name": "NVIDIA H200", "memory_bytes": 1, "compute_capability": "9.0"}
    assert device_differences({**card, "host": one}, {**card, "host": {**one, "model": "18"}}) == [
        "the machine (AMD EPYC: model 17 -> 18)"
    ]
    assert device_differences({**card, "host": one}, {**card, "memory_bytes": 2, "host": one}) == [
        "the device (NVIDIA H200: memory_bytes 1 -> 2)"
    ]


def test_the_hardware_of_a_run_is_its_card_and_a_processor_of_any_number_of_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards = (Gpu(0, "NVIDIA A100", 1, (8, 0)), Gpu(1, "NVIDIA H200", 2, (9, 0)))
    monkeypatch.setattr(receipts, "gpus", lambda: cards)
    alone, beside = (hardware(Resolved(Place(*place), "fp32", "", "")) for place in (("cpu",), ("gpu", 1)))
    assert "cores" in alone and alone["name"]
    host = {name: value for name, value in alone.items() if name != "cores"}
    assert beside == {"name": "NVIDIA H200", "memory_bytes": 2, "compute_capability": "9.0", "host": host}


@pytest.mark.parametrize(
    ("precision", "layers", "said"),
    [
        ("fp16", [], "precision=fp16"),
        ("fp32", ["float16", None], "model.layer_dtypes=[float16,null]"),
        ("fp32", ["bfloat16", None], None),
        *((name, [], None) for name in ("fp64", "fp32", "tf32", "bf16", "mixed_fp16", "mixed_bf16")),
    ],
)
def test_who_trains_in_half_precision_without_loss_scaling(
    precision: str, layers: list[str | None], said: str | None
) -> None:
    """So that gradients vanish in it, which nobody should find out by the result."""
    resolved = Resolved(Place("cpu"), precision, "", "")
    assert unscaled(experiment("torch", model=("mlp", {"layer_dtypes": layers})), resolved) == said
    assert unscaled(experiment("torch", stage="evaluate"), resolved) is None  # which trains nothing


@pytest.mark.parametrize(
    ("place", "shown"),
    [("cpu", ["libc 2.35 -> 2.36"]), ("gpu", ["libc 2.35 -> 2.36", "driver 1 -> 2", "torch-cuda 12 -> None"])],
)
def test_versions_of_cuda_decide_on_a_gpu(place: Any, shown: list[str]) -> None:
    resolved = Resolved(Place(place), "fp32", "", "")
    then, now = {"libc": "2.35", "driver": "1", "mlflow": "1", "torch-cuda": "12"}, {"libc": "2.36", "driver": "2"}
    assert software_differences(then, now, resolved) == shown


# The environment


def test_variables_that_change_numbers() -> None:
    deciding = {
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=true",
        "NVIDIA_TF32_OVERRIDE": "0",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_CBWR": "AVX2",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "JAX_DEFAULT_MATMUL_PRECISION": "high",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": "AVX2",
        "NCCL_ALGO": "Ring",
    }
    others: tuple[str, ...] = (
        "HOME",
        "KERAS_BACKEND",
        "DDE_BACKEND",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "EPATH_USE_TF",
    )
    others += (
        "TF_CPP_MIN_LOG_LEVEL",
        "TORCH_CPP_LOG_LEVEL",
        "XLA_CLIENT_MEM_FRACTION",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
    )
    others += ("JAX_COMPILATION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK")
    others += ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE")
    assert variables({**deciding, **dict.fromkeys(others, "1")}) == deciding
    assert differences({}, deciding)[-1] == "XLA_FLAGS unset -> --xla_cpu_enable_fast_math=true"
    assert differences({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": ""}) == ["OMP_NUM_THREADS 1 -> empty"]
    assert differences(deciding, deciding) == []


def test_the_linkers_variables_are_those_that_the_process_began_with() -> None:
    """OpenCV's import changes LD_LIBRARY_PATH: a run said so, and a grid then ran its cells again."""
    code = (
        "import json, os; os.environ['LD_LIBRARY_PATH'] = '/imported:/begun'; os.environ['LD_PRELOAD'] = '/none.so'; "
        "from pipeline.machine.environment import environment; print(json.dumps(environment()))"
    )
    there = {**environment(), "LD_LIBRARY_PATH": "/begun"}
    done = subprocess.run([sys.executable, "-c", code], env=there, capture_output=True, text=True, check=True)
    assert {name: value for name, value in json.loads(done.stdout).items() if name.startswith("LD_")} == {
        "LD_LIBRARY_PATH": "/begun"
    }


# The config


def config_hash(config: dict[str, Any], **changes: Any) -> str:
    changed = dict(config)
    for key, value in changes.items():
        group, _, name = key.partition("__")
        changed[group] = {**changed[group], name: value} if name else value
    return experiments.load(changed).config_sha256()


def test_an_integer_where_a_setting_is_a_float_is_that_float(tmp_path: Path) -> None:
    shown = pipeline(tmp_path, "--cfg", "job", "--resolve", "optimizer=sgd")
    config = yaml.safe_load(shown.stdout)
    for key in ("optimizer__learning_rate", "training__clip_norm", "optimizer__momentum"):
        value = 0 if key.endswith("momentum") else 1
        assert config_hash(config, **{key: value}) == config_hash(config, **{key: float(value)})
    adapters = {"model__adapters": {"rank": 4, "alpha": 1}, "model__start": "weights.npz"}
    assert config_hash(config, **adapters) == config_hash(
        config, **adapters | {"model__adapters": {"rank": 4, "alpha": 1.0}}
    )
    assert config_hash(config, training__clip_norm=1) != config_hash(config, training__clip_norm=2)


def test_config_hash_is_of_what_decides_the_result(tmp_path: Path) -> None:
    shown = pipeline(tmp_path, "--cfg", "job", "--resolve")
    config = yaml.safe_load(shown.stdout)
    same = config_hash(config)
    for change in ({"dataset__cache": "a"}, {"dataset__folder": "b"}, {"output_dir": "c"}, {"name": "e"}):
        assert config_hash(config, **change) == same
    others = ({"dataset__validation": 1}, {"seed": 1}, {"model__units": [3]}, {"training__epochs": 1})
    assert same not in [config_hash(config, **change) for change in others]


# Versions


def test_a_framework_that_another_distribution_brings_has_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tensorflow-cpu brings tensorflow, which was `not installed` in the receipt of a training by it."""
    monkeypatch.syspath_prepend(str(brought(tmp_path, "brought")))
    found = versions(("brought", "no-such-package"), always=())
    assert (found["brought"], found["no-such-package"]) == ("1.5 (brought-cpu)", "not installed")


def test_versions_name_the_part_of_jax_that_computes() -> None:
    assert {"python", "jax", "jaxlib", "keras", "numpy"} <= versions(("jax", "keras")).keys()
    assert "jaxlib" not in versions(("torch",))


ASK = "import json; from pipeline import backends; from pipeline.machine import cuda; "
ASK += "print(json.dumps(dict(cuda.versions(backends.Torch()))))"


@pytest.mark.parametrize("built_for", ["'13.0'", "None"])
def test_versions_of_cuda_where_torch_is_built_for_it(tmp_path: Path, built_for: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"debug = False\ncuda: Optional[str] = {built_for}\nhip = '6.0'\n")
    (tmp_path / "nvidia_cudnn_cu13-9.15.dist-info").mkdir()
    metadata = tmp_path / "nvidia_cudnn_cu13-9.15.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: nvidia-cudnn-cu13\nVersion: 9.15\n")
    found = said(ASK, tmp_path, tmp_path, SOURCE.parent)
    if built_for == "None":
        assert found == {}
    else:
        assert (found["torch-cuda"], found["nvidia-cudnn-cu13"]) == ("13.0", "9.15")
        assert found["driver"]


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("PL_TRAINER_LIMIT_VAL_BATCHES", "Lightning's Trainer takes a setting from it"),
        ("KERAS_MAX_EPOCHS", "Keras's fit ends a training by it"),
    ],
)
def test_a_variable_that_would_change_a_training_in_silence_is_refused(tmp_path: Path, name: str, who: str) -> None:
    """A validation of one batch stood for that of all, and a grid without the variable took it over."""
    said = refused(tmp_path, "dataset=digits", **{name: "1"})
    assert said.startswith(f"{name}=1: {who}") and said.endswith("which no config or receipt would show; unset it")


def test_a_variable_by_which_jax_compiles_nothing_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, "dataset=digits", "backend=jax", JAX_DISABLE_JIT="1")
    assert said == "JAX_DISABLE_JIT=1: backend=jax compiles each step; unset it"


@pytest.mark.parametrize("dataset", ["digits", "ode"])
def test_a_variable_that_the_framework_does_not_take_is_one_message(tmp_path: Path, dataset: str) -> None:
    stage = {"digits": "classifier", "ode": "pinn"}[dataset]
    said = failed(tmp_path, f"stage={stage}", f"dataset={dataset}", "backend=jax", JAX_ENABLE_X64="maybe")
    assert said.startswith("backend=jax cannot be imported: ValueError: invalid truth value 'maybe' for environment")
