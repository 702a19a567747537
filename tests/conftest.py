"""What all tests share: the order of the files, the part of them that runs, Hypothesis's settings, and JAX's compiled
programs."""

from __future__ import annotations

import os
import shutil
import tempfile

import hypothesis
import pytest
from parts import chosen, part_of

# A clock fails no test: machines differ, and on each of them others compute.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"

# Whole files, longest first (measured; a file that is not here is short). xdist hands out a file at a time.
LONG = (
    "test_classifier",
    "test_command_line",
    "test_pinn",
    "test_study",
    "test_resume",
    "test_wmma",
    "test_runs",
    "test_sweep",
    "test_generation",
    "test_amp",
    "test_overrides",
    "test_fetch",
    "test_code",
    "test_own",
    "test_parity",
    "test_bench_gpu",
    "test_profilers",
    "test_devices",
    "test_long_range",
    "test_processes",
    "test_kernel_faults",
    "test_frameworks",
    "test_training",
    "test_runs_compare",
    "test_language_models",
    "test_regression",
    "test_precision",
    "test_search",
    "test_kernels",
    "test_tracking",
    "test_saved",
    "test_cuda_kernels",
    "test_loading",
    "test_adapters",
    "test_interrupt",
    "test_tasks",
    "test_runs_delete",
    "test_pinn_comparison",
    "test_nvrtc",
    "test_own_data",
    "test_matmul",
    "test_own_trainings",
    "test_compose",
    "test_rows",
    "test_shim",
    "test_own_metrics",
    "test_loss_scale",
    "test_nodes",
    "test_graph",
    "test_receipt",
    "test_datasets",
    "test_installed",
    "test_seq2seq",
    "test_export",
    "test_compile",
    "test_torch_layers",
    "test_normalisation",
    "test_journal",
    "test_plugins",
    "test_others",
    "test_augmentations",
    "test_rerun",
    "test_solvers",
    "test_reproducible",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", help="run one part of the tests that -m and -k choose, such as 2/6; 0/6 is the first")


@pytest.hookimpl(trylast=True)  # once -m and -k have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONG)))
    part = config.getoption("--part")
    if part is None:
        return
    try:
        number, count = part_of(part)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    wanted = chosen([item.path.name for item in items], number, count)
    config.hook.pytest_deselected(items=[item for item, here in zip(items, wanted, strict=True) if not here])
    items[:] = [item for item, here in zip(items, wanted, strict=True) if here]


def pytest_configure(config: pytest.Config) -> None:
    """JAX keeps what it compiles for the other processes of this session: many tests train the same small models."""
    if not hasattr(config, "workerinput"):
        os.environ[JAX_CACHE] = tempfile.mkdtemp(prefix="pipeline-jax-")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[JAX_CACHE], ignore_errors=True)
