"""Our ceilings beside independent programs: a STREAM and multiply-adds in C (peers/stream.c), torch's own timer.

The same machine's ceilings have to come out of both, within 10 %.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bench.measure import PEERS, Side, alternate, figure_rows, peer, ratios, row
from pipeline.kernels.cpu.ceilings import array_bytes
from pipeline.machine.device import Place
from pipeline.stages.devices.bench import apart
from pipeline.stages.devices.sources import SOURCES

ROUNDS = 5
FLAGS = ("-O3", "-march=native", "-fopenmp")
WITHIN = 0.1
THREADS = len(os.sched_getaffinity(0))
PROBED = {"triad": "bytes/s", "fma_float32": "FLOP/s", "fma_float64": "FLOP/s"}
DTYPES = ("float32", "float64")


def run(rounds: int = ROUNDS) -> list[dict[str, object]]:
    """Rows of the table. Each side verifies its own results."""
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(folder))
        ours, theirs = Side("our probe", partial(peer, "ceilings_ours.py")), Side("C", partial(independent, program))
        alternate([ours, theirs], rounds)
    rows = []
    for name, unit in PROBED.items():
        rows += [{**one, "what": f"{name}, {one['what']}"} for one in figure_rows([ours, theirs], name, unit)]
        rows.append(within(f"{name}: ours / C", ratios(ours, theirs, name)))
    return rows + products(rounds)


def products(rounds: int) -> list[dict[str, object]]:
    """torch's products as the stage measures them, and by torch.utils.benchmark at the same size."""
    ours = Side("products of stage=devices", stage_products)
    sizes = {dtype: int(size) for dtype, size in stage_products().items() if dtype.startswith("size")}
    theirs = Side("products, torch.utils.benchmark", partial(plain_products, sizes))
    alternate([ours, theirs], rounds, uncounted=0)
    rows = []
    for dtype in DTYPES:
        sides = of_size(sizes[f"size_{dtype}"], f"size_{dtype}", ours, theirs)
        rows += [{**one, "what": f"{one['what']}, {dtype}"} for one in figure_rows(sides, dtype, "FLOP/s")]
        rows.append(within(f"product {dtype}: ours / torch.utils.benchmark", ratios(*sides, dtype)))
    return rows


def of_size(size: float, figure: str, ours: Side, theirs: Side) -> tuple[Side, Side]:
    """The rounds in which the stage, which chooses by the rate, chose that size: the one that the peer multiplies."""
    pairs = [pair for pair in zip(ours.seen, theirs.seen, strict=True) if pair[0][figure] == size]
    if not pairs:
        raise SystemExit(f"{figure}: {size:g} at first, and in no round after it; no time is worth anything")
    seen, peers = zip(*pairs, strict=True)
    return Side(ours.name, ours.once, list(seen)), Side(theirs.name, theirs.once, list(peers))


def stage_products() -> Mapping[str, float]:
    """Medians by dtype, and the sizes that they are of."""
    source = next(one for one in SOURCES if one.name == "torch")
    measured, why = apart(source, str(Place("cpu")), 7)
    if why is not None:
        sys.exit(f"stage=devices: torch: {why}")
    found = {one.name: one for one in measured}
    products = {dtype: found[f"cpu/torch/product/{dtype}"] for dtype in DTYPES}
    sizes = {f"size_{dtype}": float(one.of.split()[0]) for dtype, one in products.items()}
    return {**{dtype: one.median for dtype, one in products.items()}, **sizes}


def plain_products(sizes: Mapping[str, int]) -> Mapping[str, float]:
    """At those sizes."""
    return {dtype: peer("products_plain.py", str(sizes[f"size_{dtype}"]), dtype)["product"] for dtype in DTYPES}


def within(what: str, found: list[float]) -> dict[str, object]:
    """A ratio's row, of which the median has to lie within 10 % of 1. Written so that NaN does not."""
    low, high, made = 1 - WITHIN, 1 + WITHIN, row(what, found, "x")
    return {**made, "limit": f"{low:g} to {high:g}", "met": low <= float(str(made["median"])) <= high}


def compiled(folder: Path) -> Path:
    """The independent program. Exits with a message without a compiler."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("gcc", "clang", "cc")), None)
    if compiler is None:
        raise SystemExit("bench ceilings: needs a C compiler; apt install gcc brings one")
    program = folder / "stream"
    command = [compiler, *FLAGS, str(PEERS / "stream.c"), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"stream.c does not compile:\n{done.stderr[-2000:]}")
    return program


def independent(program: Path) -> Mapping[str, float]:
    """What it prints, of arrays as large as ours."""
    command = [str(program), str(array_bytes()), str(THREADS)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {name: float(value) for name, value in found.items()}
