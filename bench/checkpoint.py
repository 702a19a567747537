"""What a checkpoint costs a training of 10 million parameters with Adam, on each backend.

`blocked`: how long the training waits for a checkpoint, which is copied and then written by a thread. `with / without`:
seconds of a training that writes as often as it can against the same without.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.measure import Side, agree, alternate, at_most, figure_rows, ratios, row

ROUNDS = 5
MOST_S = 0.05
BACKENDS = ("torch", "tensorflow", "jax")
WORDS = (
    *("dataset=digits", "model=mlp", "model.units=[3072,3072]", "training.batch_size=16", "training.steps=120"),
    *("training.validate_every=120", "loader.steps_per_execution=5", "tracking=none"),
)
# The real command, with a clock round what the training waits for.
TIMED = """
import json, time
from pathlib import Path
from pipeline.runs.keeping import Keeping

save, spent = Keeping.save, []
def timed(self, step, contents):
    self.writer.wait()
    started = time.perf_counter()
    save(self, step, contents)
    spent.append(time.perf_counter() - started)
Keeping.save = timed

from pipeline.__main__ import main
try:
    main()
finally:
    Path("spent.json").write_text(json.dumps(spent))
"""


def run() -> list[dict[str, object]]:
    """Rows of the table."""
    rows: list[dict[str, object]] = []
    for backend in BACKENDS:
        often = Side(f"{backend}, checkpoints", partial(training, backend, "training.checkpoint.every=5"))
        never = Side(f"{backend}, none", partial(training, backend, "training.checkpoint.every_s=0"))
        alternate([often, never], ROUNDS)
        agree([often, never], "digest", 0)  # not a bit is changed
        rows += figure_rows([often, never], "seconds", "s of training")
        rows.append(row(f"{backend}, with / without", ratios(often, never, "seconds"), "x"))
        rows.append(row(f"{backend}, checkpoints of a training", often.values("count"), ""))
        rows.append(at_most(row(f"{backend}, blocked by one", often.values("blocked"), "s"), MOST_S))
    return rows


def training(backend: str, cadence: str) -> dict[str, float]:
    """Seconds of training, how many checkpoints it wrote, and the median time that it waited for one."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", TIMED, f"backend={backend}", *WORDS, cadence]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SystemExit(f"{' '.join(command[3:])} failed:\n{ended.stderr[-2000:]}")
        spent: list[float] = json.loads((Path(folder) / "spent.json").read_text())
        (run,) = (Path(folder) / "runs").iterdir()
        receipt = json.loads((run / "receipt.json").read_text())
    return {
        "seconds": receipt["training_s"],
        "count": len(spent),
        "blocked": statistics.median(spent) if spent else 0.0,
        "digest": int(receipt["weights_sha256"][:12], 16),
    }
