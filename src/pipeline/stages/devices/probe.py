"""What the processor does at most, by C++ without a framework: multiply-adds on registers, bytes from memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pipeline.errors import plural
from pipeline.kernels.cpu.ceilings import DTYPES, multiply_adds, stream
from pipeline.kernels.cpu.compiled import missing_compiler
from pipeline.machine.ceilings import DOUBT, Ceiling
from pipeline.report.table import size
from pipeline.stages.devices.cores import had


def measured(place: str, rounds: int) -> Iterator[list[Ceiling]]:
    """On all cores that this process may use; `place`: `cpu`. The probe has its own numbers of samples.

    Yields all so far: the multiply-adds, with the share of the cores, then bytes from memory too.
    """
    compiler = missing_compiler()
    if compiler is not None:
        yield [Ceiling(name="cpu/probe", unit="FLOP/s", missing=f"needs {compiler}")]
        return
    threads = len(os.sched_getaffinity(0))
    found, on, shares = [], plural(threads, "thread"), []
    for dtype in DTYPES:
        rates, share = multiply_adds(threads, dtype)
        found.append(Ceiling(name=f"cpu/probe/fma/{dtype}", unit="FLOP/s", of=on, samples=rates))
        shares.append(share)
    yield [*found, had(shares)]
    streamed = stream(threads)
    of = f"{size(streamed.array)} each" + (f"{DOUBT}{streamed.doubt}" if streamed.doubt else "")
    for name, samples in streamed.bytes_per_s.items():
        found.append(Ceiling(name=f"cpu/probe/{name}", unit="bytes/s", of=of, samples=samples))
    yield [*found, had(shares)]
