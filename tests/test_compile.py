"""backend.compile: the same training within rounding, its compilation timed apart, and refused without a compiler."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command import Done, done, pipeline, refused, runs

from pipeline.machine.device import gpus
from pipeline.models.torch_quick import LARGE
from pipeline.models.transformer import Block, Decoder
from pipeline.models.transformer.torch_gpt import Gpt
from pipeline.runs.records import read_config

# Dropout and all; 330 images in batches of 32: the last batch of an epoch is of another size. Two epochs of 11 steps.
NET = ("model=mnist_cnn", "dataset=digits", "dataset.train_size=330", "training=quick", "training.epochs=2")
WORDS = (*NET, "optimizer=adadelta", "training.batch_size=32", "tracking=none")
CLOSE = {"fp32": 1e-5, "fp64": 1e-12}
DTYPES = {"fp32": "float32", "fp64": "float64", "mixed": "bfloat16"}
# Each has kernels to compile.
PRECISIONS = ("fp32", "mixed", "fp64")
Grid = Callable[[str], Done]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compile")


@pytest.fixture(scope="module")
def grid(place: Path) -> Grid:
    """A run that is not compiled and one that is, in a precision: the grid that makes them, run once."""

    @cache
    def of(precision: str) -> Done:
        return pipeline(place, "-m", "backend.compile=false,true", f"precision={precision}", *WORDS)

    return of


def receipt(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "receipt.json").read_text())
    return found


def pair(place: Path, precision: str) -> list[Path]:
    """The run that is not compiled, and the one that is."""
    cells = [run for run in runs(place) if not (run / "cells").exists()]
    found = {
        config["backend"]["compile"]: run
        for run in cells
        for config in [read_config(run)]
        if config["precision"]["name"] == precision
    }
    return [found[False], found[True]]


@pytest.mark.wide
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_compiled_is_the_same_within_rounding(grid: Grid, place: Path, precision: str) -> None:
    assert grid(precision).returncode == 0, grid(precision).stderr
    plain, compiled = (np.load(run / "artifacts/model/weights.npz") for run in pair(place, precision))
    assert plain.files == compiled.files
    for name in plain.files:
        assert np.abs(plain[name] - compiled[name]).max() <= CLOSE[precision], name
        assert np.abs(plain[name]).max() > 1e-3
    results = [json.loads((run / "result.json").read_text())["scalars"] for run in pair(place, precision)]
    assert results[0]["test/loss"] == pytest.approx(results[1]["test/loss"], rel=1e-4)


@pytest.mark.wide
@pytest.mark.parametrize("precision", PRECISIONS)
def test_dtypes_are_observed_in_a_real_step(grid: Grid, place: Path, precision: str) -> None:
    assert grid(precision).returncode == 0
    plain, compiled = (receipt(run)["precision"]["observed"] for run in pair(place, precision))
    assert set(compiled["matrix_products"]) == {DTYPES[precision]}
    assert compiled == {**plain, "how": f"{plain['how']}; the compiled steps after it are not observed"}


@pytest.mark.wide
@pytest.mark.parametrize("precision", PRECISIONS)
def test_compiling_is_reported_and_not_counted_as_training(grid: Grid, place: Path, precision: str) -> None:
    assert grid(precision).returncode == 0
    plain, compiled = (receipt(run) for run in pair(place, precision))
    assert "compile_s" not in plain
    assert compiled["compile_s"] > 0.5
    assert compiled["training_s"] + compiled["compile_s"] < compiled["wall_time_s"]


@pytest.mark.wide
def test_the_table_tells_of_it(tmp_path: Path) -> None:
    """With a model of the user's: the kernels that the compiler loads as modules are not the user's code."""
    (tmp_path / "mine.py").write_text(
        "from pipeline.models.linear import Linear\nfrom pipeline.spec import spec\n\n\n"
        "@spec\nclass Own(Linear):\n    pass\n"
    )
    own = {"PIPELINE_MODULES": "mine", "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    words = ("dataset=digits", "training=quick", "tracking=none", "backend.compile=true")
    result = pipeline(tmp_path, "model=linear", "model._target_=mine.Own", *words, **own)
    assert result.returncode == 0, result.stderr
    (run,) = runs(tmp_path)
    assert "imported_beside" not in receipt(run)
    line = next(line for line in result.stdout.splitlines() if line.startswith("compilation"))
    assert line.split(maxsplit=1)[1].strip().endswith(" s, not counted as training")
    assert "backend.compile: the step is compiled\n" in result.stderr
    assert "Profiler" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [("training.steps=1",), pytest.param(("dataset.train_size=60",), marks=pytest.mark.wide)],
)
def test_a_training_without_a_second_full_batch_says_that_it_compiles_nothing(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    small = ("dataset=digits", "model=linear", "training.epochs=1", "training.batch_size=32")
    result = pipeline(tmp_path, *small, "backend.compile=true", *words)
    assert result.returncode == 0, result.stderr
    assert "the step is compiled" not in result.stderr
    (run,) = runs(tmp_path)
    assert "compile_s" not in receipt(run)
    assert "compiled steps" not in receipt(run)["precision"]["observed"]["how"]
    said = "backend.compile=true: no step is compiled: the first one never is, and no other has a whole batch"
    assert said in json.loads((run / "result.json").read_text())["notes"]


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum", "adamw", "rmsprop", "adagrad", "muon"])
@pytest.mark.wide
def test_every_optimizer_compiles(optimizer: str, tmp_path: Path) -> None:
    words = ("model=linear", f"optimizer={optimizer}", "dataset=digits", "training=quick", "tracking=none")
    result = pipeline(tmp_path, "-m", "backend.compile=false,true", *words)
    assert result.returncode == 0, result.stderr
    cells = [run for run in runs(tmp_path) if not (run / "cells").exists()]
    plain, compiled = (np.load(run / "artifacts/model/weights.npz") for run in cells)
    assert max(np.abs(plain[name] - compiled[name]).max() for name in plain.files) <= 1e-5


@pytest.mark.wide
def test_a_profiler_tells_the_parts_of_a_compiled_step(tmp_path: Path) -> None:
    run = done(tmp_path, *WORDS, "backend.compile=true", "profiler=torch", "profiler.skip=3", "profiler.steps=2")
    trace = json.loads(gzip.decompress((run / "artifacts/profile/trace.json.gz").read_bytes()))
    seen = Counter(event["name"] for event in trace["traceEvents"] if event["ph"] == "X")
    assert {name: seen[name] for name in ("data", "forward", "backward", "optimizer")} == dict.fromkeys(
        ("data", "forward", "backward", "optimizer"), 2
    )


def test_refused_where_there_is_no_compiler(tmp_path: Path) -> None:
    words = ("dataset=digits", "backend.compile=true", "device=cpu")
    assert refused(tmp_path, *words, PATH=str(tmp_path), CXX="") == (
        "backend.compile=true: needs a compiler (g++ on the PATH); install one, name another in CXX, or "
        "use backend.compile=false"
    )
    assert "needs a compiler (my-compiler on the PATH)" in refused(tmp_path, *words, CXX="my-compiler")


@pytest.mark.wide
def test_a_compiler_that_is_switched_off_is_not_taken_for_one(tmp_path: Path) -> None:
    """torch trains uncompiled then, without a word."""
    words = ("model=linear", "dataset=digits", "training=quick", "device=cpu", "backend.compile=true")
    result = pipeline(tmp_path, *words, "tracking=none", TORCHDYNAMO_DISABLE="1")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "error: backend.compile=true: torch compiled nothing of this step (TORCHDYNAMO_DISABLE=1 is set); "
        "use backend.compile=false"
    )
    (run,) = runs(tmp_path)
    assert receipt(run)["environment"]["TORCHDYNAMO_DISABLE"] == "1"


HALVES = """
import torch
from pipeline.contracts import Model
from pipeline.spec import spec


class Net(torch.nn.Module):
    def __init__(self, classes, counts):
        super().__init__()
        self.layer, self.counts, self.calls = torch.nn.Linear(64, classes), counts, 0

    def forward(self, x):
        x = x.flatten(1)
        if self.counts:
            self.calls += 1
            return self.layer(x) + 1e-9 * self.calls
        return self.by_hand(x)

    @torch.compiler.disable
    def by_hand(self, x):
        return self.layer(x)


@spec
class Halves(Model):
    counts: bool = False

    def torch(self, shapes):
        return Net(shapes.classes, self.counts)
"""


@pytest.mark.wide
@pytest.mark.parametrize("counts", ["false", "true"])
def test_what_is_not_compiled_once_and_as_a_whole_is_a_note(counts: str, tmp_path: Path) -> None:
    """torch says neither where it leaves the compiled program, nor, but in its log, that it has given up."""
    (tmp_path / "halves.py").write_text(HALVES)
    own = {"PIPELINE_MODULES": "halves", "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    words = ("model=linear", "model._target_=halves.Halves", f"+model.counts={counts}", "dataset=digits")
    quick = ("training=quick", "training.batch_size=32", "backend.compile=true")
    run = done(tmp_path, *words, *quick, "tracking=none", **own)
    in_pieces = "not as a whole: Skip inlining `torch.compiler.disable()`d function, in forward (halves.py, line 17)"
    changed = "because this had changed: self.net.calls == 3, in forward (halves.py, line 15)"
    once_more = f"the step is compiled more than once, {changed.replace('had', 'has')}"
    no_more = "after 9 steps the training runs uncompiled: torch has reached its limit of recompilations, the last "
    no_more += changed.replace("== 3", "== 10")
    noted = [once_more, no_more] if counts == "true" else [f"the step is compiled in pieces, {in_pieces}"]
    assert json.loads((run / "result.json").read_text())["notes"] == [f"backend.compile: {each}" for each in noted]
    assert receipt(run)["training_s"] < receipt(run)["compile_s"]


COUNTED = """
import torch
from pipeline.contracts import Optimizer
from pipeline.spec import spec


class Counting(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "count": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            for weight in group["params"]:
                weight.add_(weight.grad, alpha=-0.1 / group["count"])


@spec
class Counted(Optimizer):
    learning_rate: float = 0.1

    def slots(self):
        return 0

    def torch(self, parameters):
        return Counting(parameters, self.learning_rate)
"""


@pytest.mark.wide
def test_an_update_that_is_compiled_again_and_again_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(COUNTED)
    (tmp_path / "conf/optimizer").mkdir(parents=True)
    (tmp_path / "conf/optimizer/counted.yaml").write_text("_target_: counted.Counted\nlearning_rate: 0.1\n")
    own = {"PIPELINE_MODULES": "counted", "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    words = ("--config-dir=conf", "optimizer=counted", "model=linear", "dataset=digits", "training=quick")
    run = done(tmp_path, *words, "training.batch_size=32", "backend.compile=true", "tracking=none", **own)
    again, limit = json.loads((run / "result.json").read_text())["notes"]
    assert again.startswith(
        "backend.compile: the optimizer's update is compiled more than once, because this has changed: "
    )
    assert "['count'] == 2, in step (counted.py, line " in again
    assert " steps the optimizer's update runs uncompiled: torch has reached its limit of recompilations" in limit


@pytest.mark.wide
def test_the_condition_named_is_of_what_is_compiled_again(tmp_path: Path) -> None:
    """A model and an optimizer that both change: the training's last note named the update's condition."""
    (tmp_path / "halves.py").write_text(HALVES)
    (tmp_path / "counted.py").write_text(COUNTED)
    (tmp_path / "conf/optimizer").mkdir(parents=True)
    (tmp_path / "conf/optimizer/counted.yaml").write_text("_target_: counted.Counted\nlearning_rate: 0.1\n")
    own = {"PIPELINE_MODULES": "halves,counted", "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    words = ("--config-dir=conf", "optimizer=counted", "model=linear", "model._target_=halves.Halves")
    quick = ("+model.counts=true", "dataset=digits", "training=quick", "training.batch_size=32")
    run = done(tmp_path, *words, *quick, "backend.compile=true", "tracking=none", **own)
    notes = json.loads((run / "result.json").read_text())["notes"]
    assert len(notes) == 4
    for note in notes:
        assert ("in step (counted.py" if "optimizer's update" in note else "in forward (halves.py") in note


@pytest.mark.wide
def test_only_torch_has_it(tmp_path: Path) -> None:
    assert refused(tmp_path, "backend=jax", "backend.compile=true").startswith(
        "backend.compile: no such key (backend=torch has it); "
    )


def test_a_graph_draws_the_masks_of_dropout_from_torchs_generator_where_it_stands() -> None:
    """What CompiledStep relies on on a GPU, as the headers of the installed torch promise it."""
    header = Path(torch.__file__).parent / "include/ATen/cuda/CUDAGeneratorImpl.h"
    note = " ".join(header.read_text().replace("*", " ").split())
    assert "Note [CUDA Graph-safe RNG states]" in note
    assert "increments this device's CUDA generator's offset by that total" in note
    assert "ensures graphed execution is bitwise identical to eager execution" in note


def test_a_fused_update_on_a_gpu_reads_a_rate_of_float32() -> None:
    """By tensors without memory, for which no GPU is needed; what the update reads is seen on one alone."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from pipeline.backends.torch.compiled import rate_as_tensor

    for fused, dtype in ((True, torch.float32), (False, torch.float64)):
        with FakeTensorMode():
            optimizer = torch.optim.AdamW([torch.zeros(3, device="cuda")], fused=fused)
            for _ in range(2):  # also of a checkpoint's, which is a tensor already
                rate_as_tensor(optimizer, torch.device("cuda:0"))
                assert optimizer.param_groups[0]["lr"].dtype == dtype
    optimizer = torch.optim.AdamW([torch.zeros(3)], fused=True)
    rate_as_tensor(optimizer, torch.device("cpu"))
    assert optimizer.param_groups[0]["lr"].dtype == torch.float64


class Counting(torch.optim.Optimizer):
    """An optimizer of a user's: its rate falls with a number that Python counts. `word`: where that stands."""

    def __init__(self, parameters: Any, word: str) -> None:
        super().__init__(parameters, {"lr": 1.0, "count": 0})
        self.word, self.count = word, 0

    @torch.no_grad()
    def step(self, _: Any = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        (weight,) = group["params"]
        state = self.state[weight]
        kept = {"group": group, "state": state, "host": state, "itself": vars(self), "beside": self.state}[self.word]
        kept["count"] = kept.get("count", torch.zeros(()) if self.word == "host" else 0) + 1
        weight -= group["lr"] / float(kept["count"])


@pytest.fixture
def no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of a GPU, for what runs without one."""
    stream = SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())


def warming_up(optimizer: torch.optim.Optimizer, x: torch.Tensor) -> Any:
    """A compiled step before it is captured, of which the optimizer's part alone is taken."""
    from pipeline.backends.torch.compiled import CompiledStep

    made = object.__new__(CompiledStep)

    def step(*_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x.grad = torch.ones_like(x)
        optimizer.step()
        return x.detach(), x.detach()

    shared = SimpleNamespace(optimizer=optimizer, gathering=SimpleNamespace(norm=x), phase=lambda _: nullcontext())
    vars(step).update(vars(shared))
    made.step, made.captures, made.notes = step, True, []  # type: ignore[assignment]
    made.steps, made.graph, made.seconds, made.graphs, made.untimed = 0, None, 0.0, -1, 0
    return made


@pytest.mark.usefixtures("no_streams")
@pytest.mark.parametrize("word", ["group", "state", "host", "itself", "beside"])
def test_what_an_optimizer_counts_on_the_host_is_not_kept_in_a_graph(word: str) -> None:
    """A replayed update would have the count of the step that was captured for ever."""
    x = torch.zeros(3, requires_grad=True)
    made = warming_up(Counting([x], word), x)
    for _ in range(3):
        if made.captures:
            made._beside(None, None)
    assert not made.captures
    assert made.notes == [
        "backend.compile: the step is not captured as a CUDA graph: the optimizer keeps values on the host that change "
        "from step to step: count"
    ]


def test_adagrads_counters_are_on_the_device_of_a_captured_step() -> None:
    """It makes them on the host, whatever it is asked for."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from pipeline.backends.torch.compiled import count_on_device, on_host

    with FakeTensorMode():
        optimizer = torch.optim.Adagrad([torch.zeros(3, device="cuda")])
        assert {one["step"].device.type for one in optimizer.state.values()} == {"cpu"}
        count_on_device(optimizer)
        assert {one["step"].device.type for one in optimizer.state.values()} == {"cuda"}
        assert "step" not in on_host(optimizer)


@pytest.mark.usefixtures("no_streams")
def test_what_is_explained_of_a_captured_training_is_its_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capture itself, which takes as long as hundreds of steps, was the first step of the window."""
    from pipeline.backends.torch.steps_in_profile import WARM_UP

    x, orders = torch.zeros(3, requires_grad=True), list[str]()

    @contextmanager
    def capturing(*_: Any, **__: Any) -> Iterator[None]:
        orders.append("capture")
        yield

    graph = SimpleNamespace(replay=lambda: orders.append("replay"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    made = warming_up(torch.optim.SGD([x]), x)
    for _ in range(1, WARM_UP + 1):  # the training's first is observed, and not compiled
        made(x.detach(), x.detach())
    assert orders == ["capture", "replay", "replay"]


@pytest.mark.usefixtures("no_streams")
def test_a_step_that_is_compiled_again_while_it_is_captured_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What had changed was kept in the graph, while a note said that there was none."""
    from pipeline.backends.torch.compiled import WARM_UP

    x, orders = torch.zeros(3, requires_grad=True), list[str]()
    made = warming_up(torch.optim.SGD([x]), x)

    @contextmanager
    def capturing(*_: Any, **__: Any) -> Iterator[None]:
        orders.append("capture")
        made._uncaptured()  # as where torch compiles anew
        yield

    graph = SimpleNamespace(replay=lambda: orders.append("replay"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    counted = made.step

    def step(*given: Any) -> Any:
        orders.append("step")
        return counted(*given)

    vars(step).update(vars(counted))
    made.step = step
    for _ in range(WARM_UP + 1):
        made(x.detach(), x.detach())
    assert orders == ["step"] * WARM_UP + ["capture", "step", "step"]


@pytest.mark.usefixtures("no_streams")
def test_a_step_that_cannot_be_captured_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.errors import RunError

    @contextmanager
    def capturing(*_: Any, **__: Any) -> Iterator[None]:
        yield
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors might")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    x = torch.zeros(3, requires_grad=True)
    made = warming_up(torch.optim.SGD([x]), x)
    with pytest.raises(RunError) as raised:
        made._capture(x.detach(), x.detach())
    assert str(raised.value) == (
        "backend.compile=true: this step cannot be captured as a CUDA graph: CUDA error: operation not permitted when "
        "stream is capturing; use backend.compile=false"
    )


def test_a_language_model_with_large_products_is_one_graph() -> None:
    """Each layer asked a file whether oneDNN is quicker; reading a file breaks the graph."""
    block = Block(
        width=128, heads=2, key_heads=2, hidden=512, norm="rms", activation="relu2", normed_heads=True, rotary=True,
        dropout=0.2,
    )  # fmt: skip
    net = Gpt(Decoder(block=block, layers=1, positions="rotary"), length=256, vocabulary=83)
    tokens = torch.zeros((8, 256), dtype=torch.long)
    assert tokens.numel() * block.width**2 >= LARGE
    with torch.autocast("cpu", torch.bfloat16):
        torch.compile(net, backend="eager", fullgraph=True)(tokens)  # raises at the first break


@pytest.mark.gpu
@pytest.mark.skipif(not gpus(), reason="no NVIDIA GPU on this machine")
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "muon"])
def test_a_captured_step_is_the_same_on_a_gpu(optimizer: str, tmp_path: Path) -> None:
    """Captured, but with mixed_fp16; dropout and all, whose masks are those of the step that is not captured."""
    result = pipeline(
        tmp_path, "-m", "backend.compile=false,true", "precision=fp32,mixed,mixed_fp16", *NET,
        f"optimizer={optimizer}", "schedule=cosine", "device=gpu", "training.batch_size=32", "tracking=none",
        CUDA_VISIBLE_DEVICES="0",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    weights = {}
    for run in (run for run in runs(tmp_path) if not (run / "cells").exists()):
        config = read_config(run)
        cell = config["precision"]["name"], config["backend"]["compile"]
        weights[cell] = np.load(run / "artifacts/model/weights.npz")
    assert len(weights) == 6
    for precision in ("fp32", "mixed", "mixed_fp16"):
        plain, compiled = weights[precision, False], weights[precision, True]
        close = 1e-3 if precision == "fp32" else 5e-2
        assert max(np.abs(plain[name] - compiled[name]).max() for name in plain.files) <= close, precision


STOPPED = """
import threading
from types import SimpleNamespace
from torch._inductor.async_compile import AsyncCompile
from pipeline.backends.torch.compiled import CompiledStep
from pipeline.errors import Stopped

begun, stopped = threading.Barrier(3), threading.Event()

def kernel(number):
    if number < 2:
        begun.wait()
    stopped.wait()
    print(f"kernel {number}\\n", end="", flush=True)  # in one piece

def step(x, y):
    AsyncCompile.pool()
    for number in range(9):
        AsyncCompile.submit(lambda number=number: kernel(number))
    begun.wait()  # both threads have one
    raise Stopped("SIGTERM", 143)

try:
    CompiledStep._timed(SimpleNamespace(), step, None, None)
finally:
    stopped.set()
"""


@pytest.mark.wide
def test_a_stop_drops_the_kernels_that_wait_to_be_compiled() -> None:
    """Python waits at its end for torch's threads, which compiled them all first: half a minute after the stop."""
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert "Stopped" in done.stderr
    assert sorted(done.stdout.splitlines()) == ["kernel 0", "kernel 1"]
