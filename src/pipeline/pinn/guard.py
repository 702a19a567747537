"""The precision guard: before training, what the chosen precision loses in residuals and derivatives.

A network's derivatives multiply rounding errors: a loss that looks small may be noise. Here a Glorot network of the
run's shape (not the solver's own start, which may be another) is evaluated in NumPy at sample points, in float64 and
again as the precision rounds, and the two are held together.
Source: Hayford et al., "Speeding up and reducing memory usage for scientific machine learning via mixed precision",
CMAME 428 (2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.contracts.physics import Problem
from pipeline.machine.precision import FORMATS, Format
from pipeline.pinn import jets
from pipeline.pinn.solution import Layers, outputs

LIMIT = 1e-4  # of the residual: above it a training has little to go by
SAMPLE = 256  # points
FEWEST = 4  # points, of a network however wide
WORK = 16_000_000  # multiply-adds without BLAS: some 0.3 s
IN_BLAS = ("float32", "float64")  # NumPy multiplies other dtypes a hundred times more slowly
PLAIN = {"first": "first derivatives", "second": "second derivatives"}


class Tf32Kernel:
    """A kernel as Tensor Cores multiply it: operands with 10 bits of mantissa, sums in float32."""

    __array_ufunc__ = None  # so that `array @ kernel` comes here

    def __init__(self, kernel: np.ndarray) -> None:
        self.kernel = tf32(kernel)

    def __rmatmul__(self, left: np.ndarray) -> np.ndarray:
        return tf32(left) @ self.kernel


def tf32(values: np.ndarray) -> np.ndarray:
    """float32 rounded to 10 bits of mantissa, to the nearest, as TF32 keeps them."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)).view(
        np.float32
    )


@dataclass(frozen=True)
class Guard:
    """Root-mean-square errors against float64, relative to the quantity itself, and what to beware of."""

    points: int
    errors: Mapping[str, float]
    warnings: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """For the receipt."""
        network = "a Glorot network of the run's shape, not the solver's start"
        return {
            "network": network,
            "points": self.points,
            "relative_errors": dict(self.errors),
            "warnings": list(self.warnings),
        }


def measure(problem: Problem, layers: Layers, precision: str, *, hard: bool, line_search: bool, seed: int) -> Guard:
    """What a precision loses on `layers`, a Glorot network."""
    count = sample_size(layers, *asked(problem), [FORMATS[precision].compute], WORK)
    points = problem.domain.inside(count, np.random.default_rng([seed, 2]))
    exact = quantities(problem, layers, points, "fp64", hard)
    rounded = quantities(problem, layers, points, precision, hard)
    errors = {name: _relative(rounded[name], exact[name]) for name in exact}
    return Guard(len(points), errors, tuple(warnings(precision, errors, line_search)))


def quantities(problem: Problem, layers: Layers, points: np.ndarray, precision: str, hard: bool) -> dict[str, Any]:
    """Values, derivatives and residuals at the points, computed in a precision."""
    form = FORMATS[precision]
    dtype = form.compute
    order, seconds = asked(problem)
    x = points.astype(dtype)
    rounded = as_computed(layers, dtype, form)
    with np.errstate(over="ignore", invalid="ignore"):  # float16 ends at 65504; that is what is to be reported
        jet = outputs(problem, jets.coordinates(np, x, seconds, order), rounded, hard=hard)
        columns = [x[:, index : index + 1] for index in range(x.shape[1])]
        residuals = problem.residuals(columns, jets.JetField(jet), np, problem.unknowns)
    found = {"value": jet.value, "first": jet.first, "second": jet.second}
    found |= {f"residual {name}": each for name, each in zip(problem.equations, residuals, strict=True)}
    return {name: array for name, array in found.items() if np.size(array)}


def sample_size(layers: Layers, order: int, seconds: jets.Seconds, dtypes: Sequence[str], work: int) -> int:
    """How many points to evaluate: fewer where one of `dtypes` is not in BLAS and `work` multiply-adds would not do."""
    if set(dtypes) <= set(IN_BLAS):
        return SAMPLE
    columns = layers[0][0].shape[0] if order else 0
    each = (1 + columns + len(seconds)) * sum(kernel.size for kernel, _ in layers)
    return max(FEWEST, min(SAMPLE, work // each))


def as_computed(layers: Layers, dtype: str, form: Format | None) -> Sequence[Any]:
    """The layers in `dtype`, their kernels multiplied as `form` does."""
    rounded: Sequence[Any] = [(kernel.astype(dtype), bias.astype(dtype)) for kernel, bias in layers]
    if form is not None and form.tf32:
        return [(Tf32Kernel(kernel), bias) for kernel, bias in rounded]
    return rounded


def asked(problem: Problem) -> tuple[int, jets.Seconds]:
    """The order of derivatives that the residuals ask for, and the second ones."""
    zero = np.zeros((1, 1))
    field = jets.Asked(np, zero)
    problem.residuals([zero] * len(problem.domain.names), field, np, problem.unknowns)
    return field.order, tuple(field.seconds)


def warnings(precision: str, errors: Mapping[str, float], line_search: bool) -> list[str]:
    """What a person should know before the training."""
    found = []
    worst = max(errors, key=lambda name: (np.isnan(errors[name]), errors[name]))
    loss_of_digits = f"an error of {errors[worst]:.1e} in the {PLAIN.get(worst, worst)} of a Glorot network"
    if FORMATS[precision].tf32 or FORMATS[precision].compute == "float16":
        kind = "TF32, with 10 bits of mantissa," if FORMATS[precision].tf32 else "float16"
        found.append(f"precision={precision}: {kind} leaves {loss_of_digits}; use precision=fp64, or fp32")
    elif not errors[worst] <= LIMIT:
        found.append(f"precision={precision}: {loss_of_digits}; use precision=fp64")
    if line_search and FORMATS[precision].compute != "float64":
        found.append(
            f"precision={precision} with L-BFGS: its line search takes rounding for convergence and stops early; "
            "use precision=fp64"
        )
    return found


def _relative(found: np.ndarray, exact: np.ndarray) -> float:
    difference = found.astype(np.float64) - exact
    return float(np.sqrt(np.mean(difference**2)) / max(np.sqrt(np.mean(exact**2)), np.finfo(float).tiny))
