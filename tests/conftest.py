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
    "test_study",
    "test_own",
    "test_classifier",
    "test_compile",
    "test_command_line",
    "test_solvers",
    "test_pinn",
    "test_sweep",
    "test_profilers",
    "test_tasks",
    "test_interrupt",
    "test_tracking",
    "test_code",
    "test_amp",
    "test_resume",
    "test_generation",
    "test_own_metrics",
    "test_parity",
    "test_own_page",
    "test_search",
    "test_precision",
    "test_runs",
    "test_own_data",
    "test_plugins",
    "test_ladder",
    "test_sweep_failures",
    "test_normalisation",
    "test_found",
    "test_language_models",
    "test_sweep_workers",
    "test_pinn_comparison",
    "test_runs_delete",
    "test_own_trainings",
    "test_saved",
    "test_adapters",
    "test_long_range",
    "test_clusters",
    "test_export",
    "test_fetch",
    "test_recompute",
    "test_samples",
    "test_resume_pinn",
    "test_loss_scale",
    "test_rerun",
    "test_runs_compare",
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
