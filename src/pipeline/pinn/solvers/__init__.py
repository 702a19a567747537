"""Solvers: one file each, a spec with `solve`, which trains a network for a problem and returns a Solution."""
