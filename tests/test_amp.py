"""The precision study on the digits, on each backend, and what it makes of runs that are made up."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command import TORCH_THEN_WIDE, done, pipeline, refused, runs, status
from hypothesis import assume, given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from pipeline.backends.shared.step_breakdown import steps_to_watch, window, with_rest
from pipeline.report.canvas import COLOURS, canvas
from pipeline.report.intervals import half_width
from pipeline.runs import weights
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_config
from pipeline.runs.result import Metric, by_name
from pipeline.runs.result import rate as rate_of
from pipeline.stages.amp import claims, compare, figures, tables, why
from pipeline.stages.amp.measured import Measured
from pipeline.stages.amp.stage import explained

SMALL = ["stage=amp", "dataset=digits", "model=mlp", "model.units=[16]", "training.epochs=1", "tracking=none"]
NAMES = ["fp64", "fp32", "bf16", "mixed"]
FEW = ["fp64", "fp32", "mixed"]  # on torch


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("amp")


class Studies:
    """Each backend's study, run when it is first asked for: the folder of its run, and what it printed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.found: dict[str, tuple[Path, str]] = {}

    def __getitem__(self, backend: str) -> tuple[Path, str]:
        if backend not in self.found:
            self.found[backend] = self._run(backend)
        return self.found[backend]

    def _run(self, backend: str) -> tuple[Path, str]:
        folder = self.place / backend
        folder.mkdir()
        short = [f"stage.precisions=[{','.join(FEW)}]"] if backend == "torch" else []
        result = pipeline(folder, *SMALL, *short, f"backend={backend}", "stage.repeats=1")
        assert result.returncode == 0, result.stderr[-2000:]
        (run,) = [path for path in (folder / "runs").iterdir() if (path / "artifacts" / "tables" / "runs.csv").exists()]
        return run, result.stdout


@pytest.fixture(scope="module")
def studies(place: Path) -> Studies:
    return Studies(place)


def runs_of(study: Path) -> list[dict[str, str]]:
    with (study / "artifacts" / "tables" / "runs.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_every_precision_and_seed_is_a_separate_run(studies: Studies, backend: str) -> None:
    study, result = studies[backend]
    rows = runs_of(study)
    names = FEW if backend == "torch" else NAMES
    cells = [(name, "0") for name in names]
    assert [(row["precision"], row["seed"]) for row in rows] == cells
    for row in rows:
        cell = study.parent / row["run"]
        assert status(cell).state == "FINISHED"
        receipt = read_json(cell / "receipt.json")
        assert receipt["probe_s"] > 0  # which the run's wall time left out
        assert float(row["wall_s"]) == pytest.approx(receipt["wall_time_s"] - receipt["probe_s"], abs=2e-3)
        assert receipt["wall_time_s"] > receipt["training_s"] + receipt["probe_s"]
    lines = [line.split() for line in result.splitlines()]
    assert ["mixed", "mixed_bf16", "bfloat16", "1"] in [line[:4] for line in lines]
    assert all([line[:1] for line in lines].count([name]) == 3 for name in names)  # a line in each of three tables


@pytest.mark.wide
def test_cells_are_interleaved(tmp_path: Path) -> None:
    result = pipeline(tmp_path, *SMALL, f"stage.precisions=[{','.join(FEW)}]", "stage.repeats=2")
    assert result.returncode == 0, result.stderr[-2000:]
    cells = [run for run in runs(tmp_path) if not (run / "artifacts" / "tables" / "runs.csv").exists()]
    began = sorted(cells, key=lambda run: status(run).started)
    found = [Measured.read(run) for run in began]
    assert [cell.precision for cell in found] == [*FEW, *reversed(FEW[1:])]
    assert [cell.seed for cell in found] == [0] * 3 + [1] * 2


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_errors_against_fp64_are_those_of_the_formats(studies: Studies, backend: str) -> None:
    """Unit roundoff: 6e-8 in float32, 4e-3 in bfloat16; a gradient is a sum of products of such numbers."""
    study, _ = studies[backend]
    found = json.loads((study / "result.json").read_text())["scalars"]
    assert 1e-9 < found["fp32/first_gradient_error"] < 1e-5
    assert backend == "torch" or 1e-4 < found["bf16/first_gradient_error"] < 0.1
    assert 1e-4 < found["mixed/first_gradient_error"] < 0.1
    assert found["fp32/first_loss_error"] < 1e-6
    assert "fp64/first_gradient_error" not in found


@pytest.mark.wide
@pytest.mark.parametrize("other", ["jax", "tensorflow"])
def test_backends_agree_on_the_first_step(studies: Studies, other: str) -> None:
    """In fp64 all take the same images from the same weights; so the gradients are the same."""
    first = {}
    for backend in ("torch", other):
        study, _ = studies[backend]
        (row,) = [row for row in runs_of(study) if row["precision"] == "fp64" and row["seed"] == "0"]
        first[backend] = Measured.read(study.parent / row["run"])
    assert len({round(one.step["loss"], 12) for one in first.values()}) == 1
    norms = [np.linalg.norm(one.gradients) for one in first.values()]
    assert norms == pytest.approx([norms[0]] * 2, rel=1e-12)


CHANGED = ("training.clip_norm=0.01", "training.clip_value=0.005", "schedule=one_cycle", "optimizer=sgd")


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.parametrize("changed", [(), pytest.param(CHANGED, marks=pytest.mark.wide)])
@pytest.mark.wide
def test_the_first_step_is_the_one_that_training_took(place: Path, backend: str, changed: tuple[str, ...]) -> None:
    """A run of one step, without dropout: what the probe says of it is where the training ended, also where gradients
    are clipped and a schedule sets the rate."""
    run = done(
        place, "dataset=digits", "model=mlp", "training.epochs=1", "stage.probe=true", f"backend={backend}",
        "dataset.train_size=32", "precision=fp64", "tracking=none", *changed,
    )  # fmt: skip
    one = Measured.read(run)
    assert compare.distance(one.first_weights, one.last_weights) < 1e-14


@pytest.mark.wide
@pytest.mark.parametrize("clip", ["training.clip_norm=1", "training.clip_value=0.1", "training.log_gradient_norm=true"])
def test_a_step_with_a_scaled_loss_is_probed_where_gradients_are_clipped(place: Path, clip: str) -> None:
    """The scale was taken out twice, which torch refuses: the whole cell of a study was lost."""
    run = done(
        place, "dataset=digits", "model=mlp", "training.epochs=1", "stage.probe=true", "precision=mixed_fp16",
        "dataset.train_size=32", "optimizer=sgd", "tracking=none", clip,
    )  # fmt: skip
    one = Measured.read(run)
    assert 0.1 < np.linalg.norm(one.gradients) < 10  # of the unscaled loss
    assert compare.distance(one.first_weights, one.last_weights) < 1e-6


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_figures_and_pages(studies: Studies, backend: str) -> None:
    study, result = studies[backend]
    for name in ("speed_against_error", "memory", "losses"):
        assert (study / "artifacts" / "figures" / f"{name}.png").stat().st_size > 5000
    pages = {path.stem for path in (study / "artifacts").glob("why/*")}
    assert pages == {line.rpartition("why/")[2][:-3] for line in result.split() if line.endswith(".md")}
    for page in pages:
        text = (study / "artifacts" / "why" / f"{page}.md").read_text()
        assert "## Where a step's time goes" in text
        assert ("(Amdahl)" in text) is not (f"**{page}: the step that was timed could not be explained.**" in text)
        assert "| ms a step | share |" in text
        assert "64 x 16 x 64" in text  # the first layer's product
        assert "1. " in text


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_where_a_steps_time_goes(studies: Studies, backend: str) -> None:
    study, _ = studies[backend]
    for row in runs_of(study):
        step = Measured.read(study.parent / row["run"]).step
        assert step["machine"]["FLOP_per_s"] > 1e8
        assert step["machine"]["moved_per_s"] > 1e7
        step_breakdown = step["step_breakdown"]
        shares = {kind: share for kind, share in step_breakdown["shares"].items() if share is not None}
        assert math.isclose(sum(shares.values()), 1, abs_tol=0.02)
        known = {"data"} | ({"optimizer"} if row["precision"] != "bf16" else set())  # XLA may drop its names there
        assert known <= {kind for kind, share in shares.items() if share > 0}
        for kind, share in shares.items():
            result = sum(one["seconds"] for one in step_breakdown["longest"] if one["kind"] == kind)
            assert result <= share * step_breakdown["step_s"] * 1.02
        assert step_breakdown["step_s"] > 0
        products = step_breakdown["products"]
        seen = sum(product["seconds"] for product in products) / step_breakdown["step_s"]
        assert math.isclose(seen, shares["products"], rel_tol=0.02)
        assert all(product["ceiling_FLOP_per_s"] > 1e6 for product in products)
        sizes = {(product["m"], product["n"], product["k"]) for product in products}
        # Two layers, forward; then the gradients of their kernels and of what lies between them.
        assert {(64, 16, 64), (64, 10, 16), (64, 16, 10)} <= sizes
        assert {(16, 64, 64), (64, 16, 64)} & sizes


@pytest.mark.wide
def test_a_planted_overflow_is_counted_and_what_does_not_run_here_is_left_out(place: Path) -> None:
    folder = place / "planted"
    folder.mkdir()
    words = ["stage.precisions=[fp32,tf32,mixed_fp16]", "stage.repeats=1", "stage.initial_scale=1e9", "device=cpu"]
    result = pipeline(folder, *SMALL, *words, "precision.strict=false")
    assert result.returncode == 0, result.stderr[-2000:]
    assert "impossible here: precision=tf32 seed=0: " in result.stderr
    assert "in one pair of runs: too few runs for an interval (stage.repeats=3 gives one)" in " ".join(
        result.stdout.split()
    )
    table = result.stdout.partition("the scale of the loss")[2].splitlines()
    (first, last, changes, skipped) = next(line.split()[1:] for line in table if "mixed_fp16" in line)
    assert float(first) == pytest.approx(1e9, rel=1e-6)
    assert 5 < int(skipped) == int(changes) < 20  # halved by each step that overflows, and there are 20 in all
    assert float(last) == pytest.approx(1e9 / 2 ** int(skipped), rel=1e-5)
    (drawn,) = folder.glob("runs/*/artifacts/figures/loss_scales.png")
    assert drawn.stat().st_size > 5000


@pytest.mark.wide
def test_a_training_of_few_steps_is_taken_apart_too(place: Path) -> None:
    """The window that is watched is longer than such a training, which ended the study without a table."""
    folder = place / "short"
    folder.mkdir()
    words = ("stage=amp", "dataset=digits", "model=mlp", "model.units=[256]", "training.steps=12", "tracking=none")
    schedule = ("schedule=cosine", "schedule.warm_up=10")
    result = pipeline(folder, *words, *schedule, "stage.precisions=[fp32,bf16]", "stage.repeats=1")
    assert result.returncode == 0, result.stderr
    assert "not measured" not in result.stdout + result.stderr


WRONG = {
    "stage.precisions=[fp32,fp8]": "stage.precisions=fp8: no such choice",
    "stage.precisions=[fp32]": "stage.precisions=['fp32']: should have 2 values at least, not 1",
    "stage.precisions=[fp32,fp32]": "stage.precisions=[fp32,fp32]: one precision is named twice",
    "precision=mixed": "precision: set for every cell by stage.precisions; set it there",
    "profiler=torch": "profiler=torch with stage=amp: this stage compares times; profile a single training instead",
    "stage.repeats=0": "stage.repeats=0: should be greater than 0",
}


@pytest.mark.parametrize("word", WRONG)
def test_bad_settings_are_named(tmp_path: Path, word: str) -> None:
    assert refused(tmp_path, *SMALL, word).startswith(WRONG[word])


@pytest.mark.wide
def test_the_receipt_has_of_the_data_what_all_seeds_share(place: Path) -> None:
    """It had the first cell's hash alone, as if it were of the data of all."""
    folder = place / "data"
    folder.mkdir()
    words = (
        "stage=amp",
        "dataset=recall",
        "dataset.train=200",
        "dataset.validation=50",
        "dataset.test=50",
        "model=gpt",
    )
    tiny = ("stage.precisions=[bf16,fp32]", "stage.repeats=2", "training.epochs=1", "tracking=none", "model.layers=1")
    result = pipeline(folder, *words, *tiny, "dataset.distance=7", "model.width=16", "model.heads=2")
    assert result.returncode == 0, result.stderr
    found = {(read_config(run)["seed"], run): read_json(run / "receipt.json") for run in runs(folder)}
    cells = {seed: receipt for (seed, run), receipt in found.items() if (run / "artifacts/probe").is_dir()}
    (whole,) = (receipt for (_, run), receipt in found.items() if (run / "artifacts/tables/runs.csv").is_file())
    assert cells[0]["data_sha256"] != cells[1]["data_sha256"]
    assert whole["data_sha256"] == cells[0]["data_sha256"]
    assert whole["held_out"] == {"test": cells[0]["held_out"]["test"]} != cells[0]["held_out"]


@pytest.mark.wide
def test_a_precision_that_diverges_is_shown_beside_the_others(place: Path) -> None:
    """A rate at which fp16 leaves its range in the first steps, and fp32 and fp64 do not."""
    folder = place / "diverges"
    folder.mkdir()
    rate = ["optimizer=sgd", "optimizer.learning_rate=1000"]
    result = pipeline(folder, *SMALL, *rate, "stage.precisions=[fp32,fp64,fp16]", "stage.repeats=1")
    assert result.returncode == 1
    assert "1 of 3 cells have no result: precision=fp16 seed=0" in result.stderr
    assert "became nan at step" in result.stderr or "became inf at step" in result.stderr
    assert "fp32" in result.stdout


# Statistics


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=6))
def test_a_ratio_lies_in_its_interval_and_turns_over(ratios: list[float]) -> None:
    found, other = compare.Ratio.of(ratios), compare.Ratio.of([1 / ratio for ratio in ratios])
    assume(found.low is not None and other.low is not None)  # all the same, but for rounding
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean * (1 + 1e-12)
    assert found.mean <= found.high * (1 + 1e-12)
    assert found.mean * other.mean == pytest.approx(1)
    assert found.gains == other.loses or math.isclose(found.low, 1, rel_tol=1e-9)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=2))
def test_one_or_two_pairs_have_no_interval(ratios: list[float]) -> None:
    """Of two, Student's would be 12.7 deviations wide: 0.00 to 643.55 was one of them."""
    found = compare.Ratio.of(ratios)
    assert (found.low, found.high, found.gains, found.loses) == (None, None, False, False)
    assert found.mean == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert half_width(ratios) is None


@given(st.floats(0.1, 10), st.integers(3, 9))
def test_equal_pairs_have_no_interval(ratio: float, n: int) -> None:
    found = compare.Ratio.of([ratio] * n)
    assert (found.low, found.gains, found.loses) == (None, False, False)
    assert found.no_interval == "the same each time, too little"


def test_an_interval_is_students() -> None:
    """Logs -1, 0, 1: mean 0, deviation 1, t of two degrees of freedom 4.302653."""
    found = compare.Ratio.of([math.exp(-1), 1, math.exp(1)])
    assert found.high is not None
    assert math.log(found.high) == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)


def made_up(folder: Path, precision: str, seed: int, rate: float, accuracy: float, numbers: float) -> Measured:
    """A run that never was, for what the tables make of it."""
    for place in ("probe", "model"):
        (folder / "artifacts" / place).mkdir(parents=True, exist_ok=True)
    arrays = {"0.kernel": np.array([1.0, numbers])}
    for name in ("probe/gradients", "probe/weights", "model/weights"):
        weights.save(folder / "artifacts" / f"{name}.npz", arrays)
    step: dict[str, Any] = {"loss": 1.0, "machine": {"FLOP_per_s": 1e9, "moved_per_s": 1e9, "side": 8}}
    receipt = {
        "precision": {"effective": precision, "observed": {"matrix_products": {"float32": 3}}},
        "device": {"effective": "cpu", "hardware": {"name": "a machine"}},
        "task": {"name": "classification", "unit": "images", "units": 1, "score": "accuracy"},
        "parameters": 100, "peak_memory": {"process_bytes": 2**20}, "wall_time_s": 1.0,
    }  # fmt: skip
    found = (rate_of("images_per_s", rate, "images"), Metric("test/accuracy", accuracy), Metric("test/loss", 1.0))
    metrics = by_name(found)
    return Measured(precision, seed, folder, metrics, receipt, step, units_per_batch=64)


def test_verdicts(tmp_path: Path) -> None:
    rates = {"fp32": (100, 101, 99), "bf16": (200, 203, 197), "fp16": (50, 51, 49), "mixed_bf16": (90, 120, 100)}
    gains = {"fp32": 0.0, "bf16": 0.001, "fp16": -0.2, "mixed_bf16": 0.0}
    noise = (0.0, 0.002, -0.002)
    runs = [
        made_up(tmp_path / f"{name}{seed}", name, seed, rate, 0.9 + gains[name] + noise[seed] * (seed + len(name)), 1.0)
        for name, three in rates.items()
        for seed, rate in enumerate(three)
    ]
    rows = {row.precision: row for row in compare.compare(runs)}
    result = {name: compare.verdict(row, rows["fp32"]) for name, row in rows.items() if name != "fp32"}
    assert result["bf16"].startswith("bf16: faster: 2.00x the speed of fp32 (")
    assert result["fp16"].startswith("fp16: slower: 0.50x the speed of fp32 (")
    assert "test accuracy -0.2000 (n=3, the same each time, too little)" in result["fp16"]
    assert result["mixed_bf16"].startswith("mixed_bf16: no difference in speed shown by 3 pairs of runs (")
    assert "; no difference in test accuracy shown (" in result["mixed_bf16"]
    assert all(row.errors is None for row in rows.values())  # no fp64 run among them


def test_scores_that_are_small_numbers_are_not_written_as_zero(tmp_path: Path) -> None:
    """A mean absolute error of 3.0e-05 was 0.0000, and so was what a precision changed in it."""
    runs = [
        made_up(tmp_path / f"{name}{seed}", name, seed, 100 + seed, score + 1e-6 * seed * len(name), 1.0)
        for name, score in (("fp32", 3e-5), ("mixed_bf16", 4.2e-5))
        for seed in (0, 1, 2)
    ]
    wide, narrow = rows = compare.compare(runs)
    assert compare.verdict(narrow, wide).endswith("; test accuracy higher (+1.8e-05 +-1.5e-05)")
    assert tables.seen(rows).rows[0][-1] == "3.4e-05 (3.0e-05 to 3.8e-05)"
    assert {one.text: one.measured for one in claims.claims(rows, on_cpu=True)}["test accuracy"] == ("+1.8e-05",)


@pytest.mark.parametrize("names", [("fp32", "bf16"), ("fp64", "fp32")])
def test_errors_are_shown_where_there_is_an_fp64_run(names: tuple[str, ...], tmp_path: Path) -> None:
    """Without one the figure was an empty panel, and the table had dashes for no reason that it gave."""
    runs = [made_up(tmp_path / name, name, 0, 100, 0.9, 1 + at) for at, name in enumerate(names)]
    rows = compare.compare(runs)
    path = tmp_path / "speed_against_error.png"
    figures.speed_against_error(path, rows, "a study")
    assert path.exists() is ("fp64" in names)
    begins = "numbers: errors relative to fp64" if "fp64" in names else "numbers: no errors, which are relative to fp64"
    assert tables.numbers(rows).title.startswith(begins)


def test_points_and_coinciding_lines_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fp32's rates of 100 lay on the upper edge; of five losses that are the same only the last was seen."""
    drawn: list[Figure] = []

    def kept(width: float, height: float) -> Figure:
        drawn.append(canvas(width, height))
        return drawn[-1]

    monkeypatch.setattr(figures, "canvas", kept)
    monkeypatch.setattr(Measured, "losses", lambda _: ([1, 2, 3], [3.1, 2.8, 2.6]))
    names = ("fp64", "fp32", "bf16")
    rows = compare.compare([made_up(tmp_path / name, name, 0, 100, 0.9, 1 + at) for at, name in enumerate(names)])
    figures.speed_against_error(tmp_path / "speed.png", rows, "a study")
    assert drawn[0].axes[0].get_ylim()[1] >= 105
    figures.losses(tmp_path / "losses.png", rows, "a study")
    (axes,) = drawn[1].axes
    axes.legend().remove()
    drawn[1].canvas.draw()
    pixels = np.asarray(drawn[1].canvas.buffer_rgba())[..., :3]  # type: ignore[attr-defined]
    for colour in COLOURS[:3]:
        assert (pixels == [int(colour[at : at + 2], 16) for at in (1, 3, 5)]).all(axis=2).sum() > 20
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.yaxis.get_majorticklocs()) >= 2
    assert "10" not in axes.yaxis.get_major_formatter()(2.8, 0)


def test_speeds_beside_other_processes_are_marked_in_their_table(tmp_path: Path) -> None:
    runs = [made_up(tmp_path / name, name, 0, 100, 0.9, 1.0) for name in ("fp32", "bf16")]
    assert "uncertain" not in tables.speed(compare.compare(runs)).title
    for run, share in zip(runs, (0.2, 0.51), strict=True):
        run.receipt["training_rate"] = {"cores_of_others": share}
    assert tables.speed(compare.compare(runs)).title.endswith("; uncertain: other processes had 51% of the cores")


def test_two_pairs_of_runs_are_too_few_wherever_they_are_shown(tmp_path: Path) -> None:
    rates = {"fp32": (100, 100), "mixed_bf16": (50, 200)}
    runs = [
        made_up(tmp_path / f"{name}{seed}", name, seed, rate, 0.9, 1.0)
        for name, two in rates.items()
        for seed, rate in enumerate(two)
    ]
    fp32, mixed = compare.compare(runs)
    assert compare.verdict(mixed, fp32) == (
        "mixed_bf16: 1.00x the speed of fp32 in 2 pairs of runs: too few runs for an interval (stage.repeats=3 gives "
        "one); test accuracy +0.0000 (n=2, too few runs)"
    )
    (row,) = (row for row in tables.speed([fp32, mixed]).rows if row[0] == "mixed_bf16")
    assert row[2] == "1.00 (n=2, too few runs)"
    assert claims.claims([fp32, mixed], on_cpu=True)[-1].measured == ("1.00x, n=2",)


def stepped(run: Measured, seen: float, **product: float) -> Measured:
    """The run with a step that took `seen` times as long under the profiler as it did in the training."""
    shares = {"products": 0.5, "copies": 0.0, "data": None, "optimizer": 0.25, "other": 0.0, "outside": 0.25}
    sizes = {"name": "product", "m": 10, "n": 10, "k": 10, "calls": 1, "seconds": 1e-6, "ceiling_FLOP_per_s": 2e9}
    run.step["step_breakdown"] = {
        "how": "a profiler", "step_s": seen * run.training_step_s, "shares": shares, "products": [sizes | product],
        "longest": [], "tensor_core_share": None,
    }  # fmt: skip
    run.receipt["backend"] = "torch"
    return run


@pytest.mark.parametrize(("seen", "explained"), [(0.5, False), (0.8, True), (1.0, True), (1.4, True), (14.2, False)])
def test_a_page_explains_the_step_that_was_timed_or_says_that_it_could_not(
    tmp_path: Path, seen: float, explained: bool
) -> None:
    runs = [
        stepped(made_up(tmp_path / name, name, 0, rate, 0.9, 1.0), ratio)
        for name, rate, ratio in (("fp32", 100, 1.0), ("bf16", 90, seen))
    ]
    runs[1].step["machine"] = runs[1].step["machine"] | {"FLOP_per_s": 4e9}  # the device is not what holds it back
    fp32, bf16 = compare.compare(runs)
    page = why.page(bf16, fp32)
    assert ("**bf16: the step that was timed could not be explained.** It took 711.11 ms" in page) is not explained
    assert ("(Amdahl)" in page) is explained
    assert ("An optimizer of fewer passes" in page) is explained
    assert ("so the shares advise nothing" in page) is not explained
    assert "**fp32" not in page


@pytest.mark.parametrize("largest", ["products", "optimizer"])
def test_a_page_advises_nothing_where_the_step_of_the_baseline_could_not_be_explained(
    tmp_path: Path, largest: str
) -> None:
    """Neither by the row's shares nor, where none of them is large, by the size of the products."""
    runs = [
        stepped(made_up(tmp_path / name, name, 0, rate, 0.9, 1.0), ratio)
        for name, rate, ratio in (("fp32", 100, 9.0), ("bf16", 90, 1.0))
    ]
    runs[1].step["machine"] = runs[1].step["machine"] | {"FLOP_per_s": 4e9}
    shares = dict.fromkeys(runs[1].step["step_breakdown"]["shares"], 0.0)
    runs[1].step["step_breakdown"]["shares"] = shares | {largest: 1.0}
    fp32, bf16 = compare.compare(runs)
    page = why.page(bf16, fp32)
    assert "**fp32: the step that was timed could not be explained.**" in page
    assert page.partition("## What to try first")[2].splitlines()[2:] == [
        "1. A longer training on an idle machine: the profiler did not see a step as it was timed (above), so the "
        "shares advise nothing."
    ]


def test_a_product_has_no_more_than_all_of_a_bare_ones_rate(tmp_path: Path) -> None:
    """2,000 FLOP in 1 us are 2 GFLOP/s."""
    pages = {}
    for ceiling in (4e9, 2e9, 1.42e9):
        runs = [
            stepped(made_up(tmp_path / name, name, 0, rate, 0.9, 1.0), 1.0, ceiling_FLOP_per_s=ceiling)
            for name, rate in (("fp32", 100), ("bf16", 90))
        ]
        fp32, bf16 = compare.compare(runs)
        pages[ceiling] = why.page(bf16, fp32)
    assert "| 50% |" in pages[4e9]
    assert "| 100% |" in pages[2e9]
    assert "| above it (1.41x) |" in pages[1.42e9]
    assert ["which is then no ceiling" in page for page in pages.values()] == [False, False, True]


@given(st.dictionaries(st.sampled_from(["products", "copies", "data", "optimizer", "other"]), st.floats(0, 9)))
def test_shares_add_up_to_one(parts: dict[str, float]) -> None:
    found = with_rest(parts)
    assert sum(found.values()) == pytest.approx(1)
    assert all(0 <= share <= 1 for share in found.values())
    if sum(parts.values()) <= 1:
        assert {kind: found[kind] for kind in parts} == parts


@given(st.floats(1e-7, 10), st.integers(1, 300))
def test_short_steps_are_watched_in_larger_numbers(step_s: float, at_hand: int) -> None:
    steps = steps_to_watch(step_s, at_hand)
    assert min(10, at_hand) <= steps <= min(64, at_hand)
    assert steps == min(64, at_hand) or steps == min(10, at_hand) or 0.3 - step_s <= steps * step_s <= 0.3


@given(st.integers(1, 5000), st.integers(1, 200), st.floats(1e-6, 1), st.integers(1, 8))
def test_a_window_is_of_whole_batches_in_one_epoch(images: int, batch: int, step_s: float, warm_up: int) -> None:
    batch = min(batch, images)  # larger ones are refused
    skip, steps = window(images, batch, step_s, warm_up)
    each = math.ceil(images / batch)
    assert skip >= warm_up
    assert steps >= 1
    assert all((step % each + 1) * batch <= images for step in range(skip, skip + steps))
    assert skip // each == (skip + steps - 1) // each


def test_sizes_that_miss_the_multiples_of_tensor_cores(tmp_path: Path) -> None:
    run = made_up(tmp_path, "bf16", 0, 1, 1, 1)
    (row,) = compare.compare([run])
    assert why.misses(row, {"n": 10, "k": 9}) == []  # a CPU has no such rule
    run.receipt["device"]["effective"] = "cuda:0"
    assert why.misses(row, {"n": 10, "k": 64}) == ["n=10 (of 8)"]
    assert why.misses(row, {"n": 16, "k": 9}) == ["k=9 (of 8)"]
    assert why.misses(row, {"n": 16, "k": 8}) == []


def test_claims_beside_what_was_measured(tmp_path: Path) -> None:
    runs = [
        made_up(tmp_path / f"{name}{seed}", name, seed, rate + seed, accuracy + seed / 100, 1.0)
        for name, rate, accuracy in (("fp32", 100, 0.9), ("mixed_bf16", 50, 0.95))
        for seed in (0, 1, 2)
    ]
    result = {claim.text: claim.measured for claim in claims.claims(compare.compare(runs), on_cpu=True)}
    assert result == {
        "bytes of the weights": ("1.00x",),  # float32 all the same
        "peak memory": ("1.00x",),
        "numbers moved a second": ("1.00x",),
        "bare products a second": ("1.00x",),
        "training, images/s, medians": ("0.50x",),
        "test accuracy": ("+0.0500",),
        "on a CPU, mixed is slower": ("true",),
    }


def test_a_median_of_one_seed_is_compared_with_the_same_seed(tmp_path: Path) -> None:
    """fp64 has the first seed alone, whose rate was set against the median of three seeds of fp32."""
    rates = {"fp64": (50,), "fp32": (100, 300, 400), "bf16": (200, 300, 400)}
    runs = [
        made_up(tmp_path / f"{name}{seed}", name, seed, rate, 0.9, 1.0)
        for name, each in rates.items()
        for seed, rate in enumerate(each)
    ]
    rows = compare.compare(runs)
    table = tables.claimed(rows, on_cpu=True)
    assert table.columns[2:] == ("fp64 to fp32 (n=1)", "fp32 to bf16")
    (training,) = (row for row in table.rows if row[0] == "training, images/s, medians")
    assert training[2:] == ("2.00x", "1.00x")
    assert tables.speed(rows).title.startswith("speed: medians over seeds (fp64: n=1); the speed-up over fp32")
    assert tables.speed(rows[1:]).title.startswith("speed: medians over seeds; the speed-up over fp32")
    apart = compare.compare([runs[0], *runs[2:4]])  # no seed in common
    assert [row[2] for row in tables.claimed(apart, on_cpu=True).rows[:6]] == ["-"] * 6


def test_one_pair_of_runs_has_a_page_only_where_it_is_slower(tmp_path: Path) -> None:
    rates = {"fp32": 100, "bf16": 200, "mixed": 90}
    rows = compare.compare([made_up(tmp_path / name, name, 0, rate, 0.9, 1.0) for name, rate in rates.items()])
    assert [row.precision for row in rows if explained(row)] == ["mixed"]


def test_advice_begins_with_the_device_and_then_the_largest_share(tmp_path: Path) -> None:
    runs = [made_up(tmp_path / name, name, 0, 100, 0.9, 1.0) for name in ("fp32", "bf16")]
    shares = {"products": 0.2, "copies": 0.3, "data": 0.01, "optimizer": 0.2, "other": 0.1, "outside": 0.19}
    for run in runs:
        run.step["step_breakdown"] = {"shares": shares, "products": [], "step_s": 1.4 * run.training_step_s}
        run.receipt["backend"] = "torch"
    fp32, bf16 = compare.compare(runs)
    result = why.advice(bf16, fp32)
    assert result[0].startswith("Another device: this one multiplies at 1.00x the rate in bf16 that it has in fp32")
    assert [text.rpartition(": ")[2] for text in result[1:]] == ["30%.", "20%.", "19%."]
    assert result[1].startswith("Wider layers, beside whose products copies weigh less.")  # bf16 has no casts


def test_products_beside_other_processes_do_not_condemn_the_device(tmp_path: Path) -> None:
    """With 15 % of the cores a processor with AMX multiplied bfloat16 at 0.76x: "no model can gain from it"."""
    runs = [made_up(tmp_path / name, name, 0, 100, 0.9, 1.0) for name in ("fp32", "bf16")]
    for run, share in zip(runs, (0.01, 0.85), strict=True):
        run.step["step_breakdown"] = {"shares": {}, "products": [], "step_s": 9.0}
        run.step["cores_of_others"] = share
    rows = fp32, bf16 = compare.compare(runs)
    said = "other processes had 85% of the cores"
    assert why.advice(bf16, fp32)[0].startswith(f"Another measurement, on an idle machine: {said}")
    assert tables.claimed(rows, on_cpu=True).title.endswith(f"; numbers moved and bare products are uncertain: {said}")
    for run in runs:
        run.receipt["device"]["effective"] = "cuda:0"  # which the other processes did not use
    assert why.advice(bf16, fp32)[0].startswith("Another device: ")


def test_attention_that_takes_most_of_a_step_is_named(tmp_path: Path) -> None:
    """With 57 % of the step it was counted as products, which the advice called too small to fill the device."""
    runs = [made_up(tmp_path / name, name, 0, 100, 0.9, 1.0) for name in ("fp32", "mixed_bf16")]
    shares = {"products": 0.76, "copies": 0.1, "data": 0.01, "optimizer": 0.03, "other": 0.1, "outside": 0.0}
    name = "_scaled_dot_product_flash_attention_for_cpu_backward"
    for run, share in zip(runs, (0.2, 0.57), strict=True):
        longest = [("mm", 0.15), (name, share)]
        run.step["step_breakdown"] = {
            "shares": shares, "products": [], "step_s": (step_s := run.training_step_s), "how": "a profiler",
            "longest": [{"name": op, "kind": "products", "seconds": part * step_s} for op, part in longest],
            "tensor_core_share": None,
        }  # fmt: skip
        run.receipt["backend"] = "torch"
        run.step["machine"]["FLOP_per_s"] *= 1 + (run.precision == "mixed_bf16")
    fp32, mixed = compare.compare(runs)
    (advised,) = why.advice(mixed, fp32)
    assert advised == (
        f"Shorter sequences: the time of attention grows with their square. `{name}` alone is 57% of the step "
        "(365 ms, 128 ms in fp32); the rate of bare products above is not that of attention."
    )
    assert "Were products (attention among them) free" in why.page(mixed, fp32)


def test_no_tip_is_what_the_run_does_already(tmp_path: Path) -> None:
    for name in ("mixed_bf16", "bf16"):
        run = made_up(tmp_path / name, name, 0, 100, 0.9, 1.0)
        run.receipt["backend"] = "torch"
        first = why.tips(run)
        said = ("compile=true", "compile=true", "loader=memory", "optimizer=sgd", "layers")
        assert all(
            text in first[kind]
            for kind, text in zip(("outside", "other", "data", "optimizer", "copies"), said, strict=True)
        )
        assert ("A precision without casts" in first["copies"]) is (name == "mixed_bf16")
        config = {
            "backend": {"_target_": "pipeline.backends.Torch", "compile": True},
            "loader": {"_target_": "pipeline.loaders.memory.Memory"},
            "optimizer": {"_target_": "pipeline.optimizers.sgd.Sgd", "momentum": 0.0},
        }
        (run.folder / "config.yaml").write_text(yaml.safe_dump(config))
        after = why.tips(run)
        assert after.keys() == first.keys() - {"data"}
        assert not [text for text in after.values() if "compile=" in text or "optimizer=" in text]


def test_the_shipped_study_is_of_row_b1_on_a_third_of_mnist(place: Path) -> None:
    shipped = yaml.safe_load(pipeline(place, "stage=amp", "--cfg", "job").stdout)
    assert shipped["model"]["_target_"] == "pipeline.models.mnist_cnn.MnistCnn"
    assert shipped["dataset"]["_target_"] == "pipeline.datasets.mnist.Mnist"
    assert shipped["dataset"]["train_size"] == 20000
    assert (shipped["training"]["batch_size"], shipped["training"]["epochs"]) == (64, 10)
    assert shipped["stage"]["precisions"] == ["fp64", "fp32", "bf16", "mixed"]
    assert shipped["stage"]["repeats"] == 3
