"""Jets: values with their first derivatives and the second derivatives that are asked for, pushed forward together.

A Jet's `parts` is one array (1 + d + s, N, c): the value, the derivative by each of d coordinates, and for each of the
s entries of `seconds` the sum of the second derivatives by the coordinates it names, `(0, 1)` being the Laplacian of
the plane. A linear layer is then one matrix product, and the Laplacian of a plane costs four products, not the six of
reverse over reverse. Works on NumPy and on JAX arrays; `xp` is the module.
Source: Li et al., "Forward Laplacian" (Nature Machine Intelligence 6, 2024); Griewank & Walther, "Evaluating
Derivatives", chapter 13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Seconds = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Jet:
    """See the module. `order` 0 carries the value alone, 1 the first derivatives too, 2 also `seconds`."""

    xp: Any
    parts: Any
    coordinates: int
    seconds: Seconds

    @property
    def value(self) -> Any:
        return self.parts[0]

    @property
    def first(self) -> Any:
        """(d, N, c)."""
        return self.parts[1 : 1 + self.coordinates]

    @property
    def second(self) -> Any:
        """(s, N, c)."""
        return self.parts[1 + self.coordinates :]

    def like(self, value: Any, first: Any, second: Any) -> Jet:
        """A Jet of the same derivatives."""
        parts = self.xp.concatenate([value[None], first, second])
        return Jet(self.xp, parts, self.coordinates, self.seconds)

    def _pairs(self, left: Any, right: Any) -> Any:
        """For each entry of `seconds`, the products of first derivatives summed over its coordinates: (s, N, c)."""
        if not self.seconds:
            return self.second
        return self.xp.stack([sum(left[i] * right[i] for i in group) for group in self.seconds])

    def through(self, f: Any, slope: Any, bend: Any) -> Jet:
        """f(self) by the chain rule, from f, f' and f'' at the value."""
        return self.like(f, slope * self.first, slope * self.second + bend * self._pairs(self.first, self.first))

    def linear(self, kernel: Any, bias: Any) -> Jet:
        """`self @ kernel + bias`, (c, k) and (k,): one matrix product for all parts."""
        parts = self.parts @ kernel
        return self.like(parts[0] + bias, parts[1 : 1 + self.coordinates], parts[1 + self.coordinates :])

    def column(self, index: int) -> Jet:
        return Jet(self.xp, self.parts[..., index : index + 1], self.coordinates, self.seconds)

    def __add__(self, other: Any) -> Jet:
        if isinstance(other, Jet):
            return Jet(self.xp, self.parts + other.parts, self.coordinates, self.seconds)
        return self.like(self.value + other, self.first, self.second)

    def __mul__(self, other: Any) -> Jet:
        if not isinstance(other, Jet):
            return Jet(self.xp, self.parts * other, self.coordinates, self.seconds)
        return self.like(
            self.value * other.value,
            self.first * other.value + self.value * other.first,
            self.second * other.value + self.value * other.second + 2 * self._pairs(self.first, other.first),
        )

    def __pow__(self, power: float) -> Jet:
        v = self.value
        if not self.coordinates:  # the value alone, also where no derivative exists: in a corner
            return self.like(v**power, self.first, self.second)
        if power in (0, 1):
            return self.through(v**power, power * self.xp.ones_like(v), self.xp.zeros_like(v))
        return self.through(v**power, power * v ** (power - 1), power * (power - 1) * v ** (power - 2))

    def __neg__(self) -> Jet:
        return self * -1.0

    def __sub__(self, other: Any) -> Jet:
        return self + (-other)

    def __rsub__(self, other: Any) -> Jet:
        return -self + other

    def __truediv__(self, other: Any) -> Jet:
        return self * other**-1.0

    def __rtruediv__(self, other: Any) -> Jet:
        return self**-1.0 * other

    __radd__ = __add__
    __rmul__ = __mul__


class JetMath:
    """The functions that problem files use, for Jets; what is not a Jet goes to `xp`."""

    pi = 3.141592653589793

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def _apply(self, x: Any, name: str, rule: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
        f = getattr(self.xp, name)
        if not isinstance(x, Jet):
            return f(x)
        value = f(x.value)
        return x.through(value, *rule(x.value, value))

    def sin(self, x: Any) -> Any:
        return self._apply(x, "sin", lambda v, f: (self.xp.cos(v), -f))

    def cos(self, x: Any) -> Any:
        return self._apply(x, "cos", lambda v, f: (-self.xp.sin(v), -f))

    def exp(self, x: Any) -> Any:
        return self._apply(x, "exp", lambda _, f: (f, f))

    def log(self, x: Any) -> Any:
        return self._apply(x, "log", lambda v, _: (1 / v, -1 / v**2))

    def sqrt(self, x: Any) -> Any:
        return self._apply(x, "sqrt", lambda v, f: (0.5 / f, -0.25 / (f * v)))

    def tanh(self, x: Any) -> Any:
        return self._apply(x, "tanh", lambda _, f: (1 - f * f, -2 * f * (1 - f * f)))

    def arctan2(self, y: Any, x: Any) -> Any:
        """The angle of (x, y), of coordinates alone (its second derivatives are those of a harmonic function)."""
        if not isinstance(x, Jet):
            return self.xp.arctan2(y, x)
        if not x.coordinates:
            return x.like(self.xp.arctan2(y.value, x.value), x.first, x.second)
        square = x.value**2 + y.value**2
        by_x, by_y = -y.value / square, x.value / square
        by_xx, by_xy = 2 * x.value * y.value / square**2, (y.value**2 - x.value**2) / square**2
        xx, xy, yy = x._pairs(x.first, x.first), x._pairs(x.first, y.first), x._pairs(y.first, y.first)
        return x.like(
            self.xp.arctan2(y.value, x.value),
            by_x * x.first + by_y * y.first,
            by_x * x.second + by_y * y.second + by_xx * (xx - yy) + 2 * by_xy * xy,
        )


def coordinates(xp: Any, points: Any, seconds: Seconds, order: int = 2) -> Jet:
    """The coordinates themselves (N, d) as a Jet of d columns."""
    n, d = points.shape
    directions = d if order else 0
    first = xp.broadcast_to(xp.eye(d, dtype=points.dtype)[:directions, None, :], (directions, n, d))
    kept = seconds if order > 1 else ()
    parts = xp.concatenate([points[None], first, xp.zeros((len(kept), n, d), points.dtype)])
    return Jet(xp, parts, directions, kept)


@dataclass(frozen=True)
class JetField:
    """A Jet of the outputs as a problem's Field."""

    jet: Jet

    def value(self, output: int = 0) -> Any:
        return self.jet.value[:, output : output + 1]

    def first(self, coordinate: int, output: int = 0) -> Any:
        return self.jet.first[coordinate][:, output : output + 1]

    def second(self, *coordinates: int, output: int = 0) -> Any:
        return self.jet.second[self.jet.seconds.index(tuple(coordinates))][:, output : output + 1]


class Asked:
    """A Field that only remembers which derivatives a residual asks for, so that no others are computed."""

    def __init__(self, xp: Any, zero: Any) -> None:
        self.xp, self.zero = xp, zero
        self.order, self.seconds = 0, dict[tuple[int, ...], None]()

    def value(self, output: int = 0) -> Any:
        return self.zero

    def first(self, coordinate: int, output: int = 0) -> Any:
        self.order = max(self.order, 1)
        return self.zero

    def second(self, *coordinates: int, output: int = 0) -> Any:
        self.order = 2
        self.seconds[tuple(coordinates)] = None
        return self.zero


def network(x: Jet, layers: Sequence[tuple[Any, Any]]) -> Jet:
    """A fully connected tanh network; `layers` are (kernel, bias), the last one linear.

    As `tanh(x.linear(kernel, bias))` would, layer by layer, but joining the parts once a layer, as rows of one matrix:
    on a CPU half of a training step were copies.
    """
    xp, d, (count, n, _) = x.xp, x.coordinates, x.parts.shape
    rows = x.parts.reshape(count * n, -1)
    for kernel, bias in layers[:-1]:
        z = (rows @ kernel).reshape(count, n, -1)
        f = xp.tanh(z[0] + bias)
        slope = 1 - f * f
        bends = [sum(z[1 + i] ** 2 for i in group) for group in x.seconds]
        seconds = [slope * (z[1 + d + s] - 2 * f * bend) for s, bend in enumerate(bends)]
        rows = xp.concatenate([f, *(slope * z[1 + i] for i in range(d)), *seconds])
    kernel, bias = layers[-1]
    z = (rows @ kernel).reshape(count, n, -1)
    return Jet(xp, xp.concatenate([z[:1] + bias, z[1:]]), d, x.seconds)
