"""stage=loading: settings of loaders, their batches compared with NumPy's, then timed on three kinds of storage.

stage.py is the stage, sources.py writes the files, bench.py starts a process for each framework and source, limit.py
measures how fast memory is copied, best.py judges gains, tables.py and figures.py show them.
"""
