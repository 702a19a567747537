"""python -m bench [name ...]: run the benchmarks, print their table, keep the figures in results/<device>/<date>.json.

Run it on a machine that does nothing else; each benchmark says how it compares.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measure import machine
from pipeline.repositories import git_state

BENCHMARKS = ("startup", "softmax_regression", "keras_classifier", "tracking", "sweep", "search", "amp", "pinn")


def main() -> None:
    """All benchmarks, or those named."""
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"error: {unknown[0]}: no such benchmark; choose from {', '.join(BENCHMARKS)}")
    where, git = machine(), git_state()
    results = {}
    for name in names:
        print(name, file=sys.stderr, flush=True)
        results[name] = {"git": git, "rows": importlib.import_module(f"bench.{name}").run()}
        show(name, results[name]["rows"])
    print(f"kept in {keep(Path('results'), where, results)}")
    if not all(row.get("met", True) for result in results.values() for row in result["rows"]):
        sys.exit(1)


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
    table = Table("what", "median", "min to max", "n", "unit", "limit", title=name, title_justify="left")
    for row in rows:
        limit = f"{row['limit']}: {'met' if row['met'] else 'MISSED'}" if "limit" in row else ""
        spread = f"{row['min']:,.4g} to {row['max']:,.4g}"
        table.add_row(str(row["what"]), f"{row['median']:,.4g}", spread, str(row["n"]), str(row["unit"]), limit)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
