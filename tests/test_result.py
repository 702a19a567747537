"""A result on disk: what a metric declares comes back, and what is not a metric is refused where it is made."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pipeline.report import table
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import write_json
from pipeline.runs.result import (
    Direction,
    Kind,
    Metric,
    Result,
    Table,
    by_name,
    count,
    ends,
    half_of,
    metrics_of,
    rate,
    read_result,
    seconds,
    training_rate,
)
from pipeline.study import outcome, report

NAMES = st.from_regex(r"[a-z]{1,4}(/[a-z_s^()]{1,4})?", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
METRIC = st.builds(
    Metric, NAMES, st.floats(), TEXT, st.sampled_from(get_args(Kind)), st.sampled_from(get_args(Direction))
)
UNIQUE = st.lists(METRIC, max_size=4, unique_by=lambda metric: metric.name).map(tuple)
ROWS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)
TABLE = st.builds(Table, TEXT, st.just(("one", "two")), ROWS)


@given(UNIQUE, ROWS, st.lists(TEXT, max_size=2).map(tuple), st.lists(TABLE, max_size=2).map(tuple), st.none() | TEXT)
def test_a_result_comes_back_whole(
    tmp_path_factory: pytest.TempPathFactory, metrics: Any, table: Any, notes: Any, tables: Any, failed: Any
) -> None:
    folder = tmp_path_factory.getbasetemp()
    result = Result(metrics[:2], table, notes, tables, failed, title="whole", last_epoch=metrics[2:])
    write_json(folder / "result.json", result.plain())
    assert repr(read_result(folder)) == repr(result)  # repr: a NaN is not equal to itself


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"version": 2}', '{"version": 1, "scalars": {"a": 1}}'])
def test_what_is_no_result_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "result.json").write_text(text)
    assert read_result(tmp_path) is None
    assert metrics_of(tmp_path) == metrics_of(None) == {}


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a/..", ".", "a\nb", "x" * 241])
def test_a_name_that_no_store_takes_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="needs a printable name of at most 240 characters"):
        Metric(name, 1.0)


def test_numbers_are_written_with_three_digits_and_minutes_have_60_seconds() -> None:
    assert [table.seconds(number) for number in (0.4, 119.0, 179.7, 180.2)] == [
        "0.40 s",
        "119.0 s",
        "3 min 0 s",
        "3 min 0 s",
    ]
    assert table.spread([1200.0, 1250.0, 1234.4], " images/s") == "1,234 images/s (1,200 to 1,250, n=3)"
    assert table.spread([0.4, 0.7, 1.2], " images/s") == "0.70 images/s (0.40 to 1.20, n=3)"
    assert [table.figure_of(52.0, kind) for kind in ("count", "result")] == ["52", "52.0000"]
    assert table.median_and_range([129.7733, 192.8038], "time") == "161 (130 to 193, n=2)"
    assert [table.figure_of(one, "time") for one in (0.0, 1.5e-7, 0.0123)] == ["0.0000", "1.5e-07", "0.012"]
    narrow = io.StringIO()
    rows = (("cpu_threads", "29.5 to 45.9", "12435.4 %"),) * 2
    table.show_table(Console(file=narrow, width=30), Table("", ("kernel", "range", "of numpy"), rows))
    assert not re.search(r"\d\.\s", narrow.getvalue())  # no number is cut at its point


def test_the_last_number_that_is_written_one_way_and_the_first_of_the_next() -> None:
    """Negative ones as positive ones; nothing that is not 0 reads as 0."""
    written: dict[Callable[[float], str], dict[float, str]] = {
        table.figure: {999.5: "999.5000", 1000: "1,000", -1000.4: "-1,000", -0.001: "-0.0010", -0.0009: "-9.0e-04"},
        table.change: {0: "+0.0000", 0.0001: "+0.0001", -0.5: "-0.5000", 0.00005: "+5.0e-05", -0.00005: "-5.0e-05"},
        table.size: {1023: "1023 B", 1024: "1.0 KiB", 1.5 * 2**30: "1.5 GiB", 2**42: "4096.0 GiB"},
        table.seconds: {
            **{0.0: "0.00 s", 0.00261: "2.61 ms", 0.0994: "99.4 ms", 0.0996: "0.10 s", 9.99: "9.99 s", 10: "10.0 s"},
            **{75.3: "75.3 s", 120: "2 min 0 s", 150.6: "2 min 31 s", 725: "12 min 5 s"},
        },
        table.digits: {0.0994: "0.099", 9.94: "9.94", 9.96: "10.0", 99.4: "99.4", 99.6: "100", 1234.5: "1,234"},
        table.percent: {0.1234: "12.3 %", 0.0: "0.0 %"},
    }
    for write, cases in written.items():
        assert {value: write(value) for value in cases} == cases
    assert table.percent(None) == ""
    assert [table.figure_of(one, "count") for one in (2.5, 3e12)] == ["2.5000", "3,000,000,000,000"]
    assert [table.figure_of(one, "time") for one in (0.001, 0.0009, 2e12)] == ["0.0010", "9.0e-04", "2.0000e+12"]
    assert table.spread([0.5], " s") == "0.50 s"
    assert table.spread([0.4, 30.0, 2000.0]) == "30.00 (0.40 to 2,000.00, n=3)"


def test_a_median_leaves_out_what_is_not_a_number_and_says_so() -> None:
    """An infinity has a place in an order, a NaN has none."""
    nan, inf = math.nan, math.inf
    assert table.median_and_range([0.3, nan, 0.1, 0.9]) == "0.3000 (0.1000 to 0.9000, n=3, 1 nan)"
    assert table.median_and_range([0.3, inf, 0.1]) == "0.3000 (0.1000 to inf, n=3)"
    assert table.median_and_range([nan, nan]) == "nan (n=2)"
    assert (table.counted([1.0, nan, inf]), table.counted([1.0])) == ("n=2, 1 nan", "n=1")


def test_no_two_columns_of_a_file_have_one_head() -> None:
    others = [("error", "metric"), ("seed", "setting"), ("seed", "metric"), ("a", "metric")]
    assert table.file_heads(["seed", "error"], others) == ["metric/error", "setting/seed", "metric/seed", "a"]
    assert table.file_heads(["a"], [("a", "metric"), ("a", "metric")]) == ["metric/a", "metric/metric/a"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (419_838_976, "419,838,976"),
        (-68_719_476_736.0, "-68,719,476,736"),  # bytes
        (math.exp(100), "2.6881e+43"),
        (-1e300, "-1.0000e+300"),
        (math.inf, "inf"),
    ],
)
def test_a_huge_number_is_a_power_of_ten(value: float, shown: str) -> None:
    """A perplexity had 33 digits behind those that it was known to."""
    assert table.figure(value) == shown


@pytest.mark.parametrize(
    ("number", "text"), [(512, "512 B"), (-512, "-512 B"), (4194304, "4.0 MiB"), (-4194304, "-4.0 MiB"), (0, "0 B")]
)
def test_bytes_that_were_given_back_read_as_those_that_were_taken(number: float, text: str) -> None:
    """Memory after an operation less that before it was -4194304 B."""
    assert table.size(number) == text


def test_a_metric_says_what_it_may_be() -> None:
    with pytest.raises(ValueError, match=r"metric a: kind='speed'; choose from result, time, memory, count"):
        Metric("a", 1.0, kind="speed")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"metric a: direction='up'; choose from min, max, none"):
        Metric("a", 1.0, direction="up")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a result's metric 'a': needs a pipeline.runs.result.Metric"):
        Result({"a": 1.0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="metric a: measured twice"):
        Result((count("a", 1), count("a", 2)))
    with pytest.raises(ValueError, match=r"metric a: declared as .* and .*"):
        Result((count("a", 1),), last_epoch=(seconds("a", 1),))


def test_the_rate_of_a_training_is_found_by_its_declaration() -> None:
    metrics = by_name([Metric("per_s", 1.0), seconds("compile_s", 2.0), rate("reading", 3.0, "tokens")])
    assert training_rate(metrics) == Metric("reading", 3.0, "tokens/s", "time", "max")
    with pytest.raises(KeyError, match="no rate among per_s"):
        training_rate(by_name([Metric("per_s", 1.0)]))


def test_results_and_times_are_told_apart_by_their_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by their names: losses_s is a result here, and gain a ratio of times. DVC tracks results and counts."""
    journal = Journal.begin(tmp_path / "runs", "kinds", {})
    epoch = (count("epoch/number", 1), Metric("epoch/loss_s", 0.5), seconds("epoch/wall", 2.0))
    journal.log({one.name: one.value for one in epoch}, 7)
    journal.write_receipt({"backend": "torch", "wall_time_s": 1000.0})
    metrics = (Metric("test/loss_s", 0.25), count("steps", 7), seconds("training", 3.0))
    gain, peak = Metric("gain", math.inf, "x", "time", "max"), Metric("peak", 9.0, "bytes", "memory", "min")
    journal.write_result(Result((*metrics, gain, peak), last_epoch=epoch))
    journal.finish("FINISHED")
    monkeypatch.chdir(tmp_path)
    outcome.keep("kinds", journal.folder)
    kept = {part: json.loads((tmp_path / f"study/kinds/{part}.json").read_text()) for part in ("metrics", "timings")}
    assert kept["metrics"] == {"test": {"loss_s": 0.25}, "steps": 7.0}
    assert kept["timings"].keys() == {"run_s", "wall_time_s", "training", "gain", "peak"}
    assert kept["timings"]["run_s"] == 1000.0  # of a run that went on: without the time that it lay dead
    assert (tmp_path / "study/kinds/curves.csv").read_text().splitlines() == ["epoch,step,loss_s", "1,7,0.5"]


def test_what_stands_for_an_interval_or_a_seed_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not read off a name: a metric called gain_low is a result of the study's table like any other."""
    journal = Journal.begin(tmp_path / "runs", "roles", {})
    receipt = {"backend": "torch", "device": {"effective": "cpu"}, "precision": {"effective": "fp32"}}
    journal.write_receipt(receipt)
    plain = (Metric("test/accuracy", 0.5), Metric("gain_low", 2.0), Metric("seed_corn", 3.0))
    ends = (Metric("test/accuracy_low", 0.25, role="low"), Metric("test/accuracy_high", 0.75, role="high"))
    seeds = tuple(Metric(f"seed_{n}/test_accuracy", 0.5 * n, role="seed") for n in range(2))
    journal.write_result(Result((*plain, *ends, *seeds)))
    journal.finish("FINISHED")
    monkeypatch.chdir(tmp_path)
    outcome.keep("roles", journal.folder)
    head, _, row = report.table({"roles": outcome.read("roles")}).splitlines()
    cells = dict(zip(head.strip("| ").split(" | "), row.strip("| ").split(" | "), strict=True))
    shown = {name: cells[name] for name in ("test accuracy", "gain_low", "seed_corn", "by seed")}
    assert shown == {
        "test accuracy": "0.5000 (0.2500 to 0.7500)",
        "gain_low": "2",
        "seed_corn": "3",
        "by seed": "0, 0.5000",
    }
    assert "test accuracy_low" not in cells


def test_an_interval_of_one_run_is_not_shown_as_one_over_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.begin(tmp_path / "runs", "single", {})
    journal.write_receipt({"backend": "torch", "device": {"effective": "cpu"}, "precision": {"effective": "fp32"}})
    accuracy = Metric("test/accuracy", 0.5, direction="max")
    journal.write_result(Result((accuracy, *ends(accuracy, 0.25, 0.75))))
    journal.finish("FINISHED")
    monkeypatch.chdir(tmp_path)
    outcome.keep("single", journal.folder)
    assert "| 0.5000 (by the test examples: 0.2500 to 0.7500) |" in report.table({"single": outcome.read("single")})


def test_half_of_an_interval_is_read_by_role_and_not_by_name() -> None:
    accuracy = Metric("test/accuracy", 0.5, direction="max")
    whole = by_name([accuracy, *ends(accuracy, 0.25, 0.5)])
    assert half_of(whole, "test/accuracy") == 0.125
    assert half_of(by_name([accuracy]), "test/accuracy") is None
    named = [accuracy, Metric("test/accuracy_low", 0.25), Metric("test/accuracy_high", 0.5)]
    assert half_of(by_name(named), "test/accuracy") is None
