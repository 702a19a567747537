"""stage=pinn through DeepXDE is DeepXDE's own training: the errors are those of DeepXDE without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import done

PLAIN = Path(__file__).parent.parent / "bench" / "peers" / "pinn_deepxde.py"
DATASETS = {"poisson": "poisson_lshape", "diffusion": "diffusion_inverse"}
FP64 = ("float64", "fp64")


@pytest.mark.parametrize(
    ("name", "precision", "steps", "lbfgs_steps", "tolerance"),
    [
        pytest.param("function", ("float32", "fp32"), 2_000, 0, 1e-4, id="function", marks=pytest.mark.wide),
        pytest.param("ode", ("float32", "fp32"), 500, 0, 1e-4, id="ode", marks=pytest.mark.wide),
        pytest.param("poisson", FP64, 210, 0, 1e-12, id="L-shape", marks=pytest.mark.wide),
        pytest.param("burgers", FP64, 20, 0, 1e-12, id="Burgers", marks=pytest.mark.wide),
        pytest.param("allen_cahn", FP64, 8, 0, 1e-12, id="Allen and Cahn", marks=pytest.mark.wide),
        pytest.param("diffusion", FP64, 60, 0, 1e-12, id="inverse", marks=pytest.mark.wide),
        pytest.param("poisson", FP64, 210, 1_000, 1e-9, id="L-shape, L-BFGS", marks=pytest.mark.slow),
        pytest.param("burgers", FP64, 20, 1_000, 1e-9, id="Burgers, L-BFGS", marks=pytest.mark.slow),
    ],
)
def test_the_stock_recipe_is_deepxdes_own(
    name: str, precision: tuple[str, str], steps: int, lbfgs_steps: int, tolerance: float, tmp_path: Path
) -> None:
    """The same error at the same seed: so the errors of our runs over some seeds are DeepXDE's.

    Steps are fewer than the recipe's, on one thread, since two may add up in another order. The network is evaluated in
    its own precision there, and in float64 here.
    """
    arguments = [name, precision[0], str(steps), str(lbfgs_steps), "3"]
    command, one = [sys.executable, str(PLAIN), *arguments], {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=one)
    plain = json.loads(said.stdout.splitlines()[-1])["error"]
    words = [f"dataset={DATASETS.get(name, name)}", f"precision={precision[1]}", f"solver.steps={steps}"]
    words += (
        ["solver=deepxde_adam_lbfgs", f"solver.lbfgs_steps={lbfgs_steps}"] if lbfgs_steps else ["solver=deepxde_adam"]
    )
    run = done(tmp_path, "stage=pinn", *words, "seed=3", "backend.threads=1", "tracking=none")
    ours = json.loads((run / "result.json").read_text())["scalars"]["test/relative_l2"]
    assert ours == pytest.approx(plain, rel=tolerance)
