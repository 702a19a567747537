"""stage=compare: what differs between saved runs, key by key, and what their metrics are side by side."""

from __future__ import annotations

import math
import statistics
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.cli.terminal import results
from pipeline.contracts.runs import AboutRuns
from pipeline.errors import UserError
from pipeline.experiment.settings import Settings, Text
from pipeline.report.intervals import Paired, deviation, half_width, paired
from pipeline.report.table import alike, counted, figure, figure_of, median_and_range, show, show_table, with_sign
from pipeline.report.timed import of_rates
from pipeline.runs.choices import text_of
from pipeline.runs.differences import (
    ABSENT,
    BESIDE,
    CODE,
    SECTIONS,
    Account,
    account_of,
    by_seed,
    differing,
    differing_metrics,
    edited,
    foremost,
    the_same,
)
from pipeline.runs.json_files import read_json
from pipeline.runs.judged_on import GIVEN_OTHERWISE, SPLITS, asked_for, examples_of, says_which, user_modules
from pipeline.runs.listing import WHICH, is_of_loss
from pipeline.runs.lookup import find_run
from pipeline.runs.records import read_status
from pipeline.runs.result import Table
from pipeline.spec import Config, spec
from pipeline.stages.about_runs import by_training
from pipeline.stages.about_runs.same_examples import print_paired

SIDE_BY_SIDE = 4  # more runs than that do not fit side by side: each value is named once, with the runs that have it
DIGEST = 12  # letters of a hash
CORRECTED = "The intervals are corrected for the training examples that folds share (Nadeau and Bengio, 2003)."
FEW = 3  # words of a text that two runs share are left out where it has more than that


@spec
class Compare(AboutRuns):
    """`runs`: two or more, each by its id, a unique beginning of it, a folder or `latest`."""

    runs: tuple[Text, ...] = ()

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise UserError("stage.runs: name two runs or more, as stage.runs=[<id>,<id>], and none by run=<id>")

    def act(self, settings: Settings, config: Config) -> int:
        """Print it: which runs, what differs by section, the metrics, and what that means."""
        try:
            folders = [find_run(Path(settings.output_dir), name, holding="status.json") for name in self.runs]
        except UserError as error:
            raise UserError(str(error).replace("run=", "stage.runs=", 1)) from error
        for folder in folders:
            if folders.count(folder) > 1:
                raise UserError(f"stage.runs: {folder.name} is named twice")
        accounts = [account_of(folder) for folder in folders]
        console = results()
        named = zip(letters(len(accounts)), (called(one.folder) for one in accounts), strict=True)
        show(console, "", list(named))
        found = print_differences(console, accounts, letters(len(accounts)))
        _print_metrics(console, accounts)
        _print_how_timed(console, accounts)
        if len(accounts) == 2 or max(map(len, by_seed(accounts))) == 1:  # else by seed, above, which says more
            print_paired(console, accounts, letters(len(accounts)), _are_unlike)
        console.print()
        for line in conclusion(accounts, found):
            console.print(line, highlight=False, markup=False)
        return 0


def called(folder: Path) -> str:
    """A run's id, and where it has not finished, how it stands: its metrics may be of a part of it."""
    status = read_status(folder)
    if status is None or status.state == "FINISHED":
        return folder.name
    return f"{folder.name}  {status.state}{f': {status.error}' if status.error else ''}"


def letters(count: int) -> list[str]:
    """a, b, ..., z, then a1, b1, ...: short names for the heads of columns."""
    alphabet = string.ascii_lowercase
    return [alphabet[n % 26] + (str(n // 26) if n >= 26 else "") for n in range(count)]


def print_differences(console: Console, accounts: Sequence[Account], names: Sequence[str]) -> list[str]:
    """A table for each section in which something differs, with a column for each run; returns these sections."""
    found = []
    for section in SECTIONS:
        rows = differing(accounts, section)
        if not rows:
            continue
        found.append(section)
        console.print()
        if len(accounts) <= SIDE_BY_SIDE:
            lines = tuple(
                (key, *(_shown(values, place) for place in range(len(values)))) for key, values in rows.items()
            )
            show_table(console, Table(section, ("", *names), lines), left=names)
        else:
            show(console, section, [(key, _by_value(values)) for key, values in rows.items()])
        if section == "code" and CODE in rows:
            _say_how_many(console, accounts)
    return found


def _say_how_many(console: Console, accounts: Sequence[Account]) -> None:
    """How many modules were edited, and where all are listed, if the table leaves some out."""
    changed = edited(accounts) or []
    left = len(changed) - len(foremost(accounts, changed))
    if left:
        which = f"{left} of them not shown" if left < len(changed) else "none of a choice of these runs"
        where = "code.json in the folder of each run lists all with their hashes"
        console.print(f"{len(changed)} modules were edited, {which}; {where}", highlight=False, markup=False)


def conclusion(accounts: Sequence[Account], sections: Sequence[str]) -> list[str]:
    """What the differences mean, in a sentence or two. Of runs that lack a file nothing is said of what came out."""
    lines = [f"{one.folder.name}: has no {', '.join(one.missing)}; not compared" for one in accounts if one.missing]
    same = the_same(accounts, sections)
    whole = [one for one in accounts if not one.missing]
    if same and (sections or len(whole) < len(accounts)):
        lines.append(f"The same: {', '.join(same)}.")
    metrics, times = (differing_metrics(whole, of_machine=which) for which in (False, True))
    weights = {account.weights for account in whole}
    code = differing(accounts, "code")
    if "only here" in code and edited(accounts) == [] and not any(key.startswith(BESIDE) for key in code):
        lines.append("No module was edited: they are other modules, those of other choices.")
    if sections:
        return lines
    if metrics or len(weights) > 1:
        what = ", ".join([*metrics, *(["the weights"] if len(weights) > 1 else [])])
        lines.append(
            f"Nothing that is recorded differs, except for what came out: {what}. The computation is not repeatable to "
            "the bit, or something has changed that no receipt holds."
        )
    elif len(whole) < len(accounts):
        return lines
    elif times:
        lines.append("Nothing that is recorded differs, and the results are the same; only times and memory differ.")
    else:
        lines.append("Nothing differs.")
    return lines


def _shown(values: Sequence[Any], place: int) -> str:
    """One run's value; of a long list of words (the processor's instructions) those that not all of the runs have."""
    value = values[place]
    if all(isinstance(one, str) and "," not in one and len(one.split()) > FEW for one in values):
        shared = set.intersection(*(set(one.split()) for one in values))
        return " ".join(word for word in value.split() if word not in shared) or ABSENT
    return _text(value)


def _text(value: Any) -> str:
    text = text_of(value)
    is_hash = len(text) >= 40 and all(letter in string.hexdigits for letter in text)
    return text[:DIGEST] if is_hash else text


def _by_value(values: Sequence[Any]) -> str:
    """Each value once, with the runs that have it: `0.1 (a, c)`."""
    names = letters(len(values))
    found: dict[str, list[str]] = {}
    for place, name in enumerate(names):
        found.setdefault(_shown(values, place), []).append(name)
    return "\n".join(f"{text} ({', '.join(having)})" for text, having in found.items())


def _print_metrics(console: Console, accounts: Sequence[Account]) -> None:
    """The metrics of every run; of runs that differ in their seed alone the mean, the spread and the interval."""
    names = letters(len(accounts))
    groups = by_seed(accounts)
    for group in groups:
        if len(group) > 1:
            console.print()
            _print_spread(console, [accounts[place] for place in group], [names[place] for place in group])
    if len(groups) == 2:
        _print_paired(console, *({names[place]: accounts[place] for place in group} for group in groups))
    if len(accounts) == 2:
        _print_by_training(console, accounts, names)
    alone = [group[0] for group in groups if len(group) == 1]
    if any(accounts[place].metrics for place in alone):
        console.print()
        _print_values(console, [accounts[place] for place in alone], [names[place] for place in alone])


def _print_how_timed(console: Console, accounts: Sequence[Account]) -> None:
    """What makes the rates above uncertain; another section says that they are of several machines."""
    timed = [one for one in accounts if any(metric.kind == "time" for metric in one.metrics.values())]
    for line in of_rates([read_json(one.folder / "receipt.json") for one in timed], "run"):
        console.print(line, highlight=False, markup=False)


def _print_values(console: Console, accounts: Sequence[Account], names: Sequence[str]) -> None:
    """The metrics side by side; of more runs than fit, the range. Those of each seed or fold are in a run's table."""
    named = dict.fromkeys(
        name for account in accounts for name, one in account.metrics.items() if one.role not in ("seed", "fold")
    )
    if len(accounts) <= SIDE_BY_SIDE:
        rows = tuple((name, *(_number(one, name) for one in accounts), *_difference(accounts, name)) for name in named)
        last = (f"{names[1]} - {names[0]}",) if len(accounts) == 2 else ()
        show_table(console, Table("metrics", ("", *names, *last), rows))
    else:
        lines = [(name, _range([one for one in accounts if name in one.metrics], name)) for name in named]
        show(console, f"metrics of {', '.join(names)}: median (lowest to highest)", lines)


def _print_spread(console: Console, accounts: Sequence[Account], names: Sequence[str]) -> None:
    """Runs that differ in their seed alone: mean, standard deviation and range of each metric."""
    seeds = ", ".join(str(one.sections["config"].get("seed")) for one in accounts)
    rows = []
    for name in dict.fromkeys(name for one in accounts for name in one.metrics):
        each = [one.metrics[name].value for one in accounts if name in one.metrics]
        values, of = [value for value in each if not math.isnan(value)], counted(each).removeprefix("n=")
        if not values:
            rows.append((name, of, *[""] * 5))
            continue
        width = half_width(values)
        scatter = deviation(values)
        interval = f"±{figure(width)}" if width is not None else ""
        spread = "" if scatter is None else figure(scatter)
        row = (figure(statistics.fmean(values)), spread, figure(min(values)), figure(max(values)), interval)
        rows.append((name, of, *row))
    heads = ("", "n", "mean", "deviation", "lowest", "highest", "95 %")
    show_table(console, Table(f"metrics of {', '.join(names)}: seeds {seeds}", heads, tuple(rows)))
    tested = {examples_of(one.folder, "test/loss") for one in accounts} - {None}
    if len(tested) > 1:  # a dataset of the user's may divide by the seed
        said = f"tested on {len(tested)} different sets of examples: the spread of the metrics is also that of the sets"
        console.print(said, highlight=False, markup=False)


def _print_paired(console: Console, first: Mapping[str, Account], second: Mapping[str, Account]) -> None:
    """How far the runs of `second` lie from those of `first`, seed by seed: the mean difference of each metric that all
    have, its interval, and whether that shows a difference. Nothing for fewer common seeds than an interval takes."""
    ours, theirs = ({str(one.sections["config"].get("seed")): one for one in side.values()} for side in (second, first))
    seeds = [seed for seed in ours if seed in theirs]
    rows = []
    for name in dict.fromkeys(name for seed in seeds for name in ours[seed].metrics):
        pairs = {seed: (theirs[seed], ours[seed]) for seed in seeds}
        if any(name not in one.metrics for pair in pairs.values() for one in pair):
            continue
        if any(_are_unlike(pair, name) for pair in pairs.values()):
            continue
        before, after = ({seed: pair[side].metrics[name].value for seed, pair in pairs.items()} for side in (0, 1))
        found = paired(after, before)
        if found is not None:
            rows.append((name, str(found.n), *_interval(found), _verdict(found)))
    if rows:
        title = f"{', '.join(second)} minus {', '.join(first)}, seed by seed"
        console.print()
        show_table(console, Table(title, ("", "n", "mean", "95 %", ""), tuple(rows)))


def _print_by_training(console: Console, accounts: Sequence[Account], names: Sequence[str]) -> None:
    """The same of two runs of stage=seeds, and of two of stage=folds: their folds share training examples."""
    first, second = accounts
    by_seed, by_fold = by_training.by_seed(first, second, _are_unlike), None
    if by_seed is None:
        by_fold = by_training.by_fold(first, second, measured_otherwise)
    found = by_seed or by_fold
    if found is None:
        return
    console.print()
    if isinstance(found, str):
        console.print(found, highlight=False, markup=False)
        return
    rows = tuple((name, str(one.n), *_interval(one), _verdict(one)) for name, one in found)
    title = f"{names[1]} minus {names[0]}, {'seed by seed' if by_seed else 'fold by fold'}"
    show_table(console, Table(title, ("", "n", "mean", "95 %", ""), rows))
    if by_fold:
        console.print(CORRECTED, highlight=False, markup=False)


def _verdict(found: Paired) -> str:
    return "they differ" if found.shown else "not shown to differ"


def _interval(found: Paired) -> tuple[str, str]:
    """The mean difference and half of its interval, with digits alike: two of the mean may lie outside of it."""
    if found.half is None:
        return signed(found.mean), ""
    mean, half = alike((found.mean, found.half), found.half)
    return with_sign(found.mean, mean), f"±{half}"


def _number(account: Account, name: str) -> str:
    metric = account.metrics.get(name)
    return ABSENT if metric is None else figure_of(metric.value, metric.kind)


def _difference(accounts: Sequence[Account], name: str) -> tuple[str, ...]:
    if len(accounts) != 2:
        return ()
    if any(name not in one.metrics for one in accounts) or _are_unlike(accounts, name):
        return ("",)
    difference = accounts[1].metrics[name].value - accounts[0].metrics[name].value
    return (signed(difference),)


def _are_unlike(accounts: Sequence[Account], name: str) -> bool:
    """Whether a metric was measured otherwise, or is of other examples: another seed has others to validate on."""
    if measured_otherwise(accounts, name):
        return True
    configs = [one.sections["config"] for one in accounts]
    examples = {examples_of(one.folder, name) for one in accounts}
    changed = {key for key in {*configs[0], *configs[1]} if configs[0].get(key) != configs[1].get(key)}
    if None in examples:  # of stage=folds, or of before receipts held it: by the settings
        return name.partition("/")[0] in SPLITS and not changed.isdisjoint(WHICH)
    if len(examples) < 2:
        return False
    if name.startswith("validation/") and "seed" in changed:  # which draws other ones
        return not changed.isdisjoint(WHICH)
    return bool(says_which(changed)) or changed.isdisjoint(GIVEN_OTHERWISE)


def measured_otherwise(accounts: Sequence[Account], name: str) -> bool:
    """Whether a metric is of different losses, settings or code of the user's."""
    configs = [one.sections["config"] for one in accounts]
    if name.endswith("/loss"):
        # Without what is unset: runs of before lack settings that have been added since.
        losses = [{key: one[key] for key in one if is_of_loss(key) and one[key] is not None} for one in configs]
        if losses[0] != losses[1]:
            return True
    asked = [asked_for(one.folder, one.sections["config"], name) for one in accounts]
    if any(one != asked[0] for one in asked):
        return True
    own = {module for one in accounts for module in user_modules(one.folder, one.sections["config"], name)}
    return not own.isdisjoint(edited(accounts) or ())


def signed(difference: float) -> str:
    """A difference in two digits, a large one as a whole number: `+0.0023`, `-12,345`."""
    if difference == 0 or math.isnan(difference):
        return f"{abs(difference):.0f}"
    return f"{difference:+,.0f}" if abs(difference) >= 99.5 else f"{difference:+.2g}"


def _range(accounts: Sequence[Account], name: str) -> str:
    if any(_are_unlike((accounts[0], other), name) for other in accounts[1:]):
        return f"of different losses, settings, code or examples, n={len(accounts)}"
    return median_and_range([one.metrics[name].value for one in accounts])
