"""A product of matrices in torch, timed by torch's own timer: FLOP a second of the median."""

from __future__ import annotations

import json
import os
import sys

import torch
from torch.utils.benchmark import Timer

if __name__ == "__main__":
    size, dtype = int(sys.argv[1]), getattr(torch, sys.argv[2])
    a, b = (torch.rand(size, size, dtype=dtype) * 2 - 1 for _ in range(2))
    timer = Timer("a @ b", globals={"a": a, "b": b}, num_threads=len(os.sched_getaffinity(0)))
    print(json.dumps({"product": 2 * size**3 / timer.blocked_autorange(min_run_time=2).median}))
