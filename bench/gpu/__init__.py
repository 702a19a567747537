"""`make gpu`: every check and benchmark that needs an NVIDIA GPU, eight minutes of them a call.

parts.py is the list of them, by value; command.py runs it and keeps what each has found; found.py reads that off the
runs; session.py ends a part at its limit. offline.py, which needs Python alone, installs from a folder of wheels;
wheels.py fills such a folder. docs/gpu.md says how they are used.
"""
