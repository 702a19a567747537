"""Padding in Keras: a row of a padded batch gets what it gets alone (torch: test_transformer.py, test_seq2seq.py)."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_row_of_a_padded_batch_is_what_it_is_alone(tmp_path: Path, backend: str) -> None:
    """For a layer of attention and for the whole of model=encoder_decoder, with each kind of positions."""
    script = Path(__file__).with_name("in_padding.py")
    command = [sys.executable, str(script), backend, str(tmp_path / "found")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = pickle.loads((tmp_path / "found").read_bytes())
    assert len(found) == 6
    for name, rows in found.items():
        assert len(rows) == 3, name
        for padded, alone in rows:
            assert np.abs(alone).max() > 0.1, name
            np.testing.assert_allclose(padded, alone, rtol=0, atol=1e-12, err_msg=name)
