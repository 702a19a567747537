"""DeepXDE with Adam, as the source has it: DeepXDE's geometry, sampling, network and training (rows A17 and A18)."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, ClassVar

from packaging.version import Version
from pydantic import Field, PositiveInt

from pipeline.contracts import Backend, offers
from pipeline.contracts.physics import Network, Problem, Solver
from pipeline.errors import Impossible, UserError
from pipeline.machine.installed import check_installed
from pipeline.pinn.domain import Polygon
from pipeline.spec import choice, spec

if TYPE_CHECKING:
    from pipeline.machine.device import Place
    from pipeline.pinn.solution import Solution
    from pipeline.runs.run import Run

# What DeepXDE imports on each backend besides the framework.
BESIDE = {
    "tensorflow": ("tensorflow-probability", "tf_keras"),
    "jax": ("flax", "optax"),
}
TRIANGLE = 3  # corners; for it, and for a rectangle, DeepXDE has geometries that are no polygon
CROSSES_NO_PLANE = "2.5"  # NumPy: numpy.cross of vectors of two numbers was removed


@spec
class DeepxdeAdam(Solver):
    """`steps` and `test_points` are those of the problem's recipe, where they are null.

    `every`: steps between two records of the loss.
    """

    steps: PositiveInt | None = None
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    every: PositiveInt = 100
    test_points: PositiveInt | None = None

    backends: ClassVar[tuple[str, ...]] = ("torch", "tensorflow", "jax")
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp64", "tf32", "fp16")
    packages: ClassVar[tuple[str, ...]] = ("deepxde",)

    def packages_on(self, backend: str) -> tuple[str, ...]:
        """Those that have the network, Adam or L-BFGS."""
        return BESIDE.get(backend, ())

    def steps_for(self, problem: Problem) -> int:
        """Of Adam."""
        return self.steps or problem.recipe.steps

    def lbfgs_steps_for(self, problem: Problem) -> int:
        """Of L-BFGS after it, at most."""
        return 0

    def line_search(self, problem: Problem) -> bool:
        """L-BFGS has one, to which rounding may look like the end."""
        return self.lbfgs_steps_for(problem) > 0

    def hard_for(self, problem: Problem) -> bool:
        """Whether the conditions on the boundary are built into the outputs: as the source has it."""
        return problem.recipe.hard

    def check(self, problem: Problem, precision: str) -> None:
        """Refuse a precision that DeepXDE lacks. Raises Impossible, and UserError for a recipe that does not fit."""
        if problem.recipe.hard and not offers(problem, Problem.hard):
            raise UserError(f"dataset={choice(problem)}: its recipe uses hard conditions, but it defines no hard()")
        if precision not in self.precisions:
            raise Impossible(  # tf32 and fp16 do not run with every backend and device
                f"precision={precision} with solver={choice(self)}: DeepXDE uses one dtype for everything and no loss "
                "scaling; use precision=fp32 or precision=fp64"
            )
        domain = problem.domain
        bare = not isinstance(domain, Polygon) or domain.is_rectangle or len(domain.vertices) == TRIANGLE
        if not bare and Version(version("numpy")) >= Version(CROSSES_NO_PLANE):
            raise Impossible(
                f"dataset={choice(problem)} with solver={choice(self)}: DeepXDE's polygons need a product of plane "
                f"vectors that NumPy {CROSSES_NO_PLANE} and newer lack, and NumPy {version('numpy')} is installed; "
                "pip install 'numpy<2.5', or use another solver"
            )

    def check_backend(self, backend: str, problem: Problem) -> None:
        """Refuse a backend for which DeepXDE lacks a package, or L-BFGS. Raises Impossible."""
        if backend == "jax" and self.lbfgs_steps_for(problem):
            raise Impossible(
                f"backend=jax with solver={choice(self)}: DeepXDE has no L-BFGS on JAX, and the recipe of "
                f"{choice(problem)} needs it; use backend=torch, or solver=deepxde_adam"
            )
        check_installed({f"backend={backend} with solver={choice(self)}": BESIDE.get(backend, ())})

    def check_precision(self, precision: str, backend: str) -> None:
        """Refuse float16 where the first steps end in NaN: Adam divides by the root of a square that underflows, and by
        its epsilon, which is 1e-8 there (1e-7 on TensorFlow). Raises Impossible.
        """
        if precision == "fp16" and backend != "tensorflow":
            raise Impossible(
                f"precision=fp16 with backend={backend} and solver={choice(self)}: the 1e-8 in Adam's denominator is 0 "
                "in float16, and the loss becomes NaN; use precision=fp32, or backend=tensorflow, which has 1e-7"
            )

    def solve(
        self, problem: Problem, model: Network, *, precision: str, seed: int, place: Place, run: Run, backend: Backend
    ) -> Solution:
        """Train. Raises RunError for a loss that is not finite."""
        from pipeline.pinn.solvers.deepxde_start import started, step_flop

        with started(backend, precision, seed, place, step_flop(problem, model)) as dde:
            from pipeline.pinn.solvers.deepxde_training import train

            return train(dde, self, problem, model, backend=backend.name, place=place, run=run)
