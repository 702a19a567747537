"""python -m bench [name ...]: run the benchmarks, print their table, keep the figures in results/<device>/<date>.json.

Run it on a machine that does nothing else; each benchmark says how it compares. Some take options, and keep their
figures under them: `python -m bench gpt --rounds 3`, `python -m bench pinn --problems function ode --parts error`.
`python -m bench gpu` is what needs a GPU (docs/gpu.md), `python -m bench table` the README's table of it.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.kept import keep_round
from bench.measure import conditions, machine
from bench.names import unknown
from pipeline.errors import UserError
from pipeline.runs.repositories import git_state

BENCHMARKS = (
    "startup",
    "listing",
    "softmax_regression",
    "keras_classifier",
    "tracking",
    "checkpoint",
    "sweep",
    "search",
    "amp",
    "gpt",
    "gpt_fast",
    "ingredients",
    "generation",
    "inference",
    "processes",
    "memory",
    "ceilings",
    "kernels",
    "matmul",
    "pinn",
)


COMMANDS = {"gpu": "bench.gpu.command", "table": "bench.table"}  # which have options of their own


def main() -> None:
    """All benchmarks, or those named. Exit status 2 for a mistake on the command line."""
    try:
        _main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _main() -> None:
    if sys.argv[1:] and sys.argv[1] in COMMANDS:
        importlib.import_module(COMMANDS[sys.argv[1]]).main(sys.argv[2:])
        return
    names, options = asked(sys.argv[1:])
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # these are of a CPU, on both sides
    met = [measured(name, options) for name in names]
    if not all(met):
        sys.exit(1)


def measured(name: str, options: dict[str, Any]) -> bool:
    """Run a benchmark, show and keep its rows; whether every limit is met. One that fails lets the others run."""
    print(name, file=sys.stderr, flush=True)
    git, kept_as = git_state(), " ".join([name, *(f"--{key} {shown(value)}" for key, value in options.items())])
    try:
        rows = benchmark(name)(**options)
    except (SystemExit, subprocess.SubprocessError) as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return False
    show(kept_as, rows)
    made = {"git": git, **conditions(), "rows": rows}
    print(f"kept in {keep_round(Path('results'), machine(), kept_as, made)}")
    return all(row.get("met", True) for row in rows)


def asked(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The benchmarks, and the options of those that take any. Raises UserError for what there is not."""
    others = (
        "python -m bench gpu: what needs a GPU; python -m bench table: the README's table of it (-h: their options)"
    )
    parser = argparse.ArgumentParser(prog="python -m bench", epilog=others)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--problems", nargs="+", choices=("function", "ode", "poisson"), help="pinn: of all three")
    parser.add_argument("--parts", nargs="+", choices=("step", "error"), help="pinn: a step, the time to an error")
    parser.add_argument("--rounds", type=int, help="how many, of one benchmark (default: its usual number)")
    found = vars(parser.parse_args(words))
    names = found.pop("names") or list(BENCHMARKS)
    options = {key: value for key, value in found.items() if value is not None}
    missing = [name for name in names if name not in BENCHMARKS]
    if missing:
        raise unknown(missing[0], "benchmark", BENCHMARKS)
    for key in options:
        takers = [name for name in BENCHMARKS if key in inspect.signature(benchmark(name)).parameters]
        if len(names) > 1 or names[0] not in takers:
            raise UserError(f"--{key}: goes with one benchmark, of {', '.join(takers)}")
    if options.get("rounds", 1) < 1:
        raise UserError(f"--rounds {options['rounds']}: give 1 or more")
    return names, options


def benchmark(name: str) -> Callable[..., list[dict[str, object]]]:
    """What measures, and gives the rows of a table."""
    run: Callable[..., list[dict[str, object]]] = importlib.import_module(f"bench.{name}").run
    return run


def shown(value: Any) -> str:
    """An option as it was typed."""
    return " ".join(value) if isinstance(value, list) else str(value)


def show(name: str, rows: list[dict[str, object]]) -> None:
    """One benchmark's table."""
    how = any("how" in row for row in rows)
    table = Table(
        "what", *["how"] * how, "median", "min to max", "n", "unit", "limit", title=name, title_justify="left"
    )
    for row in rows:
        limit = f"{row['limit']}: {'met' if row['met'] else 'MISSED'}" if "limit" in row else ""
        spread = f"{row['min']:,.4g} to {row['max']:,.4g}"
        said = [str(row.get("how", ""))] * how
        table.add_row(str(row["what"]), *said, f"{row['median']:,.4g}", spread, str(row["n"]), str(row["unit"]), limit)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
