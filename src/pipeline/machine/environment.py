"""The variables of the environment that change numbers, each with the reason; what the rest says decides no result.

A * stands for any letters. What this package or a framework's import sets by itself is not among them, so that a grid's
cell, whose process has imported the framework before, says the same as a run alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline.errors import UserError

DECIDING = {
    # The number of threads and the library's code: how a sum is split, and so its last bits.
    "OMP_*": "OpenMP: threads of torch, of MKL and of oneDNN",
    "GOMP_*": "GNU's OpenMP",
    "KMP_*": "LLVM's and Intel's OpenMP",
    "MKL_*": "MKL: threads, instructions (MKL_ENABLE_INSTRUCTIONS), reproducibility (MKL_CBWR)",
    "OPENBLAS_*": "OpenBLAS: threads, and the processor that it takes this one for (OPENBLAS_CORETYPE)",
    "GOTO_NUM_THREADS": "OpenBLAS: threads, by its older name",
    "BLIS_*": "BLIS: threads, and the processor",
    "NUMEXPR_*": "NumExpr: threads",
    "ONEDNN_*": "oneDNN: instructions (ONEDNN_MAX_CPU_ISA), precision (ONEDNN_DEFAULT_FPMATH_MODE)",
    "DNNL_*": "oneDNN, by its older name",
    "ATEN_CPU_CAPABILITY": "torch: vector instructions",
    "NPY_*_CPU_FEATURES": "NumPy: vector instructions",
    "GLIBC_TUNABLES": "the C library: instructions of exp, sin and others",
    "LD_PRELOAD": "libraries in place of those that were linked",
    "LD_LIBRARY_PATH": "which CUDA, cuDNN or BLAS is found first",
    # GPUs
    "NVIDIA_TF32_OVERRIDE": "TF32 on or off in NVIDIA's libraries, whatever the framework says",
    "CUBLAS_*": "cuBLAS: its workspace, without which products are not reproducible",
    "CUBLASLT_*": "cuBLASLt: its workspace",
    "CUDNN_*": "cuDNN: which algorithms may be chosen",
    "NCCL_*": "NCCL: algorithm and protocol (NCCL_ALGO, NCCL_PROTO), and so the order in which gradients are added",
    "TRITON_*": "Triton: the precision of float32 products (TRITON_F32_DEFAULT)",
    # Frameworks
    "XLA_FLAGS": "XLA: fast arithmetic, fusions, algorithms",
    "JAX_*": "JAX: precision of products, x64, random numbers",
    "TF_ENABLE_*": "TensorFlow: oneDNN (TF_ENABLE_ONEDNN_OPTS), Winograd convolutions, TF32 of older versions",
    "TF_DISABLE_*": "TensorFlow: the same, the other way",
    "TF_XLA_FLAGS": "TensorFlow: what XLA compiles unasked",
    "TF_CUDNN_*": "TensorFlow: algorithms of cuDNN",
    "TF_USE_*": "TensorFlow: cuBLASLt, autotuning",
    "TF_DETERMINISTIC_OPS": "TensorFlow: only reproducible kernels",
    "TF_NUM_*": "TensorFlow: threads",
    "TF_OVERRIDE_GLOBAL_THREADPOOL": "TensorFlow: threads",
    "TF_ONEDNN_*": "TensorFlow: oneDNN's threads and precision",
    "TORCH_*": "torch: TF32 (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE), preferred libraries",
    "TORCHDYNAMO_*": "torch's compiler: whether it compiles at all (TORCHDYNAMO_DISABLE)",
    "TORCHINDUCTOR_*": "torch's compiler",
    "PYTORCH_*": "torch: JIT, fusers",
    "KERAS_HOME": "Keras: a keras.json with its own epsilon",
    "KERAS_NNX_ENABLED": "Keras: variables of Flax's kind on JAX",
    "PYTHONHASHSEED": "Python: the order of sets",
}
# Of those, what decides nothing: set by an import, or about logs, caches and memory.
IGNORED = (
    "KMP_INIT_AT_FORK",  # set by scikit-learn's import
    "KMP_DUPLICATE_LIB_OK",  # the same
    "KMP_WARNINGS",
    "KMP_SETTINGS",
    "OMP_DISPLAY_*",
    "OMP_WAIT_POLICY",  # how threads wait for each other
    "GOMP_SPINCOUNT",  # the same
    "*_VERBOSE",
    "*_CACHE_DIR",
    "*_LOG*",
    "*_ALLOC_CONF",
    "CUDNN_PATH",
    "CUDNN_HOME",
    "JAX_PLATFORMS",  # the device is in the receipt
    "JAX_PLATFORM_NAME",
    "JAX_*COMPILATION_CACHE*",
    "JAX_PERSISTENT_CACHE_*",
    "JAX_TRACEBACK_*",
    "TORCH_HOME",
    "TORCH_CPP_*",
    "TORCH_SHOW_*",
    "NCCL_DEBUG*",
    "NCCL_SOCKET_*",  # by which way processes find each other
    "NCCL_IB_*",  # the same
    "PYTORCH_NVML_*",  # set by Lightning's import
    "TRITON_HOME",
)
# From which a framework takes settings of a training where a call does not name them: no config would show them.
SETTINGS = {
    "PL_TRAINER_*": "Lightning's Trainer takes a setting from it (pytorch_lightning.utilities.argparse)",
    "KERAS_MAX_EPOCHS": "Keras's fit ends a training by it",
    "KERAS_MAX_STEPS_PER_EPOCH": "Keras's fit ends an epoch by it",
}
# What a cluster's node, or its scheduler, sets for a job: the submitting machine's values mean nothing there.
NODES_OWN = (
    "SLURM_*",
    "SLURMD_*",
    "SRUN_*",
    "TMPDIR",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "XDG_RUNTIME_DIR",
)
# What this package or a framework's import sets by itself: it says nothing of the user's.
SET_BY_IMPORTS = (
    "*_BACKEND",  # Keras's and DeepXDE's
    "*_LOG_LEVEL",
    "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING",
    "EPATH_USE_TF",
    "HYDRA_*",
    "KMP_*",
    "MLFLOW_*",
    "PIPELINE_*",
    "PYTORCH_NVML_*",
    "TF2_BEHAVIOR",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "XLA_PYTHON_CLIENT_*",
)


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The deciding variables that are set (of `variables`, by default this process's), by name."""
    found = _own() if variables is None else variables
    return {name: found[name] for name in sorted(found) if _decides(name)}


def refuse_settings() -> None:
    """Raises UserError where a variable would change a training that the config describes otherwise."""
    for pattern, what in SETTINGS.items():
        for name in sorted(os.environ):
            if fnmatchcase(name, pattern):
                raise UserError(f"{name}={os.environ[name]}: {what}, which no config or receipt would show; unset it")


def is_nodes_own(name: str) -> bool:
    """Whether a node sets this variable by itself."""
    return any(fnmatchcase(name, pattern) for pattern in NODES_OWN)


def is_users(name: str) -> bool:
    """Whether a variable that the user's code reads is the user's to set."""
    return not is_nodes_own(name) and not any(fnmatchcase(name, pattern) for pattern in SET_BY_IMPORTS)


def handed_on(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that a cluster's nodes are given. What a linker reads is theirs too: their libraries lie elsewhere."""
    return {name: value for name, value in variables.items() if not (name.startswith("LD_") or is_nodes_own(name))}


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """How two environments differ, in words: `XLA_FLAGS unset -> --xla_cpu_enable_fast_math=true`."""
    names = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    return [f"{name} {_shown(then.get(name))} -> {_shown(now.get(name))}" for name in names]


def _own() -> dict[str, str]:
    """This process's variables; what the linker reads as it was when the process began, the only time that it reads it.

    OpenCV's import adds a folder to LD_LIBRARY_PATH, which changes nothing for the process that it is in (ld.so(8)).
    """
    try:
        begun = Path("/proc/self/environ").read_bytes()  # of the program's start: proc(5)
    except OSError:
        return dict(os.environ)
    pairs = [os.fsdecode(line).partition("=") for line in begun.split(b"\0") if line.startswith(b"LD_")]
    others = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    return others | {name: value for name, _, value in pairs}


def _decides(name: str) -> bool:
    decides = any(fnmatchcase(name, pattern) for pattern in DECIDING)
    return decides and not any(fnmatchcase(name, pattern) for pattern in IGNORED)


def _shown(value: str | None) -> str:
    return "unset" if value is None else value or "empty"
