"""The order of the test files: the long ones first, so that two workers end at about the same time."""

from __future__ import annotations

import pytest

# Whole files, longest first (measured; a file that is not here is short). xdist hands out a file at a time.
LONG = (
    "test_parity",
    "test_precision",
    "test_amp",
    "test_profilers",
    "test_classifier",
    "test_study",
    "test_sweep_failures",
    "test_clusters",
    "test_reproducible",
    "test_search",
    "test_sweep",
    "test_tracking",
    "test_own_models",
    "test_loss_scale",
    "test_compile",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONG)))
