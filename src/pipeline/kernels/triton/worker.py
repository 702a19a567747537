"""The process in which Triton interprets: `python -m pipeline.kernels.triton.worker <file descriptor>`."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from pipeline.kernels.triton.interpreter import answer

if __name__ == "__main__":
    answer(Connection(int(sys.argv[1])))
