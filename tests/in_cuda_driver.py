"""What a GPU's launches do with CUDA's driver, whose library is cuda_driver.cpp; run with it as libcuda.so.1.

A launch is computed by NumPy from the arguments as the driver gets them. Prints what it found, as JSON.
"""

from __future__ import annotations

import ctypes
import gc
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.errors import RunError
from pipeline.kernels import on_card
from pipeline.kernels.cuda import card, ceilings
from pipeline.kernels.cuda.driver import OnGpu
from pipeline.kernels.cuda.naive import Naive
from pipeline.kernels.cuda.probes import PROBES, Probe, work
from pipeline.kernels.cuda.source import by_columns
from pipeline.kernels.cuda.tuned import Tuned
from pipeline.kernels.gemm import Gemm, Operands, decode, operands
from pipeline.kernels.verify import all_cases, verify
from pipeline.machine.device import Gpu

LIBRARY = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
LAUNCHED = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_void_p))
PROBE_OF = {probe.entry: probe for probe in PROBES}
FREE = 1 << 34
launches: list[tuple[str, list[int]]] = []
dtype = "fp16"  # of the launches to come
rounds_of_probe = 1.0  # the share of its rounds that a probe computes


def array(address: int, length: int, kind: Any) -> np.ndarray:
    """Numbers at an address."""
    size = length * np.dtype(kind).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), kind)


def number(arguments: Any, at: int, kind: type[Any]) -> Any:
    """An argument that is passed by value."""
    return kind.from_address(arguments[at]).value


def product(arguments: Any) -> None:
    """What a kernel computes, by columns."""
    a, b, c, d = (number(arguments, at, ctypes.c_uint64) for at in range(4))
    m, n, k, lda, ldb, ldc = (number(arguments, at, ctypes.c_int) for at in range(4, 10))
    kind = ctypes.c_int if dtype == "int8" else ctypes.c_float
    alpha, beta = (number(arguments, at, kind) for at in (10, 11))
    of = Gemm(m=m, n=n, k=k, dtype=dtype).type

    def matrix(address: int, rows: int, columns: int, leading: int, stored: Any) -> np.ndarray:
        return array(address, leading * columns, stored).reshape(columns, leading)[:, :rows].T

    exact = alpha * (decode(matrix(a, m, k, lda, of.stored), dtype) @ decode(matrix(b, k, n, ldb, of.stored), dtype))
    if beta:
        exact = exact + beta * matrix(c, m, n, ldc, of.out).astype(np.float64)
    matrix(d, m, n, ldc, of.out)[...] = exact


def probed(probe: Probe, blocks: int, arguments: Any) -> None:
    """rounds·A·B for each team."""
    d, rounds = number(arguments, 2, ctypes.c_uint64), number(arguments, 3, ctypes.c_int)
    made = work(probe, dtype)
    for name, at, values in (("A", 0, made.a), ("B", 1, made.b)):
        there = array(number(arguments, at, ctypes.c_uint64), values.size, values.dtype)
        assert np.array_equal(there, values), f"{name} is not what was uploaded"
    m, n, _ = probe.shape(dtype)
    found = array(d, probe.teams(blocks) * m * n, Gemm(m=m, n=n, k=1, dtype=dtype).type.out)
    found.reshape(-1, n, m)[...] = int(rounds * rounds_of_probe) * made.once.T


def triad(arguments: Any) -> None:
    places = [number(arguments, at, ctypes.c_uint64) for at in range(3)]
    factor, fours = number(arguments, 3, ctypes.c_float), number(arguments, 4, ctypes.c_int)
    x, y, z = (array(place, 4 * fours, np.float32) for place in places)
    np.add(y, np.float32(factor) * z, out=x)


@LAUNCHED
def launched(name: bytes, sizes: Any, arguments: Any) -> None:
    entry = name.decode()
    launches.append((entry, list(sizes[:7])))
    if entry == "triad":
        triad(arguments)
    elif entry in PROBE_OF:
        probe = next(one for one in PROBES if one.entry == entry and dtype in one.architectures)
        probed(probe, sizes[0], arguments)
    else:
        product(arguments)


def held() -> dict[str, int]:
    """What is there and was not freed."""
    gc.collect()
    pairs = (("stream", "no_stream"), ("graph", "no_graph"), ("event", "no_event"), ("module", "no_module"))
    left = {made: count(made) - count(gone) for made, gone in (*pairs, ("retain", "release"))}
    return {**left, "memory": int(LIBRARY.standin_held())}


def count(name: str) -> int:
    return int(LIBRARY.standin_count(name.encode()))


def on_gpu(made: Operands) -> OnGpu:
    return OnGpu(Naive(), by_columns(made), turned=made.gemm.order == "row")


def kernels() -> dict[str, object]:
    """A kernel through every class of problems; many launches in a row, as graphs."""
    global dtype
    found: dict[str, object] = {}
    for one in ("fp16", "int8"):
        dtype = one
        verdict = verify(Naive(), all_cases(one), on_gpu, 0)
        found[one] = verdict.fault or verdict.n
    dtype = "fp16"
    made = operands(Gemm(m=200, n=70, k=33, pad=(8, 0, 3), dtype="fp16"), 0)
    launch = on_gpu(made)
    launches.clear()
    seconds = launch.seconds(250)
    found |= {"launches": len(launches), "launch": launches[0], "graphs": count("graph"), "seconds": seconds > 0}
    found["facts"] = {name: launch.facts[name] for name in ("card", "occupancy", "blocks_per_multiprocessor")}
    large = OnGpu(Tuned(), by_columns(operands(Gemm(m=64, n=64, k=64, dtype="fp16"), 0)))
    launches.clear()
    large.run()
    found["dynamic"] = launches[0][1][6]
    del launch, large
    return found


def measured(what: str) -> dict[str, object]:
    """The ceilings of a dtype, and how often each was launched."""
    global dtype
    dtype = what
    launches.clear()
    got = ceilings.measured(what)
    seen = {entry: sum(name == entry for name, _ in launches) for entry in dict(launches)}
    enough = all(times >= ceilings.BURSTS for times in seen.values())
    return {"ways": sorted(got.flop_per_s), "entries": sorted(seen), "enough": enough, "n": len(got.bytes_per_s)}


def doubts() -> list[str | None]:
    """What the memory's ceiling is said to be where the GPU has room, and where others have left little of it."""
    global dtype
    dtype, found = "fp32", []
    for free in (FREE, 1 << 23):
        setattr(ceilings, "gpu_free_bytes", lambda _, free=free: free)  # noqa: B010
        found.append(ceilings.measured("fp32").doubt)
    return found


def faults() -> dict[str, str]:
    """A probe that leaves out a part of its rounds; memory that is not there."""
    global dtype, rounds_of_probe
    said = {}
    dtype, rounds_of_probe = "fp16", 0.98
    said["rounds"] = message(lambda: ceilings.measured("fp16"))
    rounds_of_probe = 1.0
    LIBRARY.standin(launched, ctypes.c_size_t(1000))
    said["memory"] = message(lambda: on_gpu(operands(Gemm(m=64, n=64, k=64, dtype="fp16"), 0)))
    LIBRARY.standin(launched, ctypes.c_size_t(FREE))
    return said


def message(work: Callable[[], object]) -> str:
    try:
        work()
    except RunError as error:
        return str(error)
    return "nothing"


def main() -> None:
    LIBRARY.standin(launched, ctypes.c_size_t(FREE))
    gpu = Gpu(0, "a stand-in", FREE, (9, 0))
    setattr(on_card, "gpus", lambda: (gpu,))  # noqa: B010  # as mypy takes it
    for module in (card, ceilings):
        setattr(module, "gpu_free_bytes", lambda _: FREE)  # noqa: B010
    ceilings.WARM_S, ceilings.SMALLEST = 0.01, 1 << 20
    found: dict[str, object] = {"kernels": kernels(), "fp16": measured("fp16"), "fp32": measured("fp32")}
    found |= {"int8": measured("int8"), "doubts": doubts(), "faults": faults(), "held": held()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
