"""Samples while training: what the model writes behind a prompt after each validation: `stage.samples`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.backends.shared.generation import Uncached, generate
from pipeline.backends.shared.sampling import Sampling
from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.runs.beside import beside
from pipeline.runs.run import Run
from pipeline.runs.weights import Weights
from pipeline.stages.generate import Card, encoded, has_cache, steps_of
from pipeline.stages.generated_text import readable
from pipeline.tasks import Task
from pipeline.tasks.language_modelling import LanguageModelling

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@dataclass(frozen=True)
class Written:
    """What is written: so many tokens behind each of the prompts, by these draws."""

    prompts: tuple[str, ...]
    tokens: int
    sampling: Sampling


class Sampler:
    """Writes artifacts/samples/step-<step>.txt, and the same on the terminal."""

    def __init__(self, written: Written, experiment: Experiment, resolved: Resolved, run: Run, task: Task) -> None:
        self.written, self.experiment, self.resolved, self.run = written, experiment, resolved, run
        self.card, self.tokens = tokens_of(written.prompts, task)
        self.steps: Any = None
        self.over = False

    def __call__(self, step: int, weights: Weights) -> None:
        """Let the model that has these weights write. What fails here ends the samples, and not the training."""
        if self.over:
            return
        found = beside("stage.samples", lambda: self._write(step, weights))
        for said in (*found.notes, *filter(None, (found.failed,))):
            self.over = True
            self.run.note(f"{said}; from step {step:,} on none is written")

    def _write(self, step: int, weights: Weights) -> None:
        started = time.perf_counter()
        written, model = self.written, self._with(weights)
        found = generate(model, self.tokens, self.card.context, written.tokens, written.sampling)
        texts = []
        for prompt, tokens, row in zip(written.prompts, self.tokens, found.rows, strict=True):
            texts.append(prompt.encode() + self.card.tokens.decode(np.array(row.tokens[len(tokens) :])))
        self.run.artifact(f"samples/step-{step:07}.txt").write_bytes(b"\n\n".join(texts) + b"\n")
        for text in texts:
            self.run.say(f"sample at step {step:,}: {readable(text)}")
        self.run.marks["samples_s"] = self.run.marks.get("samples_s", 0.0) + time.perf_counter() - started

    def _with(self, weights: Weights) -> Any:
        """The model: compiled once, where its backend compiles, and then given other weights."""
        if self.steps is None or isinstance(self.steps, Uncached):
            cached = has_cache(self.experiment)
            self.steps = steps_of(self.experiment, self.card, weights, self.resolved, cached=cached)
        else:
            self.steps.put(weights)
        return self.steps


def tokens_of(prompts: Sequence[str], task: Task) -> tuple[Card, list[np.ndarray]]:
    """What the model takes, and the prompts' tokens. Raises UserError for tokens that stand for no text."""
    if not isinstance(task, LanguageModelling) or task.tokens is None:
        raise UserError("stage.samples.prompt: the tokens of this dataset stand for no text; leave it out")
    card = Card(task.length, task.vocabulary, task.tokens)
    return card, encoded(prompts, card, "stage.samples.prompt")
