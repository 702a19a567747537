"""Our probe's ceilings, in a process of their own: the best of its samples, as bench/peers/stream.c has them."""

from __future__ import annotations

import json
import os

from pipeline.kernels.cpu.ceilings import multiply_adds, stream

THREADS = len(os.sched_getaffinity(0))

if __name__ == "__main__":
    triad = stream(THREADS, "float64", ("triad",))
    found = {f"fma_{dtype}": max(multiply_adds(THREADS, dtype)[0]) for dtype in ("float32", "float64")}
    print(json.dumps({"triad": max(triad.bytes_per_s["triad"]), **found, "array": triad.array}))
