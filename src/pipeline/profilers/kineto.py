"""torch's profiler (Kineto), started and stopped without its messages on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._inductor.config  # as torch's profiler does when it starts: here, a sweep's worker has it before it forks
from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.machine.quiet import captured_stderr
from pipeline.profilers import Subject, Tool


class Kineto(Tool):
    """torch's profiler over a window; `written(profile, device type, window)` makes files of what it found.

    `stacks` follows Python's calls as well, which costs most of the time.
    """

    def __init__(self, written: Callable[..., None], *, shapes: bool, memory: bool, stacks: bool) -> None:
        self.written = written
        # Without `verbose` torch 2.13 collects no stacks, whatever with_stack says.
        verbose = torch._C._profiler._ExperimentalConfig(verbose=True) if stacks else None
        self.settings = {
            "record_shapes": shapes,
            "profile_memory": memory,
            "with_stack": stacks,
            "experimental_config": verbose,
        }

    def attach(self, subject: Subject) -> None:
        self.device = torch.device(subject.place.torch).type

    @property
    def activities(self) -> list[ProfilerActivity]:
        """What is recorded: the CPU, and the GPU on which the steps run."""
        return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.device == "cuda" else [])]

    def start(self) -> None:
        self.profile = profile(activities=self.activities, **self.settings)  # type: ignore[arg-type]
        with captured_stderr():
            self.profile.start()

    def stop(self) -> None:
        with captured_stderr():
            self.profile.stop()

    def write(self, window: Mapping[str, Any]) -> None:
        self.written(self.profile, self.device, window)

    def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
        return record_function(f"step {number}")

    def phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return record_function(name)
