"""Kernels that are torch's matmul: the vendor's libraries. torch is imported when one of them is prepared."""
