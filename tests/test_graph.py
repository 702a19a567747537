"""stage=graph: the same numbers from every form, wrong ones found out, and when a compilation pays."""

from __future__ import annotations

import csv
import json
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import own_forms
import pytest
from command import begun, done, pipeline, refused, runs, status
from in_backend import experiment
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pipeline.backends.shared import arrays_numpy
from pipeline.backends.shared.arrays import Arrays
from pipeline.backends.shared.form_bench import Bench as FormBench
from pipeline.backends.shared.form_bench import Found
from pipeline.backends.shared.two_layer import Form, by_hand, drawn, trained
from pipeline.errors import Impossible, UserError
from pipeline.machine import installed
from pipeline.machine.device import Device, Place
from pipeline.runs.result import Metric, Result, read_result
from pipeline.spec import build_as
from pipeline.stages.by_framework import BACKENDS
from pipeline.stages.graph import bench as graph_bench
from pipeline.stages.graph import figures, tables
from pipeline.stages.graph import stage as graph_stage
from pipeline.stages.graph.amortised import Cost, cost, crossover, with_first
from pipeline.stages.graph.processes import Job
from pipeline.stages.graph.stage import Graph
from pipeline.stages.graph.tables import crossed, said

HERE = Path(__file__).parent
NOTHING: Any = SimpleNamespace(seed=0, device=Device())  # the stage asks neither of the experiment for more
SQUARE = (12, 12, 12, 12)
RATE = 1e-4
STEPS = 30
QUICK = (
    "stage=graph",
    "tracking=none",
    "stage.sizes=[16,40,20,4]",
    "stage.learning_rate=1e-5",
    "stage.steps=20",
    "stage.repetitions=[1,5]",
    "stage.rounds=2",
    "stage.starts=1",
)
FORMS = {
    "numpy": ("numpy",),
    "torch": ("torch_by_hand", "torch_autograd", "torch_function", "torch_nn"),
    "tensorflow": ("tf_tape", "tf_optimizer", "keras_tensorflow"),
    "jax": ("jax_grad", "keras_jax"),
}
WAYS = {
    "torch": ("torch_eager", "torch_script", "torch_compile"),
    "tensorflow": ("tf_eager", "tf_function", "tf_xla"),
    "jax": ("jax_eager", "jax_jit"),
}
Samples = dict[tuple[str, str], list[tuple[float, float]]]  # by name and number of steps
SAVED = {"torch": ("torch_script", "torch_compile"), "tensorflow": ("tf_function", "tf_xla"), "jax": ("jax_jit",)}


def found_of(kind: type[Form], arrays: Arrays) -> Found:
    """A form, verified and, if it is right, timed."""
    net = drawn(SQUARE, RATE, seed=0)
    bench = FormBench(net, trained(net, STEPS, (1, 3)), arrays, "cpu")
    bench.verify([kind])
    bench.time([1, 3], rounds=2)
    (found,) = bench.found
    return found


def test_the_reference_descends_the_gradient() -> None:
    """NumPy's by hand against central differences of the loss."""
    net = drawn((5, 4, 3, 2), 1.0, seed=1)
    loss, w1, w2 = by_hand(net.x, net.y, net.w1, net.w2, net.rate)
    assert loss == pytest.approx(np.sum((np.maximum(net.x @ net.w1, 0) @ net.w2 - net.y) ** 2))
    for which, moved in ((net.w1, w1), (net.w2, w2)):
        for at in np.ndindex(which.shape):
            losses = []
            for by in (1e-6, -1e-6):
                changed = {id(each): each.copy() for each in (net.w1, net.w2)}
                changed[id(which)][at] += by
                losses.append(by_hand(net.x, net.y, changed[id(net.w1)], changed[id(net.w2)], 1.0)[0])
            assert which[at] - moved[at] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-5, abs=1e-5)
    net = drawn((64, 100, 30, 10), 1e-5, 0)
    whole = trained(net, 40, (50,))
    assert len(whole.losses) == 50 and (np.diff(whole.losses) < 0).all()
    assert whole.weights.keys() == {40, 50}
    loss, *_ = by_hand(net.x, net.y, *whole.weights[40], net.rate)
    assert loss == whole.losses[40]


def test_a_form_that_is_right_is_timed() -> None:
    found = found_of(own_forms.Right, arrays_numpy.Arrays())
    assert (found.fault, found.losses, found.weights) == (None, 0, 0)
    assert (found.dtype, found.device) == ("float64", "cpu")
    assert {n: len(samples) for n, samples in found.samples.items()} == {1: 2, 3: 2}
    assert all(launch > 0 <= wait for samples in found.samples.values() for launch, wait in samples)


WRONG: dict[type[Form], str] = {
    own_forms.Transposed: "the loss of step 1 is ",
    own_forms.Narrow: "the loss of step 1 is ",
    own_forms.Float32: "computes in float32, not in float64",
    own_forms.Nan: "the loss of step 1 is nan, NumPy's ",
    own_forms.Drifting: "w2 differs from NumPy's by 1.0e-11 of its norm",
    own_forms.Refusing: "raised NotImplementedError: no such operation",
    own_forms.Idle: "the loss of step 1, when it was timed, is ",
}


@pytest.mark.parametrize(("kind", "said"), WRONG.items(), ids=[kind.name for kind in WRONG])
def test_a_form_that_is_wrong_has_no_times(kind: type[Form], said: str) -> None:
    found = found_of(kind, arrays_numpy.Arrays())
    assert str(found.fault).startswith(said), found.fault
    assert found.samples == {}


def test_a_form_that_stops_late_has_no_times() -> None:
    """After 600 of 1,000 steps, when both losses are below the tolerance of the first."""
    net = drawn((8, 60, 30, 3), 5e-5, seed=0)
    reference = trained(net, 500, (1000,))
    assert reference.losses[599] < 1e-12 * reference.losses[0]
    bench = FormBench(net, reference, arrays_numpy.Arrays(), "cpu")
    bench.verify([own_forms.Right, own_forms.Stopping])
    bench.time([1000], rounds=1)
    right, stopping = bench.found
    assert right.fault is None and len(right.samples[1000]) == 1
    assert str(stopping.fault).startswith("when step 1000 was timed: w1 differs from NumPy's by ")
    assert stopping.samples == {}


def test_a_timer_that_does_not_wait_is_found_out() -> None:
    """What a device takes shows in the time to wait; where it is missing there, the sample is refused."""
    found = found_of(own_forms.Asynchronous, own_forms.Launched())
    assert found.fault is None
    assert all(launch + wait >= 3 * own_forms.STEP_S for launch, wait in found.samples[3])
    assert any(launch < wait for launch, wait in found.samples[3])  # other processes may slow down a launch
    found = found_of(own_forms.Asynchronous, own_forms.Unsynchronised())
    assert found.fault == "the timer was stopped before the last of 1 steps was computed"
    assert found.samples == {}


def test_the_crossover_is_where_the_totals_cross() -> None:
    for eager, compiled in (
        (Cost(0.002, 0.001, 0.001), Cost(1.0, 0.0004, 0.0004)),
        (Cost(0.002, 0.001, 0.001), Cost(1.0, 3.0, 0.0004)),  # the second call compiles as well
        (Cost(0.5, 0.25, 0.25), Cost(1.0, 0.125, 0.125)),  # a tie at 5 is not quicker yet
        (Cost(1.0, 0.1, 0.1), Cost(0.5, 0.05, 0.05)),
        (Cost(1.0, 0.1, 0.1), Cost(1.0, 0.05, 0.05)),
        (Cost(1.0, 0.125, 0.125), Cost(0.5, 2.0, 0.0625)),  # quicker for one step, slower for two
    ):
        at = crossover(eager, compiled)
        assert at is not None
        assert all(compiled.of(n) < eager.of(n) for n in range(at, at + 1000))
        assert at == 1 or compiled.of(at - 1) >= eager.of(at - 1)


@pytest.mark.parametrize("later", [0.001, 0.002])
@pytest.mark.parametrize("first", [0.05, 0.1, 1.0])
def test_what_is_not_quicker_later_never_pays(first: float, later: float) -> None:
    """Not even where its first step is quicker: it pays for some steps then, and not from some number on."""
    assert crossover(Cost(0.1, 0.001, 0.001), Cost(first, later, later)) is None


def timed(name: str, later: tuple[float, ...], *, eager: bool = False) -> Found:
    """A way whose first two calls take 0.1 s each, with samples of ten steps."""
    samples = {10: [(10 * each, 0.0) for each in later]}
    return Found(name, name, eager, samples=samples, first=[0.1], second=[0.1])


def test_the_figure_says_what_is_seen_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had neither the net's sizes nor the processor nor how many samples a median is of."""
    pictures: list[Any] = []
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, _: pictures.append(self.figure))
    net: Any = drawn((8, 60, 30, 3), RATE, 0)
    job: Any = SimpleNamespace(net=net, place="cpu", cores=1, rounds=5, starts=2)
    found = [timed("eager", (0.01,) * 5, eager=True)]
    figures.draw(tmp_path / "crossover.png", SimpleNamespace(job=job, ways={"torch": found}))  # type: ignore[arg-type]
    words = pictures[0].get_suptitle()
    assert "two-layer net 8, 60, 30, 3 on " in words and "1 core; medians of 5, of first calls 2\n" in words
    (title,) = [text for text in pictures[0].texts if text.get_text() == words]
    assert title.get_window_extent().width <= pictures[0].bbox.width  # of one framework, it was cut off at both sides


def test_a_gain_within_the_ranges_has_no_crossover() -> None:
    eager = timed("eager", (0.010, 0.011, 0.012, 0.013, 0.014), eager=True)
    for later, expected in (
        ((0.007, 0.0075, 0.008, 0.0085, 0.009), "step 3"),
        ((0.015, 0.0155, 0.016, 0.0165, 0.017), "never"),
        ((0.007, 0.0075, 0.008, 0.009, 0.010), "not distinguishable"),
        ((0.013, 0.014, 0.015, 0.0155, 0.016), "not distinguishable"),
        ((0.001, 0.010, 0.011, 0.012, 0.020), "not distinguishable"),
    ):
        way = timed("way", later)
        assert said([eager, way], way) == expected
        assert crossed([eager, way], way) == (3 if expected == "step 3" else None)
    assert said([eager], eager) == ""


def test_the_versions_of_every_framework_are_kept() -> None:
    """Also of the backends, which share the module by which other parts are told apart."""
    found = experiment("torch", stage="graph").packages
    assert {"torch", "tensorflow", "jax"} <= {*found}


def test_few_samples_have_no_range() -> None:
    eager, way = timed("eager", (0.010, 0.011, 0.012, 0.013), eager=True), timed("way", (0.007, 0.007, 0.008, 0.008))
    assert said([eager, way], way) == "unknown: fewer than 5 samples"
    assert crossed([eager, way], way) is None


def test_what_a_second_call_compiles_is_charged() -> None:
    """In the crossover and in the mean of several steps, not in a later step."""
    net = drawn(SQUARE, RATE, seed=0)
    bench = FormBench(net, trained(net, STEPS, (1, 2)), arrays_numpy.Arrays(), "cpu")
    bench.begin(own_forms.Twice)
    (begun,) = bench.found
    (first,), (second,) = begun.first, begun.second
    assert min(first, second) >= own_forms.COMPILES_S
    found = replace(begun, samples={10: [(0.01, 0.0)]})
    assert cost(found) == Cost(first, second, 0.001)
    assert with_first(found, 10) == pytest.approx((first + second + 0.008) / 10)
    assert with_first(replace(found, samples={1: [(0.001, 0.0)]}), 1) == first


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], graph_bench.Bench]:
    """The stage's bench with another module in the place of NumPy's, after its forms were measured in a process."""

    def measured(module: str) -> graph_bench.Bench:
        monkeypatch.setenv("PYTHONPATH", str(HERE))
        monkeypatch.setitem(graph_bench.MODULES, "numpy", module)
        net = drawn(SQUARE, RATE, seed=0)
        job = Job(
            net=net,
            reference=trained(net, STEPS, (1, 2, 3)),
            place="cpu",
            cores=1,
            form_steps=3,
            repetitions=(1,),
            rounds=2,
            starts=1,
        )
        bench = graph_bench.Bench(job, {}, SimpleNamespace(say=print))  # type: ignore[arg-type]
        bench.measure_forms("numpy")
        return bench

    return measured


def test_what_is_wrong_in_a_process_fails_the_run(planted: Callable[[str], graph_bench.Bench]) -> None:
    bench = planted("own_forms")
    right, narrow = bench.forms
    assert right.fault is None and len(right.samples[3]) == 2
    assert [one.partition(": ")[2].partition(" ")[0] for one in bench.faults()] == ["narrow:"]
    assert narrow.samples == {}


def test_a_process_that_ends_is_named(planted: Callable[[str], graph_bench.Bench]) -> None:
    (said,) = planted("no_such_forms").faults()
    assert said == "numpy: ended with exit status 1: ModuleNotFoundError: No module named 'no_such_forms'"


def test_what_was_found_before_a_process_ended_is_kept(planted: Callable[[str], graph_bench.Bench]) -> None:
    bench = planted("own_ended_forms")
    assert [*bench.faults()] == ["numpy: ended with exit status 9: the machine has no memory left"]
    (ending,) = bench.forms
    assert ending.losses is not None and len(ending.samples[3]) == 1


def test_each_way_is_timed_in_its_own_process(planted: Callable[[str], graph_bench.Bench]) -> None:
    """One whose process ends, or that is wrong, is named; the others are timed all the same, and start twice."""
    bench = planted("own_ways")
    bench.job = replace(bench.job, starts=2, repetitions=(1, 2))
    bench.measure_ways("numpy")
    plain, dying, ending, late, lacking = bench.ways["numpy"]
    assert plain.fault is None and [len(each) for each in (plain.first, plain.second, plain.samples[1])] == [2, 2, 2]
    assert bench.ended["dying"] == "ended with exit status 3: the compiler has crashed"
    assert (dying.samples, dying.first) == ({}, [])
    assert str(late.fault).startswith("the loss of step 1 is ")
    assert (late.first, late.samples) == ([], {})
    assert lacking.missing == "a machine of another kind" and lacking.samples == {}
    assert [said.partition(":")[0] for said in bench.faults()] == ["dying", "ending", "not timed, because wrong"]
    check_what_is_kept(bench, ending)


def check_what_is_kept(bench: graph_bench.Bench, ending: Found) -> None:
    """Of the way whose process ended in the second sample of two steps: what was finished, in each table."""
    assert bench.ended["ending"] == "ended with exit status 9: the machine has no memory left"
    assert ending.weights is not None and [len(ending.samples[n]) for n in (1, 2)] == [2, 1]
    assert len(ending.first) == len(ending.second) == 2
    rows = {table.title: {row[0]: row for row in table.rows} for table in tables.shown(bench)}
    calls, costs, *_ = (found for found in rows.values() if "ending" in found)
    assert calls["ending"][-2:] == ("2", "1") and calls["ending"][3] != ""
    assert costs["ending"][-1] == "unknown: fewer than 5 samples"
    assert dict(tables.summary(bench))["ending"].startswith("its process ended with exit status 9: the machine")


def test_a_way_that_never_came_to_the_largest_number_has_no_later_step() -> None:
    """Its process ended before: a step of fewer is not shown as one among the largest number of steps."""
    eager, way = timed("eager", (0.010,) * 5, eager=True), timed("way", (0.001,) * 5)
    both = replace(eager, samples={1: eager.samples[10], **eager.samples})
    way.samples = {1: way.samples[10]}
    job: Any = SimpleNamespace(repetitions=(1, 10))
    bench: Any = SimpleNamespace(job=job, ways={"numpy": [both, way]})
    assert tables.of_calls(bench).rows[1][3:] == ("", "", "1", "0")
    assert tables.of_cost(bench).rows[1] == ("way", "100", "", "unknown: fewer than 5 samples")
    assert [row[:2] for row in tables.of_dispatch(bench, (1, 10)).rows[2:]] == [("way", "1")]
    assert crossed([both, way], way) is None


REFUSED = {
    "stage.repetitions.1=0: should be greater than 0": {"repetitions": (1, 0)},
    "stage.repetitions=[]: name one at least": {"repetitions": ()},
    "stage.rounds=0: should be greater than 0": {"rounds": 0},
    "stage.starts=0: should be greater than 0": {"starts": 0},
    "stage.steps=0: should be greater than 0": {"steps": 0},
    "stage.sizes.2=0: should be greater than 0": {"sizes": (64, 1000, 0, 10)},
    "stage.learning_rate=0.0: should be greater than 0": {"learning_rate": 0.0},
    "stage.frameworks=[]: name one at least": {"frameworks": ()},
    "stage.frameworks=theano: no such choice; choose from jax, tensorflow, torch": {"frameworks": ("theano",)},
    "stage.frameworks=[jax,jax]: jax is named twice": {"frameworks": ("jax", "jax")},
    "stage.cores=100000: this process may use ": {"cores": 100000},
}


@pytest.mark.parametrize(("said", "fields"), list(REFUSED.items()), ids=REFUSED)
def test_settings_that_make_no_sense_are_refused(said: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        build_as(Graph, fields, "stage")
    assert str(error.value).startswith(said)


def test_a_net_beyond_memory_is_refused_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = build_as(Graph, {"sizes": (1_000_000, 1_000_000, 100, 10)}, "stage")
    with pytest.raises(UserError) as error:
        huge.check(NOTHING)
    said = str(error.value)
    assert said.startswith("stage.sizes=[1000000,1000000,100,10]: the net needs 7460.3 GiB in each of 4 processes, ")
    assert said.endswith(" are free; use smaller ones")
    build_as(Graph, {}, "stage").check(NOTHING)
    monkeypatch.setattr(graph_stage, "gpu_free_bytes", lambda _: 2**20)
    on_gpu: Any = SimpleNamespace(place=Place("gpu", 0))
    with pytest.raises(UserError, match=r"in each of 3 processes, \S+ MiB in all; 1.0 MiB of gpu:0 are free; use sm"):
        build_as(Graph, {}, "stage").rehearse(NOTHING, on_gpu)


def test_what_cannot_be_measured_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build_as(Graph, {}, "stage")
    for key, why in (("backend", "stage.frameworks names them"), ("precision", "all forms compute in float64")):
        with pytest.raises(UserError, match=f"{key} with stage=graph: {why}; leave it out"):
            graph.check_keys(NOTHING, [key])
    with pytest.raises(UserError, match="model with stage=graph: the net is the stage's own; leave it out"):
        graph.check_keys(NOTHING, ["seed", "model"])
    steep = build_as(Graph, {"sizes": SQUARE, "learning_rate": 1.0, "steps": 9, "repetitions": (9,)}, "stage")
    with pytest.raises(UserError, match=r"stage.learning_rate=1: the loss is not finite from step \d+ on; use a small"):
        steep.rehearse(NOTHING, SimpleNamespace(place=Place("cpu")))  # type: ignore[arg-type]
    still = build_as(Graph, {"sizes": SQUARE, "learning_rate": 1e-300, "steps": 9, "repetitions": (9,)}, "stage")
    with pytest.raises(
        UserError, match=r"stage.learning_rate=1e-300: moves the weights by 0.0e\+00 of their size in 9"
    ):
        still.rehearse(NOTHING, SimpleNamespace(place=Place("cpu")))  # type: ignore[arg-type]
    lacking = BACKENDS["jax"].packages[0]
    there = installed.is_installed
    monkeypatch.setattr(installed, "is_installed", lambda name: name != lacking and there(name))
    with pytest.raises(Impossible) as error:
        graph.check(NOTHING)
    said = str(error.value)
    assert said.startswith("stage.frameworks=jax: jax is not installed; ")
    assert said.endswith("; or choose stage.frameworks=[torch,tensorflow]")


def sampled(run: Path) -> Samples:
    """samples.csv: seconds to launch and to wait."""
    samples: Samples = {}
    with (run / "artifacts/tables/samples.csv").open() as file:
        for row in csv.DictReader(file):
            samples.setdefault((row["name"], row["steps"]), []).append((float(row["launch_s"]), float(row["wait_s"])))
    return samples


@pytest.mark.wide
def test_an_interrupted_run_leaves_its_samples(tmp_path: Path) -> None:
    words = [word for word in QUICK if not word.startswith("stage.rounds=")]
    process = begun(tmp_path, *words, "stage.frameworks=[torch]", "stage.rounds=1000")
    try:
        end = time.monotonic() + 600
        while not list(tmp_path.glob("runs/*/artifacts/tables/samples.csv")):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        process.wait(600)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    (run,) = runs(tmp_path)
    assert status(run).state == "KILLED"
    kept = {name: len(found) for (name, _), found in sampled(run).items()}
    assert set(kept) == {*FORMS["numpy"], *FORMS["torch"]}
    assert 0 < min(kept.values()) <= max(kept.values()) < 1000


def check_times(name: str, metrics: dict[str, Metric], samples: Samples) -> None:
    """A way's metrics are the medians of its samples, by step."""
    for call in ("first", "second"):
        times = [launch for launch, _ in samples[name, f"{call} call"]]
        assert metrics[f"{name}/{call}_call"].value == pytest.approx(statistics.median(times))
    for n in (1, 5):
        pairs = samples[name, str(n)]
        launched = statistics.median(launch for launch, _ in pairs)
        waited_for = statistics.median(launch + wait for launch, wait in pairs)
        assert metrics[f"{name}/{n}/launch"].value == pytest.approx(launched / n)
        assert metrics[f"{name}/{n}/step"].value == pytest.approx(waited_for / n)


def check_result(run: Path, framework: str) -> Result:
    """Every form and way of a framework was right, timed and reported, and each graph ran without our code."""
    result = read_result(run)
    assert result is not None
    metrics, samples = {metric.name: metric for metric in result.metrics}, sampled(run)
    forms = (*FORMS["numpy"], *FORMS[framework])
    assert [row[0] for row in result.tables[0].rows] == list(forms)
    for name in (*forms, *WAYS[framework]):
        if name in dict(result.table):
            continue
        assert 0 <= metrics[f"{name}/weights_difference"].value <= 1e-12
        assert 0 <= metrics[f"{name}/losses_difference"].value <= 1e-12
    assert metrics["largest_difference"].value <= 1e-12
    for row in result.tables[0].rows:
        assert row[-2:] == ("float64", "cpu")
    for name in (row[0] for row in result.tables[1].rows):
        quickest = min(launch + wait for launch, wait in samples[name, "5"]) / 5  # other processes may slow down any
        if "eager" not in name:  # which traces and compiles nothing in its first call
            assert metrics[f"{name}/first_call"].value > quickest
        check_times(name, metrics, samples)
    if framework == "torch":  # whose operations on a CPU are computed when they return
        for name in WAYS["torch"]:
            pairs = samples.get((name, "5"), [(1, 0)])
            assert min(wait for _, wait in pairs) < min(launch for launch, _ in pairs)
    assert (run / "artifacts/figures/crossover.png").stat().st_size > 5000
    return result


@pytest.mark.wide
def test_torch_without_a_compiler(tmp_path: Path) -> None:
    """All that torch has but what is compiled, which is named with what it needs."""
    run = done(tmp_path, *QUICK, "stage.frameworks=[torch]", CXX="no-such-compiler")
    result = check_result(run, "torch")
    table = dict(result.table)
    assert table["torch_compile"] == "not run: needs a compiler (no-such-compiler on the PATH)"
    assert table["torch_cuda_graph"] == "not run: needs an NVIDIA GPU"
    assert [row[0] for row in result.tables[1].rows] == ["torch_eager", "torch_script"]
    assert [row[:2] for row in result.tables[4].rows] == [("torch_script", "torch_script")]
    with (run / "artifacts/tables/samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 * 2 + 2 * (2 * 2 + 2)  # forms, then ways with their first two calls
    receipt = json.loads((run / "receipt.json").read_text())
    assert receipt["precision"]["effective"] == "fp64"
    assert {one["name"]: one.get("dtype") for one in receipt["forms"]}["torch_nn"] == "float64"
    code = json.loads((run / "code.json").read_text())
    assert {"pipeline.backends.torch.two_layer", "pipeline.backends.shared.form_process"} <= code.keys()
    assert "pipeline.backends.keras.two_layer_jax" not in code


@pytest.mark.wide
def test_what_torch_does_not_compile_is_not_timed_as_compiled(tmp_path: Path) -> None:
    """By these variables torch runs the step as it is, and says nothing."""
    off = {"TORCHDYNAMO_DISABLE": "1", "PYTORCH_JIT": "0"}
    result = pipeline(tmp_path, *QUICK, "stage.frameworks=[torch]", **off)
    assert result.returncode == 1
    for name, variable in (("torch_script", "PYTORCH_JIT=0"), ("torch_compile", "TORCHDYNAMO_DISABLE=1")):
        said = f"{name}: torch compiled nothing of this step ({variable} is set)"
        assert f"not timed, because wrong: {said}" in result.stderr
    assert "torch_eager: right" in result.stderr


@pytest.mark.wide
@pytest.mark.parametrize("framework", list(WAYS))
def test_every_form_gives_the_same_numbers(framework: str, tmp_path: Path) -> None:
    result = check_result(done(tmp_path, *QUICK, f"stage.frameworks=[{framework}]"), framework)
    assert [row[0] for row in result.tables[1].rows] == list(WAYS[framework])
    assert [row[0] for row in result.tables[4].rows] == list(SAVED[framework])


def test_zero_repetitions_are_one_message(tmp_path: Path) -> None:
    said = refused(tmp_path, "stage=graph", "stage.repetitions=[0]")
    assert said == "stage.repetitions.0=0: should be greater than 0"


def test_a_variable_by_which_jax_compiles_nothing_is_refused(tmp_path: Path) -> None:
    """jax_jit was timed as right, operation by operation."""
    said = refused(tmp_path, "stage=graph", "stage.frameworks=[torch,jax]", JAX_DISABLE_JIT="true")
    assert said == "JAX_DISABLE_JIT=true: stage=graph compiles the steps of jax_jit and keras_jax; unset it"


@pytest.mark.wide
def test_a_gpu_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    result = pipeline(tmp_path, *QUICK, "device=gpu")
    assert result.returncode == 2 and "no NVIDIA GPU found" in result.stderr
