"""Streamed loaders in blocks: the same batches as before, fetched when their step begins."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command import DIGITS, TORCH_THEN_WIDE, environment, pipeline, write_files
from hypothesis import given
from hypothesis import strategies as st
from own_loaders import Own

from pipeline.backends.torch.blocks import StreamedBlocks
from pipeline.backends.torch.group import Group
from pipeline.datasets import Data, Split
from pipeline.errors import RunError, UserError
from pipeline.loaders import ahead, one_ahead, paced, tfdata
from pipeline.loaders.batch_plan import Plan, Planned
from pipeline.loaders.dataloader import DataLoader
from pipeline.loaders.tfdata import TfData
from pipeline.profilers.none import Off
from pipeline.profilers.session import Session
from pipeline.tasks.classification import Classification


def mapped(folder: Path) -> Data:
    """Grey images in a mapped file."""
    np.save(folder / "x.npy", np.zeros((6, 2, 2, 1), np.float32))
    x, y = np.load(folder / "x.npy", "r"), np.zeros(6, np.int64)
    split = Split(x, y)
    return Data(split, split, split, Classification((2, 2, 1), ("one",)), "")


@pytest.mark.parametrize(
    ("cache", "free", "said"),
    [
        # 6 targets of 8 bytes; in the cache them again, and 24 numbers of 4 bytes
        (True, 192, None),
        (
            True,
            191,
            "loader=tfdata loader.cache=true: needs 192 B of memory for the examples of a mapped file, and 191 B are "
            "free; "
            "use loader.cache=false or loader=threads",
        ),
        (False, 96, None),  # and twice while they are copied
        (
            False,
            95,
            "loader=tfdata: needs 96 B of memory for the examples of a mapped file, and 95 B are free; use "
            "loader=threads",
        ),
    ],
)
def test_tfdata_refuses_what_does_not_fit_into_memory(
    cache: bool, free: int, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfdata, "free_bytes", lambda: free)
    loader = TfData(cache=cache)
    if said is None:
        assert loader.stream(mapped(tmp_path), "float32", 2, 0) is not None
        return
    with pytest.raises(UserError) as error:
        loader.stream(mapped(tmp_path), "float32", 2, 0)
    assert str(error.value) == said


@pytest.mark.filterwarnings("error")
def test_a_data_loader_reads_a_mapped_file(tmp_path: Path) -> None:
    x, y = next(iter(DataLoader(workers=0).stream(mapped(tmp_path), "float32", 4, 0)))
    assert (x.shape, y.dtype) == ((4, 2, 2, 1), torch.int64)


def test_more_workers_than_cores_are_one_line(tmp_path: Path) -> None:
    """torch warned of them twice, at length and with its own source lines."""
    workers = len(os.sched_getaffinity(0)) + 1
    words = ("dataset=digits", "model=linear", "training.steps=2", "loader=dataloader", f"loader.workers={workers}")
    result = pipeline(tmp_path, *words, "tracking=none")
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr
    assert result.stderr.count(f"\nloader.workers={workers}: this process may use ") == 1


def test_a_copy_begins_one_batch_before_it_is_needed() -> None:
    seen: list[str] = []

    def begin(batch: int) -> int:
        seen.append(f"begin {batch}")
        return batch

    seen.extend(f"step {batch}" for batch in one_ahead(range(3), begin))
    assert seen == ["begin 0", "begin 1", "step 0", "begin 2", "step 1", "step 2"]
    assert list(one_ahead([], begin)) == []


def test_a_batch_is_fetched_when_the_step_before_the_last_is_done() -> None:
    seen: list[str] = []
    given = 0

    def begin(batch: int) -> int:
        seen.append(f"copy {batch}")
        return batch

    def waiter() -> Callable[[], None]:
        return partial(seen.append, f"wait {given}")

    for batch in paced(one_ahead(range(4), begin), waiter):
        given = batch
        seen.append(f"step {batch}")
    assert " ".join(seen) == ("copy 0 copy 1 step 0 copy 2 step 1 wait 0 copy 3 step 2 wait 1 step 3 wait 2")


@pytest.mark.parametrize("backend", ["jax", pytest.param("tensorflow", marks=pytest.mark.wide)])
@pytest.mark.wide
def test_keras_has_two_streamed_steps_in_flight_at_most(backend: str) -> None:
    """A device that has done a step when it is waited for, and not before."""
    code = f"""
import os
os.environ["KERAS_BACKEND"] = "{backend}"
from types import SimpleNamespace as Names
import numpy as np
from pipeline.backends.keras.blocks import feeder
from pipeline.loaders.batch_plan import Plan
from pipeline.loaders.threads import Threads
from pipeline.datasets import Data, Split
from pipeline.tasks.classification import Classification
given = done = 0
most = []
class Engine:
    compile_s = 0.0
    def batch(self, x, y, block):
        global given
        given += 1
        most.append(given - done)
        return 0.0, 0.0
    def waiter(self):
        def wait(step=given):
            global done
            done = max(done, step)
        return wait
    def settle(self):
        global done
        done = given
plan = Plan(examples=40, batch_size=2, steps=20, seed=0)
split = Split(np.zeros((40, 1)), np.zeros(40, int))
data = Data(split, split, split, Classification((1,), ("one",)), "")
experiment = Names(training=Names(batch_size=2), loader=Threads(), seed=0)
profile = Names(loading=lambda stream: stream, steps=lambda batches: batches)
watch = Names(profile=profile, plan=plan, step=0, batches=0, late=False, run=Names(mark=lambda name: None))
watch.blocks, watch.keeper = lambda most: plan.period(0, most), Names(interrupts=lambda: False)
for _ in feeder(Engine(), experiment, data, watch)():
    pass
print(len(most), max(most))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout == "20 2\n", done.stderr


class Stream:
    """Batches of 2 images, the last of 1; it notes what is fetched, and whether it was asked for more at the end."""

    def __init__(self) -> None:
        self.fetched: list[int] = []
        self.ended = 0

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number in range(6):
            self.fetched.append(number)
            size = 2 if number < 5 else 1
            yield np.full((size, 1), number, np.float32), np.full(size, number)
        self.ended += 1


@pytest.mark.parametrize(("steps", "lengths"), [(3, [3, 2, 1]), (1, [1] * 6), (64, [5, 1])])
def test_torch_gets_blocks_whose_batches_are_fetched_step_by_step(steps: int, lengths: list[int]) -> None:
    plan = Plan(examples=11, batch_size=2, steps=12, seed=0)
    experiment: Any = SimpleNamespace(profiler=Off())
    profile = Session(experiment, SimpleNamespace(), plan, lambda _: None)  # type: ignore[arg-type]
    periods = iter(range(2))
    watch = SimpleNamespace(profile=profile, blocks=lambda most: plan.period(next(periods), most))
    module: Any = SimpleNamespace(home=torch.device("cpu"), moved=lambda tensor: tensor, watch=watch)
    stream = Stream()
    fed = StreamedBlocks(module, stream, steps, ahead=True)  # there are no copies on a CPU
    waited: list[int] = []
    fed.waiter = lambda: partial(waited.append, stream.fetched[-1])  # as on a GPU
    for epoch in (1, 2):
        stream.fetched.clear()
        waited.clear()
        ready = list(iter(fed))  # Lightning asks for a block before the last one has run, here for all of them
        assert stream.fetched == []
        found: list[list[int]] = []
        for _, batches in ready:
            found.append([])
            for x, y in batches:
                assert stream.fetched[-1] == int(y[0]) == int(x[0, 0])
                assert waited == list(range(stream.fetched[-1] - 1))
                found[-1].append(int(y[0]))
        assert [len(block) for block in found] == lengths
        assert list(chain(*found)) == list(range(6))
        assert stream.ended == epoch


def batches_of(*sizes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """One epoch."""
    return [(np.zeros((size, 1)), np.zeros(size)) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((4, 4, 2), None),
        ((4, 4), "loader=own: epoch 3 ends after 2 of its 3 batches"),
        ((4, 4, 2, 4), "loader=own: epoch 3 has more than its 3 batches"),
        ((4, 2, 2, 2), "loader=own: epoch 3, batch 2 has 2 examples, not 4 (training.batch_size=4)"),
        ((4, 4, 4), "loader=own: epoch 3, batch 3 has 4 examples, not 2 (training.batch_size=4)"),
    ],
)
def test_a_loader_is_held_to_the_plan(sizes: tuple[int, ...], said: str | None) -> None:
    plan = Plan(examples=10, batch_size=4, steps=12, seed=0)
    for first in (0, 1):
        planned = Planned(batches_of(*sizes[first:]), Own(), plan, (2, first))
        if said is None:
            assert len(list(planned)) == 3 - first
            continue
        with pytest.raises(RunError) as caught:
            list(planned)
        assert str(caught.value) == said


def test_a_process_of_several_is_held_to_its_part_of_a_batch() -> None:
    plan = Plan(examples=10, batch_size=4, steps=12, seed=0)
    part = Group(0, 2).part
    assert len(list(Planned(batches_of(2, 2, 1), Own(), plan, (0, 0), part))) == 3
    with pytest.raises(RunError, match="epoch 1, batch 1 has 4 examples, not 2"):
        list(Planned(batches_of(4, 4, 2), Own(), plan, (0, 0), part))


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Dropping", "epoch 1, batch 1 has 31 examples, not 32 (training.batch_size=32)"),
        pytest.param("Short", "epoch 1 ends after 39 of its 40 batches", marks=pytest.mark.wide),
    ],
)
def test_a_loader_of_ones_own_that_is_wrong_ends_the_run(tmp_path: Path, backend: str, name: str, said: str) -> None:
    write_files(tmp_path, {"conf/loader/mine.yaml": f"_target_: own_loaders.{name}\n"})
    known = {"PIPELINE_MODULES": "own_loaders", "PYTHONPATH": str(Path(__file__).parent)}
    words = ("--config-dir", "conf", *DIGITS, f"backend={backend}", "loader=mine")
    result = pipeline(tmp_path, *words, **known)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == f"error: loader={name.lower()}: {said}"


@given(st.integers(0, 12), st.integers(1, 5), st.integers(1, 3))
def test_what_is_made_ahead_comes_in_order(count: int, most: int, workers: int) -> None:
    begun: list[int] = []
    lock = threading.Lock()

    def make(number: int) -> int:
        with lock:
            begun.append(number)
        return number

    for number, made in enumerate(ahead(make, range(count), most, workers)):
        assert made == number
        assert max(begun) <= number + most
    assert sorted(begun) == list(range(count))


def test_what_fails_ahead_is_raised_where_it_is_asked_for() -> None:
    made = ahead(lambda number: 1 / (2 - number), range(5), 3)
    assert [next(made), next(made)] == [0.5, 1.0]
    with pytest.raises(ZeroDivisionError):
        next(made)
