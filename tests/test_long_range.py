"""dataset=recall, model=gru and model=conv1d, and stage=long_range, which holds three models against each other."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command import TWO_THEN_WIDE, done, pipeline, refused, runs, write_files

from pipeline.datasets.recall import Recall
from pipeline.models import Shapes, weights
from pipeline.models.conv1d import Conv1d
from pipeline.models.gru import Gru
from pipeline.report import long_range
from pipeline.report.canvas import canvas
from pipeline.runs import weights as saved
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_metrics
from pipeline.runs.result import Metric, metrics_of
from pipeline.stages.long_range import Cost, LongRange, Measured, costs, draw, metrics, parameters, recalls
from pipeline.stages.long_range import measured as measured_of

LENGTH, VOCABULARY = 12, 9
SHAPES = Shapes((LENGTH,), (LENGTH, VOCABULARY), vocabulary=VOCABULARY)
TOKENS = torch.from_numpy(np.random.default_rng(0).integers(0, VOCABULARY, (2, LENGTH)))
SMALL = (
    *("stage=long_range", "stage.distances=[3]", "stage.seeds=1", "stage.lengths=[6]", "tracking=none"),
    *("training.steps=4", "training.validate_every=2", "training.log_every_n_steps=1", "dataset.train=256"),
)
TRAINED = ("dataset=recall", "dataset.distance=5", "dataset.train=128", "stage=train", "training.steps=6")
STEPS = ("training.batch_size=16", "training.log_every_n_steps=1", "precision=fp64", "tracking=none")


def net_of(model: Gru | Conv1d) -> Any:
    """With random weights, larger than those of a start, in float64."""
    net = model.torch(SHAPES).double().eval()
    generator = np.random.default_rng(1)
    values = {name: generator.normal(0, 0.4, array.shape) for name, array in weights.from_torch(net).items()}
    weights.to_torch(net, values, "test")
    return net


def test_the_first_symbol_is_asked_for_at_the_end() -> None:
    data = Recall(distance=7, symbols=5, train=200, validation=20, test=30).load(Path(), 0)
    for split in (data.train, data.validation, data.test):
        assert split.x.shape[1:] == data.task.shapes.x == (8,)
        np.testing.assert_array_equal(split.y, split.x[:, 0])
        assert (split.x[:, -1] == 5).all() and split.x[:, :-1].max() == 4
    other = Recall(distance=7, symbols=5, train=200, validation=20, test=30).load(Path(), 1)
    np.testing.assert_array_equal(data.test.x, other.test.x)
    assert (data.train.x != other.train.x).any()


def test_test_sequences_that_are_trained_on_are_noted() -> None:
    """All of them were at a distance of 2, unsaid."""
    (note,) = Recall(distance=2).load(Path(), 0).notes
    assert note == (
        "dataset.distance=2 with dataset.symbols=8: 100% of the test sequences are training sequences too; a longer "
        "distance or more symbols make such sequences rare"
    )
    assert Recall().load(Path(), 0).notes == ()


def test_only_the_last_position_counts() -> None:
    task = Recall(distance=LENGTH - 1).load(Path(), 0).task
    outputs = np.random.default_rng(0).normal(size=(3, LENGTH, VOCABULARY))
    other = outputs.copy()
    other[:, :-1] = 0
    y = outputs[:, -1].argmax(axis=1)
    for one in (outputs, other):
        np.testing.assert_array_equal(task.compared(np, one, y)[0], outputs[:, -1])
        assert task.scores(np, one, y).all()


def test_recurrent_units_follow_their_formulas() -> None:
    """Cho et al., equations 5 to 8, from the weights as they are saved."""
    net = net_of(Gru(layers=1, width=4))
    kept = weights.from_torch(net)
    x_BTU = kept["tokens.embeddings"][TOKENS.numpy()]
    kernel, recurrent, bias = (kept[f"units_0.gru_cell.{name}"] for name in ("kernel", "recurrent_kernel", "bias"))
    state = np.zeros((2, 4))
    for at in range(LENGTH):
        of_x, of_state = x_BTU[:, at] @ kernel + bias[0], state @ recurrent + bias[1]
        z, r = (1 / (1 + np.exp(-(of_x + of_state)[:, cut])) for cut in (slice(0, 4), slice(4, 8)))
        candidate = np.tanh(of_x[:, 8:] + r * of_state[:, 8:])
        state = z * state + (1 - z) * candidate
        with torch.no_grad():
            np.testing.assert_allclose(net(TOKENS)[:, at], state @ kept["logits.kernel"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (Conv1d(layers=2, width=4, kernel_size=3), 5),
        (Conv1d(layers=2, width=4, kernel_size=3, dilation=2), 7),
        (Conv1d(layers=3, width=4, kernel_size=2, dilation=2), 8),
        (Gru(width=4), LENGTH),
    ],
    ids=["plain", "dilated", "doubling", "gru"],
)
def test_a_position_sees_its_receptive_field_and_nothing_later(model: Gru | Conv1d, field: int) -> None:
    net = net_of(model)
    for changed in range(LENGTH):
        other = TOKENS.clone()
        other[:, changed] = (other[:, changed] + 1) % VOCABULARY
        with torch.no_grad():
            differs = ((net(TOKENS) - net(other)).abs().amax((0, 2)) > 1e-12).tolist()
        assert differs == [changed <= at < changed + field for at in range(LENGTH)]


@pytest.mark.wide
@pytest.mark.parametrize("backend", TWO_THEN_WIDE[1:])
@pytest.mark.parametrize("model", ["gru", "conv1d"])
def test_every_step_is_the_same(tmp_path: Path, backend: str, model: str) -> None:
    words = (*TRAINED, *STEPS, f"model={model}", "model.layers=2", "model.width=8")
    one, other = (done(tmp_path, f"backend={name}", *words) for name in ("torch", backend))
    losses = [
        [record.metrics["train/loss"] for record in read_metrics(x) if "train/loss" in record.metrics]
        for x in (one, other)
    ]
    assert len(losses[0]) == 6
    assert losses[0][0] == pytest.approx(np.log(VOCABULARY), rel=0.02)
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=1e-10)
    ours, theirs = (saved.load(x / "artifacts" / "model" / "weights.npz") for x in (one, other))
    assert set(ours) == set(theirs)


@pytest.mark.wide
@pytest.mark.parametrize("backend", TWO_THEN_WIDE)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_recurrent_units_are_trained_in_16_bits(tmp_path: Path, backend: str, precision: str) -> None:
    made = done(tmp_path, f"backend={backend}", *TRAINED, "model=gru", "model.width=8", f"precision={precision}")
    assert read_json(made / "receipt.json")["initial_weights"]["own"] == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long_range")
    result = pipeline(folder, *SMALL, "stage.models.gru=null", "stage.models.attention=null")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "accuracy by distance, 1 seed" in result.stdout
    (found,) = [run for run in runs(folder) if (run / "cells").exists()]
    return found


def test_a_model_leaves_what_it_recalls_and_what_it_costs(run: Path) -> None:
    check(run, ("convolution",), 1)


@pytest.mark.wide
def test_jax_compares_models_too(tmp_path: Path) -> None:
    result = pipeline(tmp_path, *SMALL, "backend=jax", "stage.models.convolution=null", "stage.models.attention=null")
    assert result.returncode == 0, result.stderr
    (run,) = [run for run in runs(tmp_path) if (run / "cells").exists()]
    check(run, ("gru",), 1)


OWN = """
from typing import ClassVar

from pipeline.contracts import Dataset
from pipeline.datasets.recall import Recall
from pipeline.spec import spec

@spec
class Mine(Dataset):
    task: ClassVar = Recall.task
    distance: int = 4
    train: int = 64

    def load(self, root, seed):
        return Recall(distance=self.distance, train=self.train, validation=8, test=8).load(root, seed)
"""


@pytest.mark.wide
def test_of_data_of_the_users_no_guess_is_shown(tmp_path: Path) -> None:
    """It was of `dataset.symbols`, which they lacked: a traceback when all was trained."""
    write_files(tmp_path, {"own_recall.py": OWN, "conf/dataset/mine.yaml": "_target_: own_recall.Mine\ndistance: 4\n"})
    words = (*SMALL[:-1], "dataset=mine", "stage.models.gru=null", "stage.models.attention=null")
    known = {"PIPELINE_MODULES": "own_recall", "PYTHONPATH": str(tmp_path)}
    result = pipeline(tmp_path, *words, "stage.timed='training.batch_size=8'", "--config-dir=conf", **known)
    assert result.returncode == 0, result.stderr
    assert "parameters" in result.stdout and "guess" not in result.stdout
    (run,) = [run for run in runs(tmp_path) if (run / "cells").exists()]
    assert (run / "artifacts" / "figures" / "long_range.png").stat().st_size > 5000


@pytest.mark.wide
def test_models_are_held_against_each_other(tmp_path: Path) -> None:
    two = (word.replace("stage.seeds=1", "stage.seeds=2") for word in SMALL)
    done_below = pipeline(tmp_path, *two)
    assert done_below.returncode == 0, done_below.stderr
    assert "accuracy by distance, median of 2 seeds" in done_below.stdout
    (run,) = [run for run in runs(tmp_path) if (run / "cells").exists()]
    check(run, ("gru", "convolution", "attention"), 2)


def check(run: Path, models: tuple[str, ...], seeds: int) -> None:
    """What a run with one distance and one length has left."""
    with (run / "artifacts" / "tables" / "long_range.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = metrics_of(run)
    assert found["models"].value == len(models)
    for model in models:
        own = [row for row in rows if row["model"] == model]
        assert [row["length"] for row in own] == ["4"] * seeds + ["6"]
        recalled = [float(row["accuracy"]) for row in own[:seeds]]
        assert found[f"{model}/accuracy_3"].value == np.median(recalled)
        cost = {key: float(own[-1][key]) for key in ("sequence_s", "least_s", "most_s", "peak_bytes")}
        assert found[f"{model}/sequence_s_6"].value == cost["sequence_s"]
        assert 0 < cost["least_s"] <= cost["sequence_s"] <= cost["most_s"]
        assert found[f"{model}/peak_bytes_6"].value == cost["peak_bytes"] > 1e8
    assert (run / "artifacts" / "figures" / "long_range.png").stat().st_size > 5000
    cells = [read_json(one / "receipt.json") for one in runs(run.parents[1]) if one != run]
    assert len(cells) == len(models) * (seeds + 1)
    assert len({cell["data_sha256"] for cell in cells}) == seeds + 1  # every seed's, and that of the length


def measured() -> list[Measured]:
    return [
        Measured(
            "one",
            {4: [1.0, 0.95, 1.0], 16: [0.2, 0.95, 0.97], 64: [0.1, 0.2, 0.3]},
            {64: Cost(2e-3, 1e-3, 3e-3, 2, 2**20, of_device=False)},
            (9,),
        ),
        Measured("other", {4: [0.5], 16: [1.0], 64: []}, {}, (7, 8)),
        Measured("none", {4: [1.0], 16: [], 64: [1.0]}, {}, ()),
    ]


def test_the_reach_is_the_longest_distance_before_the_first_that_fails() -> None:
    assert [one.reach for one in measured()] == [16, 0, None]  # of the last nobody knows
    found = {metric.name: metric.value for metric in metrics(measured())}
    assert found["models"] == 3 and "none/reach" not in found
    assert found[LongRange.headline] == 1.0  # of the best model at the longest distance
    assert parameters(measured()) == (("parameters", "one 9, other 7 to 8"),)
    assert (found["one/accuracy_16"], found["one/reach"], found["one/sequence_s_64"]) == (0.95, 16, 2e-3)


def test_tables_show_the_spread_and_leave_open_what_did_not_run() -> None:
    stage = LongRange(models={"one": "", "other": "", "none": ""}, distances=(16, 4, 64), lengths=(64,))
    table = recalls(measured(), stage)
    assert table.columns == ("model", "4", "16", "64", "reach")
    assert table.rows[0] == ("one", "1.000", "0.950", "0.200", "16")
    assert table.rows[1] == ("", "0.95-1.00", "0.20-0.97", "0.10-0.30", "")
    assert table.rows[2] == ("other", "0.500 (n=1)", "1.000 (n=1)", "no result", "0")
    assert table.rows[3] == ("none", "1.000 (n=1)", "no result", "1.000 (n=1)", "no result")
    assert costs(measured(), stage).rows == (("one", "2.00 ms, 1 MiB"), ("other", ""), ("none", ""))


def test_a_seed_without_a_result_counts_as_not_recalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of which two seeds in three had diverged reached as far as the third. What cannot run here counts not."""
    write_files(tmp_path, {"receipt.json": '{"parameters": 1}'})

    def entry(distance: int, accuracy: float | None, state: str = "done") -> Any:
        swept = {"measures": "recall", "model": "m", "distance": str(distance)}
        found = {} if accuracy is None else {"test/accuracy": Metric("test/accuracy", accuracy)}
        return SimpleNamespace(cell=SimpleNamespace(swept=swept), state=state, run=tmp_path, metrics=found)

    lost = (entry(16, None, "failed"), entry(16, None, "failed"), entry(4, None, "skipped"))
    one = measured_of("m", [entry(4, 1.0), entry(16, 0.95), *lost])
    assert one.reach == 4
    found = {metric.name: metric.value for metric in metrics([one])}
    assert (found[LongRange.headline], found["m/accuracy_16"], found["m/accuracy_4"]) == (0, 0, 1.0)
    table = recalls([one], LongRange(models={"m": ""}, distances=(4, 16)))
    assert table.rows == (("m", "1.000 (n=1)", "0.000 (n=1)", "4"), ("", "1.00-1.00", "0.00-0.95", ""))
    assert "; one without a result counts as 0; reach" in table.title
    drawn: list[Any] = []
    monkeypatch.setattr(long_range, "figure", lambda *given, **more: drawn.extend((given[1], more["title"])))
    draw(tmp_path / "drawn.png", [one], 0.1, "a title")
    assert drawn[0] == {"m": {4: [1.0], 16: [0.95, 0.0, 0.0]}}
    assert drawn[1].startswith("a title\nwhat is recalled over a distance (3 seeds) and what a length costs; bars: ")


def test_points_that_coincide_are_seen_in_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marks of one model hid those of another; the times' axis had the label 1 alone."""
    drawn = canvas(12, 3.6)
    monkeypatch.setattr(long_range, "canvas", lambda *_: drawn)
    names = ("gru", "convolution", "attention")
    recalled = {name: {4: [1.0], 16: [1.0]} for name in names}
    times = {name: {64: (0.9e-3, 0.8e-3, 1.3e-3)} for name in names}
    peaks = {name: {64: 100.0} for name in names}
    long_range.figure(tmp_path / "one.png", recalled, times, peaks, whose="process", guess=0.5, title="a study")
    assert len(drawn.axes) == 3
    for axes in drawn.axes:
        lines = [line for line in axes.get_lines() if line.get_fillstyle() == "none"]
        sizes = [line.get_markersize() for line in lines]
        assert len(sizes) == 3 and sizes == sorted(set(sizes), reverse=True)
    low, high = drawn.axes[1].get_ylim()
    assert sum(low <= tick <= high for tick in drawn.axes[1].yaxis.get_majorticklocs()) >= 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stage.distances=[]",), "distances=[]: give at least one, each once"),
        pytest.param(
            ("stage.lengths=[64,64]",), "lengths=[64, 64]: give at least one, each once", marks=pytest.mark.wide
        ),
        pytest.param(("stage.lengths=[1]",), "stage.lengths", marks=pytest.mark.wide),
        (
            ("dataset.distance=9",),
            "dataset.distance: set for every cell by stage.models, stage.distances and stage.lengths; set it there",
        ),
        (("model=gru",), "model: set for every cell by stage.models"),
        (("model=cnn",), "model: set for every cell by stage.models"),  # which takes no tokens: no other would do
        (
            ("optimizer.learning_rate=0.1",),
            "optimizer.learning_rate: set for every cell by stage.models, stage.distances and stage.lengths; set it ",
        ),
        (("+stage.models.wide='model=gru model.width=0'",), "model.width=0: should be greater than 0 (cell 46: "),
        pytest.param(("+stage.models.wide='model=gur'",), "stage.models.wide='model=gur'", marks=pytest.mark.wide),
        (
            ("stage.models.gru='model=gru dataset.symbols=2'",),
            "stage.models.gru: dataset.symbols=2: all models have the same data; set it for the stage",
        ),
        (
            ("stage.models.gru='model=gru +dataset.symbols=2'",),
            "stage.models.gru: +dataset.symbols=2: all ",
        ),
        (("model=fnn",), "model: set for every cell by stage.models, "),  # model=gpt, said before, is refused as well
        (("dataset=moby_dick",), "its task is LanguageModelling, not Recall"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused(tmp_path, "stage=long_range", *words)


def test_images_and_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="takes tokens, and the examples of this dataset have shape"):
        Gru().torch(Shapes((8, 8, 1), (10,)))
    assert "it takes tokens" in refused(tmp_path, "model=conv1d", "dataset=digits")


@pytest.mark.parametrize("accuracies", [{}, {4: []}, {4: [0.5, 1.0]}])
@pytest.mark.parametrize("timed", [False, True])
def test_a_figure_of_what_there_is(accuracies: dict[int, list[float]], timed: bool, tmp_path: Path) -> None:
    """Where every training of a kind had failed, the figure lost the results of the others."""
    found = Measured("one", accuracies, {64: Cost(0.002, 0.001, 0.003, 3, 2**20, False)} if timed else {}, (1,))
    draw(tmp_path / "drawn.png", [found], 0.1, "a title")
    assert (tmp_path / "drawn.png").stat().st_size > 5000
