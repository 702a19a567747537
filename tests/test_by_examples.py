"""How far the test examples carry a result: the interval of one run, and two models on the same examples, paired."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from command import DIGITS, TORCH_THEN_WIDE, done, pipeline, refused, runs, write_files
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats
from scipy.stats.contingency import crosstab

from pipeline.errors import UserError
from pipeline.losses.cross_entropy import CrossEntropy
from pipeline.losses.squared_error import SquaredError
from pipeline.metrics.accuracy import Accuracy
from pipeline.metrics.averaged import MeanOverExamples
from pipeline.metrics.bits_per_token import BitsPerToken
from pipeline.metrics.brier import Brier
from pipeline.metrics.mean_squared_error import MeanSquaredError
from pipeline.metrics.perplexity import Perplexity
from pipeline.metrics.root_mean_squared_error import RootMeanSquaredError
from pipeline.metrics.total import Total
from pipeline.report.intervals import LEAST_EXAMPLES, by_examples, half_width, of_share, paired_shares
from pipeline.runs.differences import account_of
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.result import Metric, metrics_of
from pipeline.stages.about_runs.predictions import CLASSES, NUMBERS, read_predictions
from pipeline.stages.about_runs.same_examples import print_paired
from pipeline.stages.measuring import Measured, add_to
from pipeline.tasks.classification import Classification
from pipeline.tasks.language_modelling import LanguageModelling
from pipeline.tasks.recall import Recall
from pipeline.tasks.regression import Regression

ENDS = ("", "_low", "_high")
counts = st.integers(2, 20_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts)
def test_the_interval_of_a_share_holds_it_within_0_and_1_and_mirrors(case: tuple[int, int]) -> None:
    right, n = case
    found, mirrored = of_share(right, n), of_share(n - right, n)
    assert found is not None
    assert mirrored is not None
    assert 0 <= found.low <= right / n + 1e-12
    assert right / n - 1e-12 <= found.high <= 1
    assert found.high - found.low > 0
    assert (found.low, found.high) == pytest.approx((1 - mirrored.high, 1 - mirrored.low), abs=1e-12)


@given(counts)
def test_the_interval_of_a_share_is_that_of_scipy(case: tuple[int, int]) -> None:
    found = of_share(*case)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(
        tuple(stats.binomtest(*case).proportion_ci(method="wilson")), abs=1e-12
    )


@pytest.mark.parametrize("n", [0, 1])
def test_of_too_few_examples_there_is_no_interval(n: int) -> None:
    assert of_share(n, n) is None
    assert by_examples(np.ones(n, bool)) is None
    assert by_examples(np.arange(float(LEAST_EXAMPLES - 1))) is None
    assert by_examples(np.arange(float(LEAST_EXAMPLES))) is not None
    assert by_examples(np.ones(50)) is None  # the same each time: a width of 0 would claim certainty
    assert by_examples(np.array([math.nan, *range(50)])) is None


def test_wilson_s_interval_covers_the_share_as_often_as_it_claims() -> None:
    """By the binomial's own probabilities, so without noise. Student's interval covers 0.99 of 100 in 63 % of cases."""
    for n in (100, 360):
        intervals = [of_share(right, n) for right in range(n + 1)]
        for share in (0.5, 0.85, 0.97):
            likely = stats.binom.pmf(range(n + 1), n, share)
            covered = sum(p for p, one in zip(likely, intervals, strict=True) if one and one.low <= share <= one.high)
            assert 0.93 < covered < 0.97, (n, share, covered)


def test_student_s_interval_covers_the_mean_of_skewed_errors_nearly_as_often() -> None:
    """Squared errors of a normal distribution, whose mean is 1: 0.95 is claimed."""
    generator, covered = np.random.default_rng(0), dict[int, float]()
    for n in (LEAST_EXAMPLES, 100):
        found = [by_examples(np.square(generator.normal(size=n))) for _ in range(1000)]
        covered[n] = sum(one is not None and one.low <= 1 <= one.high for one in found) / len(found)
    assert 0.88 < covered[LEAST_EXAMPLES] < 0.96
    assert 0.915 < covered[100] < 0.965


def simulated(n: int, alone: tuple[float, float], draws: int) -> np.ndarray:
    """Of each draw how many examples only the one model has right, and only the other: (draws, 2)."""
    return np.random.default_rng(0).multinomial(n, [*alone, 1 - sum(alone)], draws)[:, :2]


@pytest.mark.parametrize(("n", "alone"), [(360, (0.05, 0.05)), (1000, (0.02, 0.02)), (2000, (0.01, 0.01))])
def test_equal_models_are_seldom_said_to_differ(n: int, alone: tuple[float, float]) -> None:
    """5 % is claimed, and an exact test stays below it."""
    cases, times = np.unique(simulated(n, alone, 20_000), axis=0, return_counts=True)
    often = sum(k for (one, other), k in zip(cases, times, strict=True) if paired_shares(int(one), int(other), n).shown)
    assert 0.005 < often / times.sum() <= 0.052


@pytest.mark.parametrize(
    ("n", "alone"), [(360, (0.05, 0.05)), (360, (0.01, 0.03)), (2000, (0.02, 0.01)), (100, (0.1, 0.02))]
)
def test_the_paired_interval_covers_the_difference_as_often_as_it_claims(n: int, alone: tuple[float, float]) -> None:
    cases, times = np.unique(simulated(n, alone, 20_000), axis=0, return_counts=True)
    found = [paired_shares(int(one), int(other), n) for one, other in cases]
    covered = sum(k for one, k in zip(found, times, strict=True) if one.low <= alone[0] - alone[1] <= one.high)
    assert 0.935 < covered / times.sum() < 0.985


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 500))
def test_the_other_way_round_a_difference_has_the_other_sign(one: int, other: int, more: int) -> None:
    n = one + other + more
    found, back = paired_shares(one, other, n), paired_shares(other, one, n)
    assert (found.difference, found.low, found.high) == pytest.approx((-back.difference, -back.high, -back.low))
    assert found.p == pytest.approx(back.p)
    assert found.low < found.difference < found.high
    assert paired_shares(0, 0, n).p == 1


def test_mcnemar_s_test_is_that_of_the_book() -> None:
    """11 of 12 on one side: 2 (1 + 12) / 2^12."""
    found = paired_shares(11, 1, 100)
    assert found.p == pytest.approx(26 / 4096)
    assert (found.difference, found.shown) == (0.1, True)
    assert not paired_shares(5, 0, 100).shown  # p = 1/16


# What has an interval, and what has none.

X = np.zeros((40, 3))


def measured(task: Any, loss: Any, outputs: np.ndarray, y: np.ndarray, *metrics: Any) -> Measured:
    judge, totals = task.judge(loss), [Total(metric) for metric in metrics]
    for rows in (slice(0, 17), slice(17, None)):
        judge.add(X[rows], outputs[rows], y[rows])
        add_to(totals, task, outputs[rows], y[rows])
    return Measured(judge, totals, task.unit)


def test_a_share_and_a_mean_of_examples_have_an_interval_and_what_is_made_of_them_has_none() -> None:
    generator = np.random.default_rng(0)
    y, logits = generator.integers(0, 3, 40), generator.normal(size=(40, 3))
    asked = (Accuracy(), Perplexity(), BitsPerToken())
    found = measured(Classification((3,), ("a", "b", "c")), CrossEntropy(), logits, y, *asked)
    share = of_share(int((logits.argmax(1) == y).sum()), 40)
    assert found.intervals == {"test/accuracy": share}
    assert found.text(found.metrics[1]).endswith(", for 40 examples)")
    targets, outputs = generator.normal(size=(40, 2)), generator.normal(size=(40, 2))
    numbers = (MeanSquaredError(), RootMeanSquaredError())
    found = measured(Regression((3,), 2), SquaredError(), outputs, targets, *numbers)
    assert found.intervals.keys() == {"test/mean_absolute_error", "test/mean_squared_error"}
    squared = np.square(outputs - targets).mean(axis=1)
    low, high = (
        found.kept[at].value for at, one in enumerate(found.kept) if one.name.startswith("test/mean_squ") if one.is_end
    )
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 39, squared.mean(), stats.sem(squared)))
    assert [one.name for one in found.kept].count("test/mean_squared_error_low") == 1


def test_tokens_and_the_metrics_of_a_task_that_does_not_say_so_have_none() -> None:
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 5, (40, 4))
    logits = generator.normal(size=(40, 4, 5))
    for task, y in ((LanguageModelling(4, 5), tokens), (Recall(4, 5), tokens[:, 0])):
        assert measured(task, CrossEntropy(), logits, y, Accuracy()).intervals == {}


class Positions(Classification):
    """A user's task that derives from ours and compares several rows of each example."""

    def compared(self, ops: Any, outputs: Any, y: Any) -> tuple[Any, Any]:  # noqa: ARG002
        return np.repeat(outputs, 2, axis=0), np.repeat(y, 2)


def test_rows_that_are_no_examples_are_not_counted_as_such() -> None:
    y = np.arange(40) % 2
    totals = [Total(Accuracy())]
    for task, has in ((Classification((3,), ("a", "b")), True), (Positions((3,), ("a", "b")), False)):
        totals = [Total(Accuracy())]
        add_to(totals, task, np.eye(2)[y], y)
        assert (totals[0].interval() is not None) is has


class Grouped(Classification):
    """A user's task that derives from ours, with several examples of each patient."""

    independent: ClassVar[bool] = False


class GroupedNumbers(Regression):
    independent: ClassVar[bool] = False


def test_a_task_that_denies_independence_has_no_interval_by_our_judges() -> None:
    y, logits = np.arange(40) % 2, np.random.default_rng(0).normal(size=(40, 2))
    assert measured(Grouped((3,), ("a", "b")), CrossEntropy(), logits, y, Brier()).intervals == {}
    numbers = y[:, None].astype(np.float64)
    assert measured(GroupedNumbers((3,), 1), SquaredError(), logits[:, :1], numbers).intervals == {}


class Weighted(Accuracy):
    """A user's metric that derives from ours and weights the examples."""

    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        weights = 1.0 + targets
        return float((weights * self.each(outputs, targets)).sum()), float(weights.sum())


def test_a_weighted_mean_keeps_its_value_and_has_no_interval() -> None:
    """It was refused, because the plain mean is another."""
    y, total = np.arange(40) % 2, Total(Weighted())
    add_to([total], Classification((3,), ("a", "b")), np.eye(2)[np.zeros(40, int)], y)
    found = total.measured()
    assert found is not None, total.fault
    assert found.value == pytest.approx(1 / 3)
    assert total.interval() is None


class Half(MeanOverExamples):
    """Errors of 100 and more with either sign, kept in few bits: their mean is nearly 0."""

    direction = "none"
    takes = "numbers"

    def each(self, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return (outputs - targets)[:, 0].astype(np.float16)


def test_few_bits_an_example_are_no_other_mean() -> None:
    """The run failed at its end: the two means differ by the rounding of one of them."""
    generator, total = np.random.default_rng(0), Total(Half())
    for _ in range(20):
        add_to([total], Regression((3,), 1), generator.normal(size=(500, 1)) * 100, np.zeros((500, 1)))
    found, interval = total.measured(), total.interval()
    assert found is not None, total.fault
    assert interval is not None
    assert interval.low < found.value < interval.high


@pytest.mark.parametrize("name", ["test/accuracy_low", "test/accuracy_high"])
def test_a_metric_with_the_name_of_an_end_keeps_it(name: str) -> None:
    found = measured(Classification((3,), ("a", "b")), CrossEntropy(), np.eye(2)[np.arange(40) % 2], np.zeros(40, int))
    found.whole += (Metric(name, 0.125),)
    assert {one.name: one.value for one in found.kept}[name] == 0.125
    assert len({one.name for one in found.kept}) == len(found.kept)


OWN = """
import numpy as np
from pipeline.contracts import Metric
from pipeline.spec import spec

@spec
class Even(Metric):
    direction = "max"
    def sums(self, outputs, targets):
        return (outputs.argmax(axis=1) % 2 == targets % 2).sum(), len(targets)
    def value(self, sums):
        return sums[0] / sums[1]

@spec
class Sure(Even):
    def of_examples(self, outputs, targets):
        return outputs.argmax(axis=1) % 2 == targets % 2

@spec
class Other(Even):
    def of_examples(self, outputs, targets):
        return outputs.argmax(axis=1) == targets

@spec
class One(Even):
    def of_examples(self, outputs, targets):
        return 0.5

@spec
class Short(Even):
    def of_examples(self, outputs, targets):
        return np.zeros(3)

@spec
class Broken(Even):
    def of_examples(self, outputs, targets):
        return outputs[:, 99]
"""
KNOWN = {"PIPELINE_MODULES": "mine", "PYTHONPATH": "."}
FAULTS = {
    "Other": "value() gave 0.453125, which has to be the mean of what of_examples() gives: 0.125",
    "One": "of_examples() gave a float for 64 examples; give an array with a number for each",
    "Short": "of_examples() gave float64 of shape (3,) for 64 examples; give an array with a number for each",
    "Broken": "of_examples() failed (IndexError: index 99 is out of bounds for axis 1 with size 10, in of_examples",
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_metric_of_the_user_s_says_of_its_examples_is_tried_before_the_run(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, {"mine.py": OWN})
    said = refused(tmp_path, *DIGITS, f"training.metrics=[mine.{name}]", "tracking=none", **KNOWN)
    assert f"training.metrics={name.lower()}: {FAULTS[name]}" in said


# The command line: one training of each task, measured again, and compared.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits trained, measured in bfloat16, trained with another seed; diabetes twice."""
    made = tmp_path_factory.mktemp("examples")
    write_files(made, {"mine.py": OWN})
    done(made, *DIGITS, "training.metrics=[mine.Sure,brier]", **KNOWN)
    done(made, "stage=evaluate", f"run={runs(made)[0].name}", "precision=bf16", "training.metrics=[]", **KNOWN)
    done(made, *DIGITS, "seed=1", "model=linear")
    for epochs in (2, 3):
        done(made, "experiment=diabetes", f"training.epochs={epochs}")
    return made


def compared(folder: Path, *which: Path) -> str:
    """What the command prints on a terminal of 80 columns."""
    names = ",".join(run.name for run in which)
    found = pipeline(folder, "stage=compare", f"stage.runs=[{names}]", COLUMNS="80")
    assert found.returncode == 0, found.stderr
    assert max(map(len, found.stdout.splitlines())) <= 80
    return " ".join(found.stdout.split())


def answers(run: Path) -> tuple[np.ndarray, np.ndarray]:
    with (run / "artifacts/predictions.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    actual, predicted = zip(*rows, strict=True)
    return np.array(actual), np.array(predicted)


def test_the_interval_is_of_the_examples_and_in_the_result(folder: Path) -> None:
    first = runs(folder)[0]
    actual, predicted = answers(first)
    found = metrics_of(first)
    for name, right in (
        ("test/accuracy", actual == predicted),
        ("test/sure", actual.astype(int) % 2 == predicted.astype(int) % 2),
    ):
        expected = stats.binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
        assert [found[f"{name}{end}"].value for end in ENDS] == pytest.approx([right.mean(), *expected])
        assert [found[f"{name}{end}"].role for end in ENDS] == ["value", "low", "high"]
    assert {"test/brier_low", "test/brier_high"} <= found.keys()
    assert not {"test/loss_low", "test/macro_f1_low"} & found.keys()
    rows = dict(read_json(first / "result.json")["table"])
    low, high = (found[f"test/accuracy{end}"].value for end in ENDS[1:])
    assert (
        rows["test accuracy"] == f"{found['test/accuracy'].value:.4f} (95 %: {low:.4f} to {high:.4f}, for 360 images)"
    )
    assert rows["test loss"] == f"{found['test/loss'].value:.4f}"
    assert not [name for name in rows if name.endswith(("_low", "_high"))]


def test_the_interval_of_a_regression_is_student_s(folder: Path) -> None:
    run = runs(folder)[3]
    actual, predicted = (part.astype(float) for part in answers(run))
    errors, found = np.abs(actual - predicted), metrics_of(run)
    ends = stats.t.interval(0.95, len(errors) - 1, errors.mean(), stats.sem(errors))
    name = "test/mean_absolute_error"
    assert [found[f"{name}{end}"].value for end in ENDS] == pytest.approx([errors.mean(), *ends])
    assert not {"test/r2_low", "test/root_mean_squared_error_low", "test/loss_low"} & found.keys()


def test_a_run_and_its_evaluation_at_another_precision_are_paired(folder: Path) -> None:
    first, again = runs(folder)[:2]
    actual, predicted = answers(first)
    other_actual, other = answers(again)
    assert (actual == other_actual).all()
    said = compared(folder, first, again)
    assert f"examples 360 answered otherwise {(predicted != other).sum()}" in said
    assert "Another seed" not in said
    assert "test/accuracy_low" not in said


def test_two_models_are_paired_example_by_example(folder: Path) -> None:
    first, _, second = runs(folder)[:3]
    (actual, one), (_, other) = answers(first), answers(second)
    (neither, only_b), (only_a, both) = crosstab(actual == one, actual == other).count
    said = compared(folder, first, second)
    assert (
        f"answered otherwise {(one != other).sum()} both right {both} only a right {only_a} only b right {only_b}"
        in said
    )
    assert f"neither right {neither} share right, b - a {(only_b - only_a) / 360:+.4f} (95 %: " in said
    found = paired_shares(int(only_b), int(only_a), 360)
    verdict = f"differ beyond these 360 examples: {'b' if only_b > only_a else 'a'} is right more often."
    assert f"The two models {verdict if found.shown else 'are not shown to differ beyond these 360 examples.'}" in said
    assert "That is of these two trained models. Another seed trains another model" in said


def test_two_regressions_are_paired_by_their_errors(folder: Path) -> None:
    one, other = runs(folder)[3:5]
    said = compared(folder, one, other)
    (actual, first), (_, second) = ((a.astype(float), b.astype(float)) for a, b in map(answers, (one, other)))
    for name, error in (("absolute", np.abs), ("squared", np.square)):
        difference = error(second - actual) - error(first - actual)
        half = half_width(difference.tolist())
        assert half is not None
        text = f"{difference.mean():,.0f}" if abs(difference.mean()) >= 1000 else f"{difference.mean():.4f}"
        assert f"{name} error, b - a {text} (95 %: " in said
        shown = abs(difference.mean()) > half
        assert ("b's is smaller" if shown and difference.mean() < 0 else "not shown to differ") in said
    assert "McNemar" not in said


def changed(run: Path, change: Callable[[list[str]], list[str]]) -> None:
    path = run / "artifacts/predictions.csv"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def moved(lines: list[str]) -> list[str]:
    """Another actual class of an example, and its prediction: the accuracy stays."""
    row = next(number for number, line in enumerate(lines) if line == "3,3")
    return [*lines[:row], "4,4", *lines[row + 1 :]]


EDITED: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "edited": (
        lambda lines: [lines[0], *("0,0" for _ in lines[1:])],
        "is not of this result, perhaps edited: test/accuracy is ",
    ),
    "shorter": (lambda lines: lines[:-1], "is not of this result, perhaps edited"),
    "twice": (lambda lines: [*lines, *lines[1:]], "another number of examples in each run: 360 (a) and 720 (b)"),
    "other classes": (moved, "1 of 360 actual values in predictions.csv differ between the runs"),
    "damaged": (lambda lines: [*lines[:5], "1"], "b: artifacts/predictions.csv is damaged: line 6 has not 2 fields"),
    "empty": (lambda _: [], "b: artifacts/predictions.csv is damaged: its first line is ''"),
    "without examples": (lambda lines: lines[:1], "predictions.csv is damaged: it has no example"),
}


@pytest.mark.parametrize("how", EDITED)
def test_nothing_is_concluded_from_predictions_that_are_not_those_of_the_result(folder: Path, how: str) -> None:
    change, said = EDITED[how]
    first, _, second = runs(folder)[:3]
    kept = (second / "artifacts/predictions.csv").read_bytes()
    try:
        changed(second, change)
        found = compared(folder, first, second)
    finally:
        (second / "artifacts/predictions.csv").write_bytes(kept)
    assert "not compared example by example: " in found
    assert said in found
    assert "McNemar" not in found


def test_of_an_older_run_without_predictions_the_reason_is_one_line(folder: Path) -> None:
    first, again = runs(folder)[:2]
    path = again / "artifacts/predictions.csv"
    kept = path.read_bytes()
    try:
        path.unlink()
        found = compared(folder, first, again)
    finally:
        path.write_bytes(kept)
    assert "example by example: b: has no artifacts/predictions.csv: an older run, or a stage that writes none" in found
    assert "two runs, and 3 are named" in compared(folder, *runs(folder)[:3])


def test_runs_that_were_tested_on_other_examples_are_not_paired(folder: Path) -> None:
    first, _, second = runs(folder)[:3]
    path = second / "receipt.json"
    kept = path.read_bytes()
    try:
        receipt = json.loads(kept)
        receipt["held_out"]["test"] = "360-0"
        write_json(path, receipt)
        found = compared(folder, first, second)
    finally:
        path.write_bytes(kept)
    assert "test/accuracy is of other test examples, or was measured otherwise" in found


def test_the_mean_of_several_seeds_is_not_paired(folder: Path) -> None:
    """Its folder has the predictions of the first seed."""
    accounts = [account_of(run) for run in runs(folder)[:2]]
    seeds = {"seed_0/test_accuracy": Metric("seed_0/test_accuracy", 0.5, role="seed")}
    accounts[0] = replace(accounts[0], metrics={**accounts[0].metrics, **seeds})
    text = io.StringIO()
    print_paired(Console(file=text, width=80), accounts, "ab", lambda *_: False)
    said = "not compared example by example: a is of several seeds; name the run of one of them"
    assert " ".join(text.getvalue().split()) == said


def test_a_value_that_is_not_a_number_reproduces_nothing(tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    for text, kind, said in (
        ("actual,predicted\n1.0,nan\n", NUMBERS, "not of this result"),
        ("actual,predicted\n1.0,x\n", NUMBERS, "is damaged: could not convert"),
        ('actual,predicted\n"1,0\n', CLASSES, "is damaged: "),
        ("a,b\n1,0\n", CLASSES, "is damaged: its first line is 'a,b'"),
    ):
        (tmp_path / "artifacts/predictions.csv").write_text(text)
        with pytest.raises(UserError, match=said):
            read_predictions(tmp_path, kind, Metric("test/x", math.nan))


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_the_interval_is_the_same_on_every_backend(folder: Path, backend: str) -> None:
    first = runs(folder)[0]
    again = done(folder, "stage=evaluate", f"run={first.name}", f"backend={backend}", **KNOWN)
    one, other = metrics_of(first), metrics_of(again)
    for end in ENDS:
        assert one[f"test/accuracy{end}"] == other[f"test/accuracy{end}"]
        assert one[f"test/brier{end}"].value == pytest.approx(other[f"test/brier{end}"].value, rel=1e-4)
    assert "answered otherwise 0" in compared(folder, first, again)
