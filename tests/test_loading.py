"""stage=loading: wrong batches found out, settings varied and combined, and what a run leaves."""

from __future__ import annotations

import csv
import itertools
import json
import re
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import own_loaders
import psutil
import pytest
from command import done, failed, pipeline, refused
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pipeline.backends.shared import load_bench, load_process, load_settings
from pipeline.backends.shared.load_bench import Bench, Found, Sample, Source, dropped, in_memory
from pipeline.backends.shared.load_process import source_of
from pipeline.backends.shared.load_settings import Asked, Setting, Settings
from pipeline.backends.torch.loading import Feed
from pipeline.contracts import Loader
from pipeline.datasets import Data, Split
from pipeline.datasets.digits import Digits
from pipeline.datasets.pictures import Pictures
from pipeline.errors import Impossible, UserError
from pipeline.machine import installed
from pipeline.machine.device import Device
from pipeline.runs.result import Metric, Result, read_result
from pipeline.spec import build_as
from pipeline.stages.loading import figures, limit, tables
from pipeline.stages.loading.bench import Bench as StageBench
from pipeline.stages.loading.bench import Job
from pipeline.stages.loading.best import Gain, best, gain
from pipeline.stages.loading.sources import Stored, stored
from pipeline.stages.loading.stage import SOURCES, Loading
from pipeline.tasks.classification import Classification

NOTHING: Any = SimpleNamespace(device=Device())
EXAMPLES, SHAPE = 100, (6, 5, 3)
ASKED = Asked(
    batch_sizes=(32, 8),
    workers=(0, 2),
    prefetch=(3,),
    pinned=True,
    cache=True,
    resident=True,
    every=False,
    on_gpu=False,
)
QUICK = (
    "stage=loading",
    "dataset=digits",
    "tracking=none",
    "stage.examples=192",
    "stage.batch_sizes=[64]",
    "stage.workers=[0,1]",
    "stage.prefetch=[4]",
    "stage.mapped_mb=2",
    "stage.rounds=2",
    "stage.finals=2",
    "stage.seconds=0.001",
    "stage.step_ms=0.5",
)


@pytest.fixture
def data() -> Data:
    """Images of noise: no two are the same."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (EXAMPLES + 20, *SHAPE), np.uint8)
    split = Split(x, generator.integers(0, 10, len(x)))
    return Data(split, split, split, Classification(SHAPE, tuple("0123456789")), "", scale=255.0)


def lain(data: Data, name: str, root: Path, mapped_bytes: int = 50_000) -> Source:
    """The examples of a source, as its process has them."""
    found = stored(name, data, EXAMPLES, mapped_bytes, root)
    job = found.plain() | {"classes": "0123456789", "scale": 255.0, "normalisation": None, "seed": 3}
    return source_of(job, found.x, found.y)


@pytest.mark.parametrize("name", ["memory", "files", "mapped"])
def test_what_torch_is_fed_is_right(name: str, data: Data, tmp_path: Path) -> None:
    source = lain(data, name, tmp_path)
    assert len(source.data.train) == {"memory": 100, "files": 100, "mapped": 556}[name]
    settings = ASKED.of("torch", name)
    bench = Bench(Feed("cpu"), source, 0.001, 0.0001)
    assert len(list(bench.measure(settings, rounds=1, finals=1))) == 2
    assert [one.fault for one in bench.found.values()] == [None] * len(bench.found)
    assert ("memory batch=32" in bench.found) == (name == "memory")
    for found in bench.found.values():
        size = found.setting.batch_size
        assert found.batches == (EXAMPLES // size if name == "mapped" else 2 * -(-EXAMPLES // size))
        for sample in (*found.samples, *found.final):
            assert sample.images % (EXAMPLES // size * size if name == "mapped" else EXAMPLES) == 0 < sample.images
            assert sample.first_s > 0 < sample.seconds and 0 < sample.waits < 1
            assert (sample.before is not None) == (sample.after is not None) == (name == "mapped")
    assert bench.found[settings.plainest.name].final
    parts = Feed("cpu").parts(source, 32)
    assert all(parts[part] > 0 for part in ("read", "scale", "batch"))


@pytest.mark.wide
def test_more_workers_than_cores_are_noted(tmp_path: Path) -> None:
    """As a training with so many notes it."""
    quick = [word for word in QUICK if not word.startswith("stage.workers")]
    run = done(
        tmp_path, *quick, "stage.frameworks=[torch]", "stage.sources=[memory]", "stage.workers=[0,2]", "stage.cores=1"
    )
    found = read_result(run)
    assert found is not None
    said = "stage.workers=2: this process may use 1 core; more workers than cores take time to start and memory, and "
    assert [note for note in found.notes if note.startswith("stage.workers")] == [f"{said}seldom gain"]


PLANTED: dict[type[Loader], str] = {
    own_loaders.Short: "epoch 1 ends after 3 of its 4 batches",
    own_loaders.Long: "epoch 1 has more than its 4 batches",
    own_loaders.Dropping: "epoch 1, batch 1: x is (31, 6, 5, 3) float32, not (32, 6, 5, 3) float32",
    own_loaders.Doubling: "epoch 1, batch 2: x of 1 of 32 examples differs from NumPy's, first that of example 4, ",
    own_loaders.Scaled: "epoch 1, batch 1: x of 32 of 32 examples differs from NumPy's, first that of example 1, ",
    own_loaders.Wide: "epoch 1, batch 1: x is (32, 6, 5, 3) float64, not (32, 6, 5, 3) float32",
    own_loaders.Mislabelled: "epoch 1, batch 1: y of ",
    own_loaders.Stale: "epoch 2, batch 1: x of ",
    own_loaders.Tiring: "when it was timed: epoch 3 has 99 images, not 100",
    own_loaders.Forgetful: "when it was timed: epoch 3, last batch: x of 4 of 4 examples differs",
    own_loaders.Failing: "raised OSError: OSError: a.png: no such file",
}


def planted(monkeypatch: pytest.MonkeyPatch, kind: type[Loader], data: Data, root: Path, rounds: int = 2) -> Found:
    """A loader in the place of one of ours, measured."""
    monkeypatch.setitem(load_settings.LOADERS, "own", kind)
    bench = Bench(own_loaders.Feed(), lain(data, "memory", root), 0.05, 0.0001)
    for _ in bench.measure(Settings(Setting("own", 32), {}), rounds, rounds):
        pass
    (found,) = bench.found.values()
    return found


def test_a_loader_that_is_right_is_timed(monkeypatch: pytest.MonkeyPatch, data: Data, tmp_path: Path) -> None:
    found = planted(monkeypatch, own_loaders.Own, data, tmp_path)
    assert (found.fault, found.batches, len(found.samples), len(found.final)) == (None, 8, 2, 2)
    assert all(sample.seconds >= 0.05 for sample in found.samples)


@pytest.mark.parametrize(("kind", "said"), PLANTED.items(), ids=[kind.__name__ for kind in PLANTED])
def test_a_loader_that_is_wrong_has_no_times(
    kind: type[Loader], said: str, monkeypatch: pytest.MonkeyPatch, data: Data, tmp_path: Path
) -> None:
    found = planted(monkeypatch, kind, data, tmp_path)
    assert str(found.fault).startswith(said), found.fault
    assert (found.samples, found.final) == ([], [])


def test_times_are_kept_where_taking_apart_fails(monkeypatch: pytest.MonkeyPatch, data: Data, tmp_path: Path) -> None:
    def failing(*_: Any) -> Any:
        raise OSError("no parts")

    monkeypatch.setattr(Feed, "parts", failing)
    split = data.train
    lies = Stored("memory", split.x[:EXAMPLES], split.y[:EXAMPLES], EXAMPLES)
    job = Job(data=data, asked=ASKED, seed=3, rounds=1, finals=1, seconds=0.001, step_s=0.0001, place="cpu", cores=1)
    np.savez(tmp_path / "data.npz", x=lies.x, y=lies.y)
    plain = StageBench(job, {}, NOTHING)._plain(lies, "torch")
    (tmp_path / "job.json").write_text(json.dumps(plain))
    with pytest.raises(OSError, match="no parts"):
        load_process.main(tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["found"]) >= 7 and found["parts"] == []
    assert all(one["samples"] for one in found["found"][:7])


def test_a_slow_loader_makes_steps_wait(monkeypatch: pytest.MonkeyPatch, data: Data, tmp_path: Path) -> None:
    now = [0.0]  # nothing takes time but what sleeps
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(load_bench, "time", clock)
    monkeypatch.setattr(own_loaders, "time", clock)
    monkeypatch.setitem(load_settings.LOADERS, "own", own_loaders.Slow)
    step_s = own_loaders.BATCH_S / 3
    bench = Bench(own_loaders.Feed(), lain(data, "memory", tmp_path), 0.001, step_s * load_bench.STEP_OF / 32)
    sample = bench.sample(Setting("own", 32))
    assert sample.first_s == pytest.approx(own_loaders.BATCH_S)
    assert sample.rate == pytest.approx(EXAMPLES / (4 * own_loaders.BATCH_S))
    assert sample.waits == pytest.approx(0.75)


def test_settings_change_one_thing_at_a_time() -> None:
    names = [one.name for one in ASKED.of("torch", "memory").varied()]
    assert names == [
        "dataloader workers=0 batch=32",
        "dataloader workers=0 batch=8",
        "dataloader workers=2 batch=32",
        "dataloader workers=2 prefetch_factor=3 batch=32",
        "threads workers=1 batch=32",
        "threads workers=2 batch=32",
        "memory batch=32",
    ]
    settings = ASKED.of("tensorflow", "files")
    assert settings.varied()[3].name == "tfdata map_calls=auto cache=false prefetch=0 batch=32"
    assert settings.varied()[-1].name == "threads workers=2 batch=32"
    assert [one.keys["cache"] for one in settings.varied() if one.loader == "tfdata"].count(True) == 1
    assert not any(one.keys.get("cache") for one in ASKED.of("tensorflow", "mapped").varied())
    for one in (*ASKED.of("torch", "memory").varied(), *settings.varied()):
        one.build()
    assert settings.plainest.overrides == (
        "loader=tfdata loader.map_calls=1 loader.cache=false loader.prefetch=0 training.batch_size=32"
    )
    assert Settings.read(json.loads(json.dumps(settings.plain()))).varied() == settings.varied()


def test_every_combination_is_tried_on_request() -> None:
    asked = Asked(**{**vars(ASKED), "every": True, "on_gpu": True})
    found = asked.of("torch", "files").varied()
    assert len(found) == 2 * 3 * 2 + 2  # sizes, workers and prefetch, pinned; threads
    assert found[0] == Setting("dataloader", 32, {"workers": 0})
    assert Setting("dataloader", 8, {"workers": 2, "prefetch_factor": 3, "pin_memory": True}) in found


def test_the_best_changes_are_combined() -> None:
    settings = ASKED.of("tensorflow", "memory")
    rates = {one.name: 100.0 for one in settings.varied()}
    base = settings.plainest
    assert settings.combined(rates) == base
    for change, rate in (({"cache": True}, 300.0), ({"prefetch": "auto"}, 101.0), ({"batch_size": 8}, 50.0)):
        rates[base.changed(change).name] = rate
    assert settings.combined(rates) == base.changed({"cache": True, "prefetch": "auto"})
    del rates[base.changed({"cache": True}).name]  # wrong, so that it has no times
    assert settings.combined(rates) == base.changed({"prefetch": "auto"})


def timed(name: str, *rates: float) -> Found:
    """A setting with final samples of so many images a second."""
    return Found(Setting(name, 1), final=[Sample(0, 1000, 1000 / rate, 0, 1) for rate in rates])


def test_a_gain_is_of_ranges_that_lie_apart() -> None:
    plain = timed("plain", 90, 95, 100, 105, 110)
    clear = gain([plain, timed("fast", 180, 190, 200, 210, 220)])
    assert clear is not None and clear.distinguishable
    assert (clear.value, clear.low, clear.high) == pytest.approx((2, 180 / 110, 220 / 90))
    unclear = gain([plain, timed("fast", 105, 110, 120, 125, 130)])
    assert str(unclear).startswith("not distinguishable: 1.20 (0.95 to 1.44)")
    assert gain([plain, timed("slow", 50)]) is None
    few = gain([plain, timed("fast", 180, 190, 200, 210)])
    assert few is not None and not few.distinguishable
    assert str(few) == "too few rounds: 1.95 (1.64 to 2.33)"
    assert best([plain, timed("none")]) is plain
    assert str(Gain(2, 1.5, 2.5, 5)) == "2.00 (1.50 to 2.50)"


def test_a_best_setting_that_is_not_clearly_faster_says_so() -> None:
    """In the table, and in the row from which it is taken to a training."""
    plain, fast = timed("memory", 9000, 9500, 10_000, 10_500, 11_000), timed("threads", *5 * [12_000])
    unclear = timed("threads", 10_500, 11_000, 12_000, 12_500, 13_000)
    for other, verdict, row in (
        (fast, "1.20 (1.09 to 1.33)", ""),
        (unclear, "not distinguishable:\n1.20 (0.95 to 1.44)", " (gain: not distinguishable)"),
        (plain, "the plainest\nis the fastest", ""),
    ):
        bench: Any = SimpleNamespace(found={("memory", "torch"): [plain, other] if other is not plain else [plain]})
        (cells,) = tables.of_best(bench).rows
        assert cells[-3:] == ("10", verdict, "5")
        ((_, said),) = tables.to_train(bench)
        assert said == f"backend=torch loader={other.setting.loader} training.batch_size=1{row}"


def test_those_of_the_best_values_are_counted_by_themselves() -> None:
    """Which they are, time decides: the metric, which a rebuilt study compares, is of the others."""
    varied = Found(Setting("memory", 1), batches=3, samples=timed("", 10).final, final=timed("", 10).final)
    combined, wrong = timed("threads", 20), Found(Setting("tfdata", 1), fault="1 of 2 labels differ")
    combined.batches = 4
    for found, said, verified in (
        ([varied], "1 of 1 settings, to the bit, before they were timed: 3 batches", 1),
        ([varied, wrong], "1 of 2 settings, to the bit, before they were timed: 3 batches", 1),
        (
            [varied, combined],
            "1 of 1 settings, and 1 of the best values together, to the bit, before they were timed: 7 batches",
            1,
        ),
    ):
        bench = StageBench(SimpleNamespace(step_s=0.01, cores=2), {}, NOTHING)  # type: ignore[arg-type]
        bench.found, bench.parts = {("memory", "torch"): found}, {("memory", "torch"): []}
        assert dict(tables.summary(bench, []))["verified"] == said
        assert {one.name: one.value for one in tables.metrics(bench)}["verified"] == verified


def test_a_part_that_is_lost_among_the_differences_of_passes_has_no_share() -> None:
    """On a busy machine batching "took" -159.2 (-76 %) of a pipeline of tf.data."""
    bench: Any = SimpleNamespace(job=SimpleNamespace(rounds=1), sources={"files": SimpleNamespace(examples=1)})
    bench.parts = {("files", "tensorflow"): [{}, {}]}
    bench.parts_of = lambda _: {"read": 3e-6, "scale": 2e-6, "batch": -1e-6, tables.REST: -2e-6}
    (row,) = tables.of_parts(bench).rows
    assert row[2:] == ("3.0 (150 %)", "", "2.0 (100 %)", "-1.0 (uncertain)", "", "-2.0 (-100 %)", "2.0")


def test_the_best_rate_is_of_what_was_timed_again() -> None:
    """The highest of many settings that were each looked at once was shown, beside a table that had half of it."""
    fastest = Found(Setting("memory", 1), batches=3, samples=timed("", 300).final, final=timed("", 150).final)
    second = Found(Setting("threads", 1), batches=3, samples=timed("", 290).final)
    bench = StageBench(SimpleNamespace(step_s=0.01, cores=2), {}, NOTHING)  # type: ignore[arg-type]
    for found, rate in (([fastest, second], 150), ([second], 290)):
        bench.found = {("memory", "torch"): found}
        assert {one.name: one.value for one in tables.metrics(bench)}["best_rate"] == pytest.approx(rate)


@pytest.mark.parametrize("rates", [(20_000, 35_000, 60_000), (3000, 60_000, 9_000_000)])
def test_the_figure_names_every_framework_and_rates_that_can_be_read(
    rates: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A framework without times from the first source was in no legend, and labels of rates lay on each other."""
    drawn: list[Any] = []
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, _: drawn.append(self.figure))
    bench = StageBench(SimpleNamespace(step_s=0.01, cores=2), {}, NOTHING)  # type: ignore[arg-type]
    bench.limit = limit.Copied((1e9,), 2, None)
    for source, framework in (("memory", "tensorflow"), ("files", "torch"), ("files", "tensorflow")):
        bench.sources[source] = Stored(source, np.zeros((4, *SHAPE), np.uint8), np.zeros(4), 4)
        bench.found[source, framework] = [timed("threads", *rates)]
    figures.draw(tmp_path / "loading.png", bench)
    (figure,) = drawn
    figure.canvas.draw()
    said = figure.get_suptitle()  # of how many samples, and where, was in no figure
    assert said.startswith("the loader's settings on ")
    assert said.endswith("2 cores\nmedians of 3 samples, with their ranges")
    assert [one.get_text() for one in figure.legends[0].texts] == ["torch", "tensorflow", "copying large arrays"]
    (title,) = figure.texts  # nor may the legend lie on it
    assert not title.get_window_extent().overlaps(figure.legends[0].get_window_extent())
    for axes in figure.axes:
        low, high = axes.get_xlim()
        places = zip(axes.xaxis.get_majorticklocs(), axes.xaxis.get_ticklabels(), strict=True)
        labels = [one for place, one in places if low <= place <= high]
        assert all(re.fullmatch(r"[\d,]+", one.get_text()) for one in labels)
        shown = [one.get_window_extent() for one in labels]
        assert len(shown) > 1 and all(one.x1 < other.x0 for one, other in itertools.pairwise(shown))
        assert not any(one.get_text() for one in axes.xaxis.get_minorticklabels())


def test_a_mapped_file_is_dropped_from_memory(tmp_path: Path) -> None:
    mounts = sorted(psutil.disk_partitions(all=True), key=lambda one: len(one.mountpoint))
    held = [one.fstype for one in mounts if tmp_path.is_relative_to(one.mountpoint)][-1]
    if held in ("tmpfs", "ramfs"):
        pytest.skip("a disk that is memory")
    x = np.random.default_rng(0).integers(0, 256, (64, 1 << 16), np.uint8)
    split = Split(x, np.zeros(64, np.int64))
    data = Data(split, split, split, Classification(x.shape[1:], ("0",)), "")
    source = lain(data, "mapped", tmp_path, 1)
    mapped: Any = source.data.train.x
    assert np.array_equal(mapped, x[:64])
    assert source.file is not None
    assert in_memory(source.file) == 1
    assert dropped(source.file, mapped) < 0.1
    assert mapped[5].sum() == x[5].sum()
    assert in_memory(source.file) > 0


@pytest.mark.parametrize("content", [b"", b"no array", None])
def test_another_mapped_file_is_named(content: bytes | None, data: Data, tmp_path: Path) -> None:
    path = tmp_path / "mapped.npy"
    np.save(path, np.zeros((3, 2), np.int64))
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as error:
        load_process.mapped(path, data.train.x)
    assert f"{path}: holds other examples (" in str(error.value) and str(error.value).endswith("; delete it")


def test_files_are_made_once_and_read_back(data: Data, tmp_path: Path) -> None:
    first = stored("files", data, EXAMPLES, 0, tmp_path)
    made = {path: path.stat().st_mtime_ns for path in first.files}
    assert len(made) == EXAMPLES and sum(path.stat().st_size for path in made) == first.bytes
    assert stored("files", data, EXAMPLES, 0, tmp_path).files == first.files
    assert all(path.stat().st_mtime_ns == before for path, before in made.items())
    pictures = Pictures(first.files, SHAPE)
    assert np.array_equal(pictures[np.array([7, 2])], data.train.x[[7, 2]])
    assert {int(path.parent.name) for path in made} == set(data.train.y[:EXAMPLES].tolist())
    assert not list(tmp_path.rglob(".making-*"))


@pytest.mark.parametrize("how", ["cut off", "another", "gone", "of another size"])
def test_a_damaged_picture_is_named(how: str, data: Data, tmp_path: Path) -> None:
    from PIL import Image

    first: Stored = stored("files", data, EXAMPLES, 0, tmp_path)
    path, other = first.files[41], first.files[42]
    match how:
        case "cut off":
            path.write_bytes(path.read_bytes()[:60])
        case "another":
            path.write_bytes(other.read_bytes())
        case "gone":
            path.unlink()
        case _:
            Image.new("RGB", (3, 3)).save(path)
    with pytest.raises(UserError) as error:
        stored("files", data, EXAMPLES, 0, tmp_path)
    said = str(error.value)
    assert said.startswith(f"stage.sources=files: {path}: ")
    assert said.endswith(f"; delete {path.parents[1]} and it will be made again")


def test_the_limit_is_what_memory_copies() -> None:
    found = limit.copied(1)
    assert limit.moved_bytes(np.zeros((9, 28, 28, 1), np.uint8)) == 784 + 4 * 784
    assert len(found.bytes_per_s) == limit.COPIES and found.threads == 1
    assert min(found.bytes_per_s) > 0 and 1e8 < max(found.bytes_per_s) < 1e13  # other processes may slow down any
    assert found.images_per_s(np.zeros((1, 10), np.uint8)) == max(found.bytes_per_s) / 50


REFUSED = {
    "stage.rounds=0: should be greater than 0": {"rounds": 0},
    "stage.finals=0: should be greater than 0": {"finals": 0},
    "stage.batch_sizes.1=0: should be greater than 0": {"batch_sizes": (32, 0)},
    "stage.batch_sizes=[]: name one at least": {"batch_sizes": ()},
    "stage.workers.0=-1: should be greater than or equal to 0": {"workers": (-1,)},
    "stage.seconds=0.0: should be greater than 0": {"seconds": 0.0},
    "stage.examples=0: should be greater than 0": {"examples": 0},
    "stage.mapped_mb=0: should be greater than 0": {"mapped_mb": 0},
    "stage.frameworks=jax: no such choice; choose from tensorflow, torch": {"frameworks": ("jax",)},
    "stage.frameworks=[]: name one at least": {"frameworks": ()},
    "stage.sources=[files,files]: files is named twice": {"sources": ("files", "files")},
    "stage.sources=disk: no such choice; choose from files, mapped, memory": {"sources": ("disk",)},
    "stage.cores=100000: this process may use ": {"cores": 100000},
}


@pytest.mark.parametrize(("said", "fields"), list(REFUSED.items()), ids=REFUSED)
def test_settings_that_make_no_sense_are_refused(said: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        build_as(Loading, fields, "stage")
    assert str(error.value).startswith(said)


def test_what_cannot_be_measured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = build_as(Loading, {}, "stage")
    for key, why in (("backend", "stage.frameworks names them"), ("training.batch_size", "nothing is trained")):
        with pytest.raises(UserError, match=f"{key} with stage=loading: {why}; leave it out"):
            loading.check_keys(NOTHING, ["dataset", key])
    there = installed.is_installed
    monkeypatch.setattr(installed, "is_installed", lambda name: name != "tensorflow" and there(name))
    with pytest.raises(Impossible) as error:
        loading.check(NOTHING)
    said = str(error.value)
    assert said.startswith("stage.frameworks=tensorflow: tensorflow is not installed; ")
    assert said.endswith("; or choose stage.frameworks=[torch]")
    monkeypatch.undo()


def test_samples_that_no_process_has_the_time_for_are_refused() -> None:
    """They ran for half an hour, and nothing was timed to its end."""
    asked: Any = SimpleNamespace(device=Device())
    one: dict[str, Any] = {"frameworks": ("torch",), "workers": (0,), "prefetch": (), "resident": False, "finals": 2}
    with pytest.raises(UserError) as error:
        build_as(Loading, {**one, "seconds": 600}, "stage").check(asked)
    assert str(error.value) == (
        "stage.seconds=600: torch takes 11 samples of that from memory, and a process is ended after 1,800 s; "
        "choose up to 163.636, or fewer stage.rounds"
    )
    build_as(Loading, {**one, "seconds": 163}, "stage").check(asked)
    build_as(Loading, {**one, "seconds": 600, "sources": ("mapped",)}, "stage").check(asked)  # a pass, however long


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (Device(memory_limit="1GB"), "device.memory_limit=1GB with stage=loading: has no effect there; leave it out"),
        (Device(placement_log=True), "device.placement_log=true with stage=loading: has no effect there; leave it out"),
        (Device(processes=2), "device.processes=2 with stage=loading: has no effect there; leave it out"),
    ],
)
def test_what_no_loader_follows_is_refused(device: Device, why: str) -> None:
    asked: Any = SimpleNamespace(device=device)
    with pytest.raises(UserError) as error:
        build_as(Loading, {"frameworks": ("torch",)}, "stage").check(asked)
    assert str(error.value) == why


def test_batches_ahead_of_no_worker_are_refused() -> None:
    loading = build_as(Loading, {"frameworks": ("torch",), "workers": (0,), "prefetch": (16,)}, "stage")
    with pytest.raises(UserError, match=r"^stage\.prefetch: torch's loader makes batches ahead in workers only; "):
        loading.check_keys(NOTHING, ["stage.workers", "stage.prefetch"])
    loading.check_keys(NOTHING, ["stage.workers"])


def check_result(run: Path, frameworks: tuple[str, ...], sources: tuple[str, ...]) -> Result:
    """Every setting was right, timed and reported by the medians of its samples."""
    result = read_result(run)
    assert result is not None
    metrics: dict[str, Metric] = {metric.name: metric for metric in result.metrics}
    with (run / "artifacts/tables/samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["source"], row["framework"]) for row in rows} == {(s, f) for s in sources for f in frameworks}
    varied: dict[str, list[float]] = {}
    for row in rows:
        if row["turns"] == "varied":
            name = f"{row['source']}/{row['framework']}/{row['setting']}"
            varied.setdefault(name, []).append(float(row["images"]) / float(row["seconds"]))
    for name, rates in varied.items():
        assert len(rates) == 2
        assert metrics[f"{name}/rate"].value == pytest.approx(statistics.median(rates))
        assert 0 < metrics[f"{name}/waits"].value < 1
    for source in sources:
        for framework in frameworks:
            parts = [metrics[f"{source}/{framework}/part/{part}"].value for part in ("read", "scale", "batch")]
            if framework == "tensorflow":  # differences of two times each, which noise takes below zero
                assert max(parts) > 0
            else:
                assert min(parts) >= 0 and sum(parts) > 0
    titles = [table.title.partition(":")[0] for table in result.tables]
    assert titles[: len(sources)] == list(sources) and len(titles) == len(sources) + 2
    assert [row[:2] for row in result.tables[-1].rows] == [(s, f) for s in sources for f in frameworks]
    table = dict(result.table)
    assert table["copies to a GPU, pinned or not"] == "not measured: no GPU"
    assert metrics["verified"].value == int(table["verified"].split()[0])
    receipt = json.loads((run / "receipt.json").read_text())
    assert all(one["fault"] is None and one["batches"] in (3, 6) for one in receipt["loaders"])
    assert (run / "artifacts/figures/loading.png").stat().st_size > 5000
    return result


@pytest.mark.wide
def test_torch_from_files(tmp_path: Path) -> None:
    arguments = ("stage.frameworks=[torch]", "stage.sources=[files]")
    run = done(tmp_path, *QUICK, *arguments, PIPELINE_CACHE=str(tmp_path / "cache"))
    result = check_result(run, ("torch",), ("files",))
    names = [row[1] for row in result.tables[0].rows]
    assert names[:4] == ["dataloader, plainest", "workers=1", "workers=1 prefetch_factor=4", "threads workers=1"]
    code = json.loads((run / "code.json").read_text())
    assert {"pipeline.backends.torch.loading", "pipeline.loaders.dataloader"} <= code.keys()
    assert "pipeline.backends.keras.loading_tensorflow" not in code


@pytest.mark.wide
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_framework_from_everywhere(framework: str, tmp_path: Path) -> None:
    run = done(tmp_path, *QUICK, f"stage.frameworks=[{framework}]", PIPELINE_CACHE=str(tmp_path / "cache"))
    result = check_result(run, (framework,), SOURCES)
    loader = "dataloader" if framework == "torch" else "tfdata"
    for table, source in zip(result.tables, SOURCES, strict=False):
        assert table.rows[0][1] == f"{loader}, plainest"
        assert ("memory" in {row[1] for row in table.rows}) == (source == "memory")


def test_a_damaged_cache_is_one_message(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    made = stored("files", Digits().load(cache, 0), 192, 0, cache)
    made.files[7].write_bytes(b"")
    # `failed` sees to it that the source before it has not been measured for nothing.
    arguments = (*(one for one in QUICK if one != "tracking=none"), "stage.sources=[memory,files]")
    arguments = (*arguments, "stage.frameworks=[torch]")
    said = failed(tmp_path, *arguments, PIPELINE_CACHE=str(cache))
    assert said.startswith(f"stage.sources=files: {made.files[7]}: not a readable image (")


def test_a_folder_of_damaged_pictures_is_one_message(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        (tmp_path / "mine" / name / "1.png").write_bytes(b"no picture")
    said = refused(tmp_path, "stage=loading", "dataset=image_folder", "dataset.folder=mine")
    assert said.startswith("dataset.folder=mine: mine/a/1.png: not a readable image (")
    assert "cannot identify image file)" in said and "<" not in said, said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stage.rounds=0",), "stage.rounds=0: should be greater than 0"),
        (("stage.examples=5000",), "stage.examples=5000: there are 1,257 training examples"),
        pytest.param(
            ("stage.examples=1",),
            "stage.examples=1: a pass needs two batches at least; choose 2 or more",
            marks=pytest.mark.wide,
        ),
        (
            ("stage.batch_sizes=[700]",),
            "stage.batch_sizes=700: a pass of 1,024 examples needs two batches at least; choose 1 to 512",
        ),
        (
            ("loader=threads",),
            "loader with stage=loading: stage.workers, stage.prefetch, stage.cache and others say what is varied; "
            "leave it out",
        ),
    ],
)
def test_what_does_not_go_is_one_message(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert refused(tmp_path, "stage=loading", "dataset=digits", *arguments) == said


@pytest.mark.wide
def test_a_gpu_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    result = pipeline(tmp_path, *QUICK, "device=gpu")
    assert result.returncode == 2 and "no NVIDIA GPU found" in result.stderr
