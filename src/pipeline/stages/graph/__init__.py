"""stage=graph: one net in many forms and frameworks, and its step eager, as a graph and compiled.

stage.py is the stage, bench.py goes from framework to framework, processes.py starts a process for each and for each
saved graph, amortised.py asks from how many steps on a compilation pays, tables.py and figures.py show it.
"""
