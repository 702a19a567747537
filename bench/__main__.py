"""python -m bench [name ...]: run the benchmarks, print their table, keep the figures in results/<device>/<date>.json.

Run it on a machine that does nothing else; each benchmark says how it compares.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measure import machine

BENCHMARKS = ("startup", "softmax_regression", "keras_classifier", "tracking")


def main() -> None:
    """All benchmarks, or those named."""
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"error: {unknown[0]}: no such benchmark; choose from {', '.join(BENCHMARKS)}")
    where = machine()
    results = {}
    for name in names:
        print(name, file=sys.stderr, flush=True)
        results[name] = importlib.import_module(f"bench.{name}").run()
        show(name, results[name])
    folder = Path("results") / re.sub(r"[^a-z0-9]+", "-", f"{where['cpu']} {where['cores']} cores".lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{where['date']}.json"
    kept = json.loads(path.read_text())["results"] if path.exists() else {}
    path.write_text(json.dumps({"machine": where, "results": kept | results}, indent=1) + "\n")
    print(f"kept in {path}")
    if not all(row.get("met", True) for rows in results.values() for row in rows):
        sys.exit(1)


def show(name: str, rows: list[dict[str, object]]) -> None:
    """One benchmark's table."""
    table = Table("what", "median", "min to max", "n", "unit", "limit", title=name, title_justify="left")
    for row in rows:
        limit = f"{row['limit']}: {'met' if row['met'] else 'MISSED'}" if "limit" in row else ""
        spread = f"{row['min']:,.4g} to {row['max']:,.4g}"
        table.add_row(str(row["what"]), f"{row['median']:,.4g}", spread, str(row["n"]), str(row["unit"]), limit)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
