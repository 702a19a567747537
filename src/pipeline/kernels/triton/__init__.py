"""Kernels in Triton: settings and launches. programs/ has the kernels themselves, which import Triton."""
