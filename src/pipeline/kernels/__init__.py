"""Matrix products, one kernel a file: `stage.kernels` of stage=wmma names them by their modules.

gemm.py is the problem, its operands and what a correct result is; cpu/ runs on the CPU.
"""
