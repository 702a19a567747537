"""CUDA kernels executed on a CPU; README.md in this folder says how."""
