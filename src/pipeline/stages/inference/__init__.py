"""stage=inference: the passes of a saved run's model, batch by batch size: latency, rate, memory.

stage.py is the stage, bench.py runs and times the passes, tables.py and figures.py show them.
"""
