"""Kernels in CUDA C++: the sources, their launch shapes, and what they may cost."""
