"""stage=predict for a model of rows of numbers: what it gives for rows of the user's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.datasets import number_files
from pipeline.datasets.normalisation import Normalisation, normalised
from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.metrics import classification as metrics
from pipeline.models import Shapes
from pipeline.report.csv_file import csv_file
from pipeline.runs import receipt, weights
from pipeline.runs.result import Result, count
from pipeline.runs.run import Run
from pipeline.runs.saved import card_sha256, check_hashes, check_outputs, saved_card, saved_weights
from pipeline.runs.source_rows import source_rows
from pipeline.stages.measuring import input_dtype, said_of_margins

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

SHOWN = 10  # rows in the terminal's table; the CSV has them all
SHOWN_OUTPUTS = 4  # numbers of a row there
KEY = "stage.rows"


def check(text: str, source: Path) -> None:
    """Refuse rows that do not fit, and a run of something else. Raises UserError."""
    read_rows(text, card_of(source))


def card_of(source: Path) -> dict[str, Any]:
    """What a saved model of rows takes and gives. Raises UserError for another model."""
    card = saved_card(source)
    if len(card.get("x", ())) != 1 or card.get("task") not in ("classification", "regression"):
        raise UserError(f"run={source.name}: takes no rows of numbers; {KEY} is for models of those")
    if "scale" not in card:
        raise UserError(
            f"run={source.name}: does not say what its rows were divided by, as runs now do; train it again"
        )
    return card


def sha256(text: str, source: Path) -> str:
    """Hash of the rows, as the receipt has it. Raises UserError."""
    return array_sha256(read_rows(text, card_of(source)))


def read_rows(text: str, card: Mapping[str, Any]) -> np.ndarray:
    """Rows (N, width) in float64, the columns in the order that the model has them. Raises UserError."""
    width = card["x"][0]
    wanted = f"the model takes rows of {width} numbers"
    return number_files.read(KEY, text, "row", width, wanted, card.get("columns", ()))


def run(experiment: Experiment, resolved: Resolved, run: Run, text: str) -> Result:
    """Predict. Raises UserError for rows that the model does not take."""
    source = Path(str(experiment.settings.run))
    saved, card = saved_weights(source), card_of(source)
    notes = check_hashes(source, {"weights": weights.digest(saved), "card": card_sha256(card)})
    rows = read_rows(text, card)
    predict = experiment.backend.load().predictor(
        experiment, Shapes(tuple(card["x"]), tuple(card["outputs"])), saved, resolved
    )
    x = _inputs(card, rows, input_dtype(resolved), text)
    outputs = in_batches(predict, x, experiment.training.evaluation_batch_size)
    check_outputs(outputs, "row {}", 1, source, resolved.precision)
    seen = predict.observe(x[: experiment.training.evaluation_batch_size])
    written = receipt.of_saved(experiment, resolved, saved, array_sha256(rows), seen)
    run.journal.write_receipt(written)
    unlike = [said] if (said := receipt.problems(written)) else []  # of few examples a product may run otherwise
    path = run.artifact("predictions.csv")
    names, given = _given(card, outputs)
    with csv_file(path) as writer:
        writer.writerows([["row", *names], *([number, *one] for number, one in enumerate(given, start=1))])
    shown = [(f"row {number}", _short(names, one)) for number, one in enumerate(given[:SHOWN], start=1)]
    if len(given) > SHOWN:
        shown.append((f"and {len(given) - SHOWN:,} more", "in predictions.csv"))
    notes += (
        *unlike,
        *number_files.of_others(KEY, text, card.get("columns", ())),
        *said_of_margins(experiment.loss, [path.name]),
    )
    shown += [*source_rows(source), ("predictions", f"artifacts/{path.name}")]
    return Result(metrics=(count("rows", len(rows)),), table=tuple(shown), notes=notes)


def inputs_of(card: Mapping[str, Any], rows: np.ndarray, dtype: str) -> np.ndarray:
    """Rows, as the data have them, as the saved model takes them: scaled and normalised."""
    scale, normalisation = card["scale"], Normalisation.of_card(card)
    if normalisation is not None:
        return normalised(rows, *normalisation.steps(scale, rows.shape[1:]), dtype)
    return rows.astype(dtype) if scale is None else np.divide(rows, scale).astype(dtype)


def _inputs(card: Mapping[str, Any], rows: np.ndarray, dtype: str, text: str) -> np.ndarray:
    """`inputs_of`. Raises UserError for rows whose numbers the dtype does not hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = inputs_of(card, rows, dtype)
    wrong = ~np.isfinite(found).all(axis=1)
    if wrong.any():
        raise UserError(f"{KEY}={text}: row {int(np.argmax(wrong)) + 1} holds numbers that {dtype} cannot hold")
    return found


def _given(card: Mapping[str, Any], outputs: np.ndarray) -> tuple[list[str], list[list[Any]]]:
    """The columns of what is predicted, and a line for each row: numbers, or the class and every probability."""
    if "classes" not in card:
        several = outputs.shape[1] > 1
        names = [f"predicted_{number}" if several else "predicted" for number in range(outputs.shape[1])]
        return names, outputs.tolist()
    classes, likely = card["classes"], metrics.probabilities(outputs)
    found = [[classes[int(one.argmax())], *(f"{value:.6g}" for value in one)] for one in likely]
    return ["predicted", *classes], found


def _short(names: Sequence[str], line: Sequence[Any]) -> str:
    if isinstance(line[0], str):  # a class
        return f"{line[0]} {float(line[1 + list(names[1:]).index(line[0])]):.3f}"
    more = ", ..." if len(line) > SHOWN_OUTPUTS else ""
    return ", ".join(f"{value:.6g}" for value in line[:SHOWN_OUTPUTS]) + more


def in_batches(predict: Callable[[np.ndarray], np.ndarray], x: np.ndarray, size: int) -> np.ndarray:
    """What the model makes of all of x (N, ...), called with `size` examples at a time."""
    return np.concatenate([predict(x[first : first + size]) for first in range(0, len(x), size)])


def array_sha256(array: np.ndarray) -> str:
    """Hash of the array's bytes in C order, whatever its dtype and shape."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
