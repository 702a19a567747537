"""stage=matmul: products of matrices in every framework, by size, dtype and device, against the processor's ceiling.

stage.py is the stage, bench.py starts a process for each framework and device, process.py is that process: timing.py
verifies and times there, ceiling.py measures the ceiling between, misplaced.py and memory.py look at operands on
another device and at memory. problem.py has operands and what a right result is, rates.py compares devices,
tables.py and figures.py show it. kernel.py makes a kernel of stage=wmma one of the frameworks.
"""
