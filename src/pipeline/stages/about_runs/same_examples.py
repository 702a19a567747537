"""Two models on the same test examples, paired: which of them has right what the other has wrong, in stage=compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from pipeline.errors import UserError
from pipeline.report.intervals import CONFIDENCE, LEAST_EXAMPLES, PairedShares, paired, paired_shares, why_none
from pipeline.report.table import alike, change, figure, show, with_sign
from pipeline.runs.differences import Account
from pipeline.stages.about_runs.predictions import Kind, Predictions, kind_of, read_predictions

LEVEL = f"{100 * CONFIDENCE:.0f} %"
TITLE = "the same test examples, one by one"
NOT_SHOWN = "not shown to differ"
OF_MODELS = (
    "That is of these two trained models. Another seed trains another model: several seeds of each (stage=seeds) show "
    "whether their settings differ."
)
OF_ONE_MODEL = "Both runs use the same weights: only the arithmetic differs, as by backend or precision."
Row = tuple[str, str]
Unlike = Callable[[Sequence[Account], str], bool]


def print_paired(console: Console, accounts: Sequence[Account], names: Sequence[str], unlike: Unlike) -> None:
    """Of two runs that were tested on the same examples what each has right, and whether that shows a difference; else
    why nothing can be concluded. Nothing of runs that write no prediction of each example.

    `unlike`: whether a metric of the runs is of other examples.
    """
    kinds = {kind_of(account.metrics) for account in accounts}
    known = kinds.pop()
    if kinds or known is None or all(map(_trainings, accounts)):  # these are compared by seed, or by fold
        return
    kind, name = known
    console.print()
    try:
        first, second = _both(accounts, names, kind, name, unlike)
    except UserError as error:
        console.print(f"not compared example by example: {error}", highlight=False, markup=False)
        return
    changed = sum(one != other for one, other in zip(first.predicted, second.predicted, strict=True))
    rows, lines = [(kind.unit, f"{len(first.actual):,}"), ("answered otherwise", f"{changed:,}")], []
    if changed and first.absolute:
        rows += _of_errors(first, second, names)
    elif changed:
        found, more = _of_answers(first, second, names)
        rows, lines = [*rows, *more], [_verdict(found, names, kind)]
    if changed:
        one, other = (account.weights for account in accounts)
        lines.append(OF_ONE_MODEL if one is not None and one == other else OF_MODELS)
    show(console, TITLE, rows)
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _trainings(account: Account) -> set[str]:
    """Of what a run has several trainings: seeds or folds; of a single one it is empty."""
    return {metric.role for metric in account.metrics.values() if metric.role in ("seed", "fold")}


def _both(
    accounts: Sequence[Account], names: Sequence[str], kind: Kind, name: str, unlike: Unlike
) -> tuple[Predictions, Predictions]:
    """The predictions of two runs. Raises UserError where they cannot be paired."""
    if len(accounts) != 2:
        raise UserError(f"that takes two runs, and {len(accounts)} are named")
    for called, account in zip(names, accounts, strict=True):
        for of in _trainings(account):
            raise UserError(f"{called} is of several {of}s; name the run of one of them")
    if unlike(accounts, name):
        raise UserError(f"{name} is of other test examples, or was measured otherwise")
    first, second = (_of(called, account, kind, name) for called, account in zip(names, accounts, strict=True))
    if len(first.actual) != len(second.actual):
        sizes = f"{len(first.actual):,} ({names[0]}) and {len(second.actual):,} ({names[1]})"
        raise UserError(f"{kind.file} has another number of {kind.unit} in each run: {sizes}")
    apart = sum(one != other for one, other in zip(first.actual, second.actual, strict=True))
    if apart:
        raise UserError(f"{apart:,} of {len(first.actual):,} actual values in {kind.file} differ between the runs")
    return first, second


def _of(called: str, account: Account, kind: Kind, name: str) -> Predictions:
    try:
        return read_predictions(account.folder, kind, account.metrics[name])
    except UserError as error:
        raise UserError(f"{called}: {error}") from error


def _of_answers(first: Predictions, second: Predictions, names: Sequence[str]) -> tuple[PairedShares, list[Row]]:
    """Of answers that are right or wrong: how many each model has right, the difference of the shares and its test."""
    pairs = list(zip(first.right, second.right, strict=True))
    only_a, only_b = pairs.count((True, False)), pairs.count((False, True))
    found = paired_shares(only_b, only_a, len(pairs))
    ends = f"{LEVEL}: {change(found.low)} to {change(found.high)}"
    return found, [
        ("both right", f"{pairs.count((True, True)):,}"),
        (f"only {names[0]} right", f"{only_a:,}"),
        (f"only {names[1]} right", f"{only_b:,}"),
        ("neither right", f"{pairs.count((False, False)):,}"),
        (f"share right, {names[1]} - {names[0]}", f"{change(found.difference)} ({ends})"),
        ("McNemar's exact test", f"p = {found.p:.2g}" if found.p >= 0.0001 else "p < 0.0001"),
    ]


def _verdict(found: PairedShares, names: Sequence[str], kind: Kind) -> str:
    beyond = f"beyond these {found.n:,} {kind.unit}"
    if not found.shown:
        return f"The two models are {NOT_SHOWN} {beyond}."
    return f"The two models differ {beyond}: {names[found.difference > 0]} is right more often."


def _of_errors(first: Predictions, second: Predictions, names: Sequence[str]) -> list[Row]:
    """Of numbers: the mean difference of the absolute and of the squared errors, and whether it shows one."""
    rows = []
    for name, theirs, ours in (
        ("absolute error", first.absolute, second.absolute),
        ("squared error", first.squared, second.squared),
    ):
        rows.append((f"{name}, {names[1]} - {names[0]}", _difference(theirs, ours, names)))
    return rows


def _difference(theirs: Sequence[float], ours: Sequence[float], names: Sequence[str]) -> str:
    found = paired(*({str(row): value for row, value in enumerate(each)} for each in (ours, theirs)))
    if found is None or found.n < LEAST_EXAMPLES:
        return f"no interval of fewer than {LEAST_EXAMPLES} examples"
    if found.half is None:
        mean = with_sign(found.mean, figure(found.mean))
        return f"{mean} ({why_none([b - a for a, b in zip(theirs, ours, strict=True)])} for an interval)"
    numbers = (found.mean, found.mean - found.half, found.mean + found.half)
    mean, low, high = map(with_sign, numbers, alike(numbers, found.half))
    verdict = f"{names[found.mean < 0]}'s is smaller" if found.shown else NOT_SHOWN
    return f"{mean} ({LEVEL}: {low} to {high}), {verdict}"
