"""-(u_xx + u_yy) = 1 on the L-shape, u = 0 on its boundary, by the method of particular solutions.

u = -(x^2 + y^2) / 4 + `log_terms` + a sum of harmonic functions, whose coefficients make u vanish on the boundary. Only
there does the sum err, and by the maximum principle nowhere by more than there: `boundary_error()`, about 1e-14.

At every corner u has a logarithm, whose coefficient follows from the right-hand side alone (`log_terms`); at the corner
that turns inwards it has r^(2k/3) too (`corner_term` is the first, whose coefficient is 0.4019310310137).
Source: Fox, Henrici & Moler, SIAM J. Numer. Anal. 4 (1967); Betcke & Trefethen, SIAM Rev. 47 (2005); Grisvard,
"Elliptic Problems in Nonsmooth Domains", section 5.1, for the logarithms.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from pipeline.pinn.problem import Math

VERTICES = ((0.0, 0.0), (0.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (1.0, 0.0))

# Each corner, which way its bisector points into the domain, and the coefficient of r^2 log r cos(2 phi), phi being the
# angle from the bisector. Why: with t the angle from one side, -r^2/4 + (r^2/4) cos(2 t) is 0 there and -r^2/2 on the
# side t = a, where r^2 sin(2 t) is 0 and mends nothing; -r^2 (log r sin(2 t) + t cos(2 t)) / (2 a) does. sin(2 t) is
# cos(2 phi) in a corner of a = pi/2, and -cos(2 phi) in the one of 3 pi/2.
CORNERS = (
    ((0.0, 0.0), (-1, -1), 1 / (3 * np.pi)),
    ((0.0, 1.0), (-1, -1), -1 / np.pi),
    ((-1.0, 1.0), (1, -1), -1 / np.pi),
    ((-1.0, -1.0), (1, 1), -1 / np.pi),
    ((1.0, -1.0), (-1, 1), -1 / np.pi),
    ((1.0, 0.0), (-1, -1), -1 / np.pi),
)

# Harmonic functions r^e cos(e phi) about the inner corner: the powers 2k/3, k odd, that the corner asks for, and the
# polynomials. What is odd about the diagonal cannot be in u.
POWERS = tuple(sorted({2 * k / 3 for k in range(1, 82, 2)} | {float(n) for n in range(31)}))
PER_SIDE = 300


def corner_term(x: Any, y: Any, math: Math) -> Any:
    """r^(2/3) cos(2 phi/3): harmonic, and 0 on both sides of the inner corner (there phi is -3 pi/4 and 3 pi/4)."""
    along, across = _along_bisector(x, y, CORNERS[0])
    return (along**2 + across**2) ** (1 / 3) * math.cos(math.arctan2(across, along) * (2 / 3))


def log_terms(x: Any, y: Any, math: Math) -> Any:
    """The r^2 log r of u at its six corners: a harmonic function. u less this is smooth at the outer corners."""
    total = 0.0
    for corner in CORNERS:
        along, across = _along_bisector(x, y, corner)
        # 1e-30 keeps the logarithm finite in the corner itself and changes no digit elsewhere.
        log = 0.5 * math.log(along**2 + across**2 + 1e-30)
        wave = (along**2 - across**2) * log - 2 * along * across * math.arctan2(across, along)
        total = wave * corner[2] + total
    return total


def solution(points: np.ndarray) -> np.ndarray:
    """u at points (N, 2) of the domain: (N,)."""
    return np.asarray(_particular(points) + _harmonic(points) @ _coefficients())


def boundary_error() -> float:
    """The largest |u| at boundary points that the coefficients were not fitted to. It bounds the error inside."""
    return float(np.abs(solution(_boundary(4 * PER_SIDE + 1))).max())


def computed_anew() -> None:
    """Forget the coefficients, so that the next solution takes the time that it takes."""
    _coefficients.cache_clear()


@cache
def _coefficients() -> np.ndarray:
    points = _boundary(PER_SIDE)
    return np.linalg.lstsq(_harmonic(points), -_particular(points), rcond=1e-15)[0]


def _particular(points: np.ndarray) -> np.ndarray:
    x, y = points.T
    return np.asarray(log_terms(x, y, np) - (x**2 + y**2) / 4)


def _harmonic(points: np.ndarray) -> np.ndarray:
    """(N, powers), scaled to at most 1 in the domain, whose farthest point is sqrt(2) away."""
    x, y = points.T
    along, across = _along_bisector(x, y, CORNERS[0])
    r, phi = np.hypot(along, across) / np.sqrt(2), np.arctan2(across, along)
    return np.stack([r**power * np.cos(power * phi) for power in POWERS], axis=1)


def _boundary(per_side: int) -> np.ndarray:
    """Points of all six sides, dense towards the corners as Chebyshev's are."""
    share = (1 - np.cos(np.pi * (np.arange(per_side) + 0.5) / per_side))[:, None] / 2
    corners = np.array(VERTICES)
    sides = zip(corners, np.roll(corners, -1, axis=0), strict=True)
    return np.concatenate([start + share * (end - start) for start, end in sides])


def _along_bisector(x: Any, y: Any, corner: tuple[tuple[float, float], tuple[int, int], float]) -> tuple[Any, Any]:
    """Coordinates about a corner, turned so that the branch cut of the angle lies outside the domain."""
    (x0, y0), (dx, dy), _ = corner
    half = float(np.sqrt(0.5))
    return half * (dx * (x - x0) + dy * (y - y0)), half * (dx * (y - y0) - dy * (x - x0))
