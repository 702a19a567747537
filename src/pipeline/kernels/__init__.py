"""Matrix products, one kernel a file: `stage.kernels` of stage=wmma names them by their modules.

gemm.py is the problem and its operands, check.py what a correct result is, cases.py what each kernel is tried on; cpu/
runs on the CPU.
"""
