"""Physics-informed networks: what the problems (pipeline.pinn.problems) and the solvers (pipeline.pinn.solvers) share.

A residual is written once, against a Field, and serves DeepXDE's automatic differentiation, our own forward propagation
in JAX, and NumPy, in which solutions are checked and predicted.
Source: Raissi, Perdikaris & Karniadakis, "Physics-informed neural networks", J. Comput. Phys. 378 (2019).
"""
