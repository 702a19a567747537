"""python -m bench [name ...]: run the benchmarks, print their table, keep the figures in results/<device>/<date>.json.

Run it on a machine that does nothing else; each benchmark says how it compares. The last takes
options: `python -m bench pinn --problems function ode --parts error --rounds 1`; its figures are kept under them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measure import machine
from pipeline.runs.repositories import git_state

BENCHMARKS = (
    "startup",
    "softmax_regression",
    "keras_classifier",
    "tracking",
    "checkpoint",
    "sweep",
    "search",
    "amp",
    "gpt",
    "gpt_fast",
    "generation",
    "processes",
    "memory",
    "pinn",
)


def main() -> None:
    """All benchmarks, or those named."""
    names, options = asked(sys.argv[1:])
    where, git = machine(), git_state()
    results = {}
    for name in names:
        print(name, file=sys.stderr, flush=True)
        kept_as = " ".join([name, *(f"--{key} {shown(value)}" for key, value in options.items())])
        results[kept_as] = {"git": git, "rows": importlib.import_module(f"bench.{name}").run(**options)}
        show(kept_as, results[kept_as]["rows"])
    print(f"kept in {keep(Path('results'), where, results)}")
    if not all(row.get("met", True) for result in results.values() for row in result["rows"]):
        sys.exit(1)


def asked(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The benchmarks, and the options of those that take any. Exits with a message for what there is not."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--problems", nargs="+", choices=("function", "ode", "poisson"), help="pinn: of all three")
    parser.add_argument("--parts", nargs="+", choices=("step", "error"), help="pinn: a step, the time to an error")
    parser.add_argument("--rounds", type=int, help="pinn: instead of 5")
    found = vars(parser.parse_args(words))
    names = found.pop("names") or list(BENCHMARKS)
    options = {key: value for key, value in found.items() if value is not None}
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"error: {unknown[0]}: no such benchmark; choose from {', '.join(BENCHMARKS)}")
    if options and names != ["pinn"]:
        sys.exit(f"error: --{next(iter(options))}: goes with the benchmark pinn alone")
    if options.get("rounds", 1) < 1:
        sys.exit(f"error: --rounds {options['rounds']}: give 1 or more")
    return names, options


def shown(value: Any) -> str:
    """An option as it was typed."""
    return " ".join(value) if isinstance(value, list) else str(value)


def keep(root: Path, where: dict[str, Any], results: dict[str, Any]) -> Path:
    """Add results to the file of this machine and day. Each has its own commit: the file may hold earlier ones."""
    folder = root / re.sub(r"[^a-z0-9]+", "-", f"{where['cpu']} {where['cores']} cores".lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{where['date']}.json"
    kept = json.loads(path.read_text())["results"] if path.exists() else {}
    path.write_text(json.dumps({"machine": where, "results": kept | results}, indent=1) + "\n")
    return path


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
