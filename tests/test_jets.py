"""Jets: their derivatives against those of polynomials, whose own are exact, and against closed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial import polynomial

from pipeline.pinn import jets

NUMBERS = st.floats(-2, 2).map(lambda number: round(number, 3))
POINTS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4)
FACTORS = st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=3, max_size=3)  # c[i][j] x^i y^j


def plane(points: Any, seconds: jets.Seconds = ((0,), (1,), (0, 1))) -> tuple[jets.Jet, jets.Jet]:
    x = jets.coordinates(np, np.asarray(points, float).reshape(-1, 2), seconds)
    return x.column(0), x.column(1)


def jet_of(c: Any, x: jets.Jet, y: jets.Jet) -> Any:
    """By Jet arithmetic alone."""
    return sum((x**i * c[i][j] * y**j for i in range(3) for j in range(2)), 0.0)


def parts_of(c: Any, points: Any) -> list[np.ndarray]:
    """Value, first derivatives, second derivatives and Laplacian, by NumPy's polynomials."""
    c, (x, y) = np.array(c), np.array(points, float).reshape(-1, 2).T

    def derived(by_x: int, by_y: int) -> np.ndarray:
        derivative = polynomial.polyder(polynomial.polyder(c, by_x, axis=0), by_y, axis=1)
        return np.asarray(polynomial.polyval2d(x, y, derivative))

    xx, yy = derived(2, 0), derived(0, 2)
    return [derived(0, 0), derived(1, 0), derived(0, 1), xx, yy, xx + yy]


@given(FACTORS, FACTORS, POINTS)
def test_products_of_polynomials(a: Any, b: Any, points: Any) -> None:
    x, y = plane(points)
    product = jet_of(a, x, y) * jet_of(b, x, y)
    c = np.zeros((5, 3))
    for i in range(3):
        for j in range(2):
            c[i : i + 3, j : j + 2] += a[i][j] * np.array(b)
    np.testing.assert_allclose(product.parts[..., 0], parts_of(c, points), rtol=1e-9, atol=1e-9)


@given(FACTORS, POINTS)
def test_a_quotient_undoes_a_product(a: Any, points: Any) -> None:
    x, y = plane(points)
    u, v = jet_of(a, x, y), x * x + y * y + 1.0
    np.testing.assert_allclose((u * v / v).parts, u.parts, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose((1.0 / (1.0 / v)).parts, v.parts, rtol=1e-9, atol=1e-9)


Rule = Callable[[jets.JetMath, jets.Jet, jets.Jet], tuple[jets.Jet, jets.Jet]]
IDENTITIES: dict[str, Rule] = {
    "exp and log": lambda m, u, _: (m.log(m.exp(u)), u),
    "sine and cosine": lambda m, u, _: (m.sin(u) ** 2 + m.cos(u) ** 2, u * 0.0 + 1.0),
    "sine of a sum": lambda m, u, v: (m.sin(u + v), m.sin(u) * m.cos(v) + m.cos(u) * m.sin(v)),
    "tanh": lambda m, u, _: (m.tanh(u) * (m.exp(u * 2.0) + 1.0), m.exp(u * 2.0) - 1.0),
    "root": lambda m, u, _: (m.sqrt(u * u + 1.0) ** 2, u * u + 1.0),
    "powers": lambda _, u, __: ((u * u + 1.0) ** 0.3 * (u * u + 1.0) ** 0.7, u * u + 1.0),
}


@pytest.mark.parametrize("name", IDENTITIES)
@given(points=POINTS)
def test_identities_hold_in_every_derivative(name: str, points: Any) -> None:
    x, y = plane(points)
    left, right = IDENTITIES[name](jets.JetMath(np), x * y * 0.5 + x, y - x * 0.25)
    np.testing.assert_allclose(left.parts, right.parts, rtol=1e-8, atol=1e-8)


@given(st.lists(st.tuples(st.floats(0.1, 2), st.floats(-3.1, 3.1)), min_size=1, max_size=4))
def test_the_angle_has_the_derivatives_of_a_harmonic_function(polar: Any) -> None:
    r, angle = np.array(polar).T
    x, y = plane(np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1))
    math = jets.JetMath(np)
    found = math.arctan2(y, x)
    assert np.abs(found.second[2]).max() <= 1e-9 / r.min() ** 2
    np.testing.assert_allclose((math.cos(found) * math.sqrt(x * x + y * y)).parts, x.parts, rtol=1e-7, atol=1e-7)


@given(st.floats(-3, 3), st.floats(0.1, 2), st.floats(-3.1, 3.1))
def test_the_angle_in_a_turned_plane_has_the_same_derivatives(turn: float, r: float, angle: float) -> None:
    x, y = plane([(r * np.cos(angle), r * np.sin(angle))])
    math = jets.JetMath(np)
    turned = math.arctan2(x * np.sin(turn) + y * np.cos(turn), x * np.cos(turn) - y * np.sin(turn))
    np.testing.assert_allclose(turned.parts[1:], math.arctan2(y, x).parts[1:], rtol=1e-7, atol=1e-7)


def test_only_what_is_asked_for_is_carried() -> None:
    points = np.ones((3, 2))
    assert jets.coordinates(np, points, ((0, 1),), order=0).parts.shape == (1, 3, 2)
    assert jets.coordinates(np, points, ((0, 1),), order=1).parts.shape == (3, 3, 2)
    assert jets.coordinates(np, points, ((0, 1),), order=2).parts.shape == (4, 3, 2)
    asked = jets.Asked(np, np.ones((1, 1)))
    assert asked.order == 0
    asked.first(0)
    assert (asked.order, list(asked.seconds)) == (1, [])
    asked.second(0, 1)
    assert (asked.order, list(asked.seconds)) == (2, [(0, 1)])


@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_network_is_its_layers(order: int) -> None:
    generator = np.random.default_rng(0)
    layers = [(generator.normal(size=(a, b)), generator.normal(size=b)) for a, b in ((2, 5), (5, 4), (4, 3))]
    x = jets.coordinates(np, generator.normal(size=(6, 2)), ((0, 1), (1,)), order)
    by_layers = x
    for kernel, bias in layers[:-1]:
        by_layers = jets.JetMath(np).tanh(by_layers.linear(kernel, bias))
    found = jets.network(x, layers)
    np.testing.assert_allclose(found.parts, by_layers.linear(*layers[-1]).parts, rtol=1e-12, atol=1e-12)
    assert len(found.parts) == (1, 3, 5)[order]
