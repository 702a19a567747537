"""stage=wmma: matrix products by one kernel after the other, from three loops to the limit of the machine.

stage.py is the stage, bench.py verifies and times, padding.py asks what a size that is not a multiple of 8, 16 or 64
costs, tables.py and figures.py show it.
"""
