"""Kernels that run on the CPU, and what compiles the C++ of most of them."""
