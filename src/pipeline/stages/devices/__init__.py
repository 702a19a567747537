"""stage=devices: what this machine has, what runs on it, and the ceilings that were measured on it.

stage.py is the stage, inventory.py lists devices and precisions, bench.py measures, each framework in a process
(process.py; sources.py lists them), probe.py is what C++ does without one, cores.py says how much of the cores it had,
kept.py keeps what was measured for this machine as it is, tables.py shows it.
"""
