"""What all tests share: the order of the files, the part of them that runs, and JAX's compiled programs."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from parts import chosen, part_of

JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"

# Whole files, longest first (measured; a file that is not here is short). xdist hands out a file at a time.
LONG = (
    "test_classifier",
    "test_study",
    "test_pinn",
    "test_command_line",
    "test_parity",
    "test_wmma",
    "test_amp",
    "test_code",
    "test_sweep",
    "test_own",
    "test_profilers",
    "test_ladder",
    "test_compile",
    "test_resume",
    "test_precision",
    "test_tracking",
    "test_interrupt",
    "test_search",
    "test_tasks",
    "test_devices",
    "test_fetch",
    "test_language_models",
    "test_found",
    "test_solvers",
    "test_generation",
    "test_own_metrics",
    "test_training",
    "test_compose",
    "test_own_data",
    "test_export",
    "test_resume_pinn",
    "test_overrides",
    "test_long_range",
    "test_frameworks",
    "test_installed",
    "test_adapters",
    "test_reproducible",
    "test_kernel_faults",
    "test_lean_import",
    "test_loading",
    "test_processes",
    "test_kernels",
    "test_loss_scale",
    "test_own_trainings",
    "test_bench_gpu",
    "test_graph",
    "test_cuda_kernels",
    "test_nvrtc",
    "test_runs",
    "test_saved",
    "test_normalisation",
    "test_runs_delete",
    "test_sweep_workers",
    "test_plugins",
    "test_sweep_failures",
    "test_own_page",
    "test_samples",
    "test_others",
    "test_own_models",
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
