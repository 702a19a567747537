"""The precision study: one model trained at several precisions, and what the runs say when they are laid side by side.

`measured.py` reads the runs, `compare.py` sets them against fp32 and fp64, `claims.py` against what textbooks promise,
`why.py` explains a precision that did not gain; `tables.py` and `figures.py` show it.
"""

BASELINE, REFERENCE = "fp32", "fp64"  # of the speed, and of the numbers
