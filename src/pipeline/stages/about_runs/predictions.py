"""What a saved run has predicted for each test example: the files that the judges of its task write (pipeline.tasks).

Anybody may have edited such a file, so it counts only where the run's own metric comes out of it.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UserError
from pipeline.machine.regular_file import read_regular
from pipeline.runs.judged_on import OTHER_DATA
from pipeline.runs.result import Metric

SAME = 1e-9  # of a metric: the run adds up batches, and this does not


@dataclass(frozen=True)
class Kind:
    """A file of predictions. `metric`: what comes out of it; `beside`: what its task measures besides, by which its
    runs are known; `unit`: of its examples."""

    file: str
    metric: str
    beside: str
    unit: str = "examples"


CLASSES = Kind("predictions.csv", "accuracy", "macro_f1")
NUMBERS = Kind("predictions.csv", "mean_absolute_error", "root_mean_squared_error")
SEQUENCES = Kind("decoded.csv", "exact_match", "accuracy", "sequences")


@dataclass(frozen=True)
class Predictions:
    """Of each example, in the order of the test set: `actual`, what it was given and what is true; `predicted`; and, of
    numbers, `absolute` and `squared`, its errors (the mean over several outputs), else `right`."""

    actual: Sequence[tuple[str, ...]]
    predicted: Sequence[tuple[str, ...]]
    right: Sequence[bool] = ()
    absolute: Sequence[float] = ()
    squared: Sequence[float] = ()


def kind_of(metrics: Mapping[str, Metric]) -> tuple[Kind, str] | None:
    """What a run with these metrics has written, and its metric's whole name: of its test set, or of other data. None
    of a task that writes nothing of each example."""
    for split in ("test", OTHER_DATA):
        for kind in (CLASSES, NUMBERS, SEQUENCES):
            if {f"{split}/{kind.metric}", f"{split}/{kind.beside}"} <= metrics.keys():
                return kind, f"{split}/{kind.metric}"
    return None


def read_predictions(run: Path, kind: Kind, metric: Metric) -> Predictions:
    """The predictions of a run. Raises UserError for a file that is missing or damaged, or from which another value of
    the `metric` comes than its result has."""
    try:
        text = read_regular(run / "artifacts" / kind.file).decode("utf-8")
        found = _of_rows(kind, list(csv.reader(io.StringIO(text, newline=""), strict=True)))
    except FileNotFoundError as error:
        raise UserError(f"has no artifacts/{kind.file}: an older run, or a stage that writes none") from error
    except OSError as error:
        raise UserError(f"artifacts/{kind.file} cannot be read: {error.strerror}") from error
    except (ValueError, csv.Error) as error:  # of decoding, too
        raise UserError(f"artifacts/{kind.file} is damaged: {error}") from error
    value = statistics.fmean(found.absolute or found.right)
    if not math.isclose(value, metric.value, rel_tol=SAME, abs_tol=SAME):
        ours, its = (f"{one:.6g}" for one in (metric.value, value))
        raise UserError(
            f"artifacts/{kind.file} is not of this result, perhaps edited: {metric.name} is {ours} in result.json, and "
            f"{its if its != ours else repr(value)} by that file"
        )
    return found


def _of_rows(kind: Kind, rows: list[list[str]]) -> Predictions:
    """Raises ValueError for rows that no judge has written."""
    head, *lines = rows or [[]]
    half = len(head) // 2
    names = [name.partition("_")[0] for name in head]
    wanted = ["source", "target", "decoded", "exact"] if kind is SEQUENCES else ["actual", "predicted"]
    if kind is NUMBERS:
        wanted = [*["actual"] * half, *["predicted"] * half]
    if not head or names != wanted:
        raise ValueError(f"its first line is {','.join(head)!r}")
    wrong = next((number for number, line in enumerate(lines, 2) if len(line) != len(head)), None)
    if wrong is not None or not lines:
        raise ValueError("it has no example" if wrong is None else f"line {wrong} has not {len(head)} fields")
    actual, predicted = [tuple(line[:half]) for line in lines], [tuple(line[half:]) for line in lines]
    if kind is SEQUENCES:
        return Predictions(actual, [line[:1] for line in predicted], [line[3] == "true" for line in lines])
    if kind is CLASSES:
        return Predictions(actual, predicted, [true == best for true, best in zip(actual, predicted, strict=True)])
    errors = [[float(b) - float(a) for a, b in zip(*one, strict=True)] for one in zip(actual, predicted, strict=True)]
    absolute = [statistics.fmean(map(abs, one)) for one in errors]
    return Predictions(actual, predicted, (), absolute, [statistics.fmean(e * e for e in one) for one in errors])
