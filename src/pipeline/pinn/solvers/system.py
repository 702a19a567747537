"""A problem as our solvers see it: points, residuals and loss as functions of one vector of parameters, in JAX.

Derivatives by the coordinates are pushed forward with the values (pipeline.pinn.jets), so a loss takes one reverse
pass, and only those that the equations ask for are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from pipeline.contracts.physics import Network, Problem
from pipeline.pinn import jets
from pipeline.pinn.guard import asked
from pipeline.pinn.problem import no_point, on_boundary, terms_of
from pipeline.pinn.solution import Fitted, enriched, outputs

INSIDE = "inside"

Data = dict[str, dict[str, Any]]  # of each part: its points `x`, what is `added` there, the `values` to be met


@dataclass(frozen=True)
class Ansatz:
    """How the outputs come about from the network; the settings are those of a solver (own.py)."""

    model: Network
    hard: bool = False
    enrichment: bool = False
    scale: float | None = None
    start: str = "glorot"
    condition_weight: float = 1.0
    graded: bool = False


class System:
    """`dtype` is that of everything it computes."""

    def __init__(self, problem: Problem, ansatz: Ansatz, dtype: str) -> None:
        self.problem, self.ansatz, self.dtype = problem, ansatz, dtype
        self.conditions = terms_of(problem, ansatz.hard)
        self.corner = problem.corner if ansatz.graded else None
        self.order, self.seconds = asked(problem)
        self.shift, self.stretch = self._scaling()
        self.parts = [*([INSIDE] if problem.equations else []), *(condition.name for condition in self.conditions)]
        self.names = (*problem.equations, *(condition.name for condition in self.conditions))
        flat, self.tree = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self._tree(0)))
        self.parameters = len(flat)

    def _scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """x is mapped to (x - shift) * stretch."""
        corners = self.problem.domain.grid(1000)
        low, high = corners.min(axis=0), corners.max(axis=0)
        if self.ansatz.scale is None:
            return np.zeros_like(low), np.ones_like(low)
        return (low + high) / 2, 2 * self.ansatz.scale / (high - low)

    def _tree(self, seed: int) -> dict[str, Any]:
        return {
            "layers": list(self.ansatz.model.initial(self.problem, seed)),
            "enrichment": np.zeros(len(self.problem.enriched) if self.ansatz.enrichment else 0),
            "unknowns": np.array(list(self.problem.unknowns.values()), float),
        }

    def initial(self, seed: int) -> np.ndarray:
        """Starting parameters: kernels Glorot uniform, biases and coefficients of the enrichment zero.

        With start=features the neurons of the first layer turn anywhere in the domain and the last layer is zero.
        """
        tree = self._tree(seed)
        if self.ansatz.start == "features":
            generator = np.random.default_rng([seed, 2])
            (kernel, bias), (last, _) = tree["layers"][0], tree["layers"][-1]
            kernel[:] = generator.uniform(-1, 1, kernel.shape)
            bias[:] = (self.ansatz.scale or 1.0) * generator.uniform(-1, 1, bias.shape)
            last[:] = 0
        leaves = jax.tree.leaves(tree)
        return np.concatenate([leaf.ravel() for leaf in leaves]).astype(self.dtype)

    def draw(self, generator: np.random.Generator) -> Data:
        """Points inside the domain, on its boundary and of measurements. Raises UserError for a part without any."""
        data: Data = {}
        if self.problem.equations:
            data[INSIDE] = self.inside(self.draw_inside(self.problem.interior, generator))
        edge = on_boundary(self.problem, generator)
        for condition in self.conditions:
            points = condition.points
            if points is None:
                points = edge if condition.on is None else edge[condition.on(edge)]
            if not len(points):
                raise no_point(self.problem, condition)
            part = self._part(points, 0, ())
            data[condition.name] = part | {"values": condition.values(points)[:, None].astype(self.dtype)}
        return data

    def count(self, data: Data) -> int:
        """How many residuals `vector` has."""
        return sum(
            len(part["x"]) * (len(self.problem.equations) if name == INSIDE else 1) for name, part in data.items()
        )

    def draw_inside(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Points (n, d) inside the domain, `graded` ones nearer and nearer to the problem's corner."""
        return (self.problem.domain.inside if self.corner is None else self.corner.draw)(n, generator)

    def inside(self, points: np.ndarray) -> dict[str, Any]:
        part = self._part(points, self.order, self.seconds)
        if self.corner is not None:
            part["weight"] = self.corner.weight(points)[:, None].astype(self.dtype)
        return part

    def _part(self, points: np.ndarray, order: int, seconds: jets.Seconds) -> dict[str, Any]:
        part = {"x": points.astype(self.dtype)}
        if self.ansatz.enrichment:  # it does not depend on the parameters: computed once, in float64
            added = enriched(self.problem, jets.coordinates(np, points, seconds, order)).parts
            part["added"] = added.swapaxes(0, 1).astype(self.dtype)  # points first, as in all that is mapped over them
        return part

    def layers(self, tree: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        """The network of the coordinates as they are: the mapping of the coordinates is part of its first layer."""
        (kernel, bias), *others = tree["layers"]
        if self.ansatz.scale is None:
            return [(kernel, bias), *others]
        kernel = kernel * self.stretch[:, None].astype(self.dtype)
        return [(kernel, bias - self.shift.astype(self.dtype) @ kernel), *others]

    def _residual(self, part: str, tree: Any, data: Mapping[str, Any]) -> Any:
        """What has to vanish in a part: (N, terms)."""
        if part != INSIDE:
            condition = next(one for one in self.conditions if one.name == part)
            found = self._outputs(tree, data, 0, ()).column(condition.output).value - data["values"]
            return found * data["weight"] if "weight" in data else found
        x = data["x"]
        field = jets.JetField(self._outputs(tree, data, self.order, self.seconds))
        columns = [x[:, index : index + 1] for index in range(x.shape[1])]
        unknowns = dict(zip(self.problem.unknowns, tree["unknowns"], strict=True))
        found = jnp.concatenate(self.problem.residuals(columns, field, jnp, unknowns), axis=1)
        return found * data["weight"] if "weight" in data else found

    def residuals(self, theta: Any, data: Data) -> list[tuple[str, Any]]:
        """Of each part its name and its residuals."""
        tree = self.tree(theta)
        return [(part, self._residual(part, tree, data[part])) for part in self.parts]

    def _outputs(self, tree: Any, part: Mapping[str, Any], order: int, seconds: jets.Seconds) -> jets.Jet:
        x = jets.coordinates(jnp, part["x"], seconds, order)
        added = None
        if "added" in part:
            added = jets.Jet(jnp, part["added"].swapaxes(0, 1), x.coordinates, x.seconds)
        enrichment = list(tree["enrichment"]) if added is not None else ()
        return outputs(self.problem, x, self.layers(tree), hard=self.ansatz.hard, enrichment=enrichment, added=added)

    def inside_residual(self, theta: Any, part: Any) -> Any:
        """The equations' residuals (N, equations) at the points of `part`."""
        return self._residual(INSIDE, self.tree(theta), part)

    def weight(self, name: str) -> float:
        """Of a part or of one of its terms."""
        return 1.0 if name in (INSIDE, *self.problem.equations) else self.ansatz.condition_weight

    def terms(self, theta: Any, data: Data) -> Any:
        """The mean square of each equation and condition, without weights, in the order of `names`."""
        return jnp.concatenate([jnp.mean(r * r, axis=0) for _, r in self.residuals(theta, data)])

    def loss(self, theta: Any, data: Data) -> Any:
        """The terms' weighted sum."""
        return sum(self.weight(part) / len(r) * jnp.sum(r * r) for part, r in self.residuals(theta, data))

    def vector(self, theta: Any, data: Data) -> Any:
        """All residuals as one vector, whose square is the loss."""
        found = self.residuals(theta, data)
        return jnp.concatenate([(self.weight(part) / len(r)) ** 0.5 * r.ravel() for part, r in found])

    def jacobian(self, theta: Any, data: Data) -> Any:
        """Of `vector` by `theta`."""
        return self._jacobian(lambda theta: theta, theta, data)

    def _jacobian(self, whole: Callable[[Any], Any], some: Any, data: Data) -> Any:
        """Of `vector` by `some` parameters, of which `whole` makes all. Point by point: no residual knows another's."""

        def rows(part: str) -> Any:
            def at(some: Any, point: Any) -> Any:
                return self._residual(part, self.tree(whole(some)), jax.tree.map(lambda a: a[None], point))[0]

            found = jax.vmap(jax.jacrev(at), in_axes=(None, 0))(some, data[part])
            return (self.weight(part) / len(found)) ** 0.5 * found.reshape(-1, found.shape[-1])

        return jnp.concatenate([rows(part) for part in self.parts])

    def last_layer(self) -> np.ndarray:
        """Where in the vector of parameters those are on which the outputs depend linearly."""
        marked = jax.tree.map(np.zeros_like, self._tree(0))
        for leaf in (*marked["layers"][-1], marked["enrichment"]):
            leaf[...] = 1
        return np.flatnonzero(np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(marked)]))

    def linear_model(self, theta: Any, data: Data) -> tuple[Any, Any]:
        """The residuals and their Jacobian by the last layer and the coefficients of the enrichment."""
        at = self.last_layer()
        return self.vector(theta, data), self._jacobian(theta.at[at].set, theta[at], data)

    def fitted(self, theta: np.ndarray) -> Fitted:
        """What `theta` says, as NumPy arrays."""
        tree = jax.tree.map(np.asarray, self.tree(jnp.asarray(theta)))
        layers = tuple((np.asarray(kernel), np.asarray(bias)) for kernel, bias in self.layers(tree))
        names = self.problem.enriched if self.ansatz.enrichment else ()
        enrichment = dict(zip(names, map(float, tree["enrichment"]), strict=True))
        unknowns = dict(zip(self.problem.unknowns, map(float, tree["unknowns"]), strict=True))
        return Fitted(layers, enrichment, unknowns, self.ansatz.hard, self.ansatz.enrichment)
