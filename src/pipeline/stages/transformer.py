"""stage=transformer: train a language model on text, and measure beside it what needs no training by gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, Field, PositiveInt

from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.models.gpt import Gpt
from pipeline.runs.beside import beside, joined
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import build_as, choice, spec
from pipeline.stages.train import Train

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.stages.training_samples import Written
    from pipeline.tasks import Task


@spec
class Samples:
    """`prompt`: a text, or several, behind which the model writes after each validation (None: it writes nothing).

    `tokens`, `temperature`, `seed`: as those of stage=generate. None of it changes a bit of the training.
    """

    prompt: str | tuple[str, ...] | None = None
    tokens: PositiveInt = 100
    temperature: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 0

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompts as a tuple, also where a single one was given."""
        return (self.prompt,) if isinstance(self.prompt, str) else self.prompt or ()

    def written(self) -> Written:
        """What is written, for whoever writes it."""
        from pipeline.backends.shared.sampling import Sampling
        from pipeline.stages.training_samples import Written

        return Written(self.prompts, self.tokens, Sampling(self.temperature, seed=self.seed))


def _samples(value: object) -> object:
    return build_as(Samples, value, "stage.samples") if isinstance(value, Mapping) else value


@spec
class Transformer(Train):
    """stage=train for a dataset of tokens; any other is refused.

    `baselines`: measure n-grams and xz on the same text (of a dataset of ours). `attention`: draw the maps of a
    sentence of the test text, of model=gpt. `samples`: what the model writes while it is trained.
    """

    headline: ClassVar[str] = "test/bits_per_byte"
    locations: ClassVar[tuple[str, ...]] = ("samples",)  # which changes nothing of the result
    imports: ClassVar[tuple[str, ...]] = (
        *Train.imports,
        "pipeline.stages.transformer_extras",
        "pipeline.stages.training_samples",
    )

    baselines: bool = True
    attention: bool = True
    samples: Annotated[Samples, BeforeValidator(_samples)] = Field(default_factory=Samples)

    @property
    def task(self) -> type[Task]:
        from pipeline.tasks.language_modelling import LanguageModelling

        return LanguageModelling

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse settings of samples that nothing reads, and what other models or texts would not have."""
        from pipeline.datasets.corpus import Corpus

        super().check_keys(experiment, keys)
        if "stage.attention" in keys and self.attention and not isinstance(experiment.model, Gpt):
            raise UserError(
                f"stage.attention=true with model={choice(experiment.model)}: maps are drawn of model=gpt alone; "
                "leave it out"
            )
        for name in ("baselines", "attention"):
            if f"stage.{name}" in keys and getattr(self, name) and not isinstance(experiment.dataset, Corpus):
                raise UserError(
                    f"stage.{name}=true with dataset={choice(experiment.dataset)}: for the texts of this package "
                    "alone; leave it out"
                )
        if "stage.samples.seed" in keys and not self.samples.temperature:
            raise UserError("stage.samples.seed with stage.samples.temperature=0: nothing is drawn at random")
        for key in keys:
            if key.startswith("stage.samples.") and key != "stage.samples.prompt" and not self.samples.prompts:
                raise UserError(f"{key}: without stage.samples.prompt no samples are written; give a text there")

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """As stage=train, and prompts that the model could not go on with."""
        from pipeline.stages import data_checks, training_samples

        also = partial(training_samples.tokens_of, self.samples.prompts) if self.samples.prompts else None
        data_checks.rehearse(experiment, resolved, self.task, also)

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Train and measure. Raises as stage=train."""
        from pipeline.stages import course, training_samples, training_table, transformer_extras

        written = self.samples.written() if self.samples.prompts else None
        watched = None if written is None else partial(training_samples.Sampler, written, experiment, resolved, run)
        result = course.train(experiment, resolved, run, probe=self.probe, task=self.task, watched=watched)
        measured = partial(transformer_extras.utilization, experiment, resolved, run, result)
        found = [beside("utilization: not measured", measured)]
        if self.baselines:
            measured = partial(transformer_extras.baselines, experiment, run)
            found.append(beside("baselines: not measured", measured))
        if self.attention:
            found.append(beside("attention: not drawn", partial(transformer_extras.draw_attention, experiment, run)))
        also = joined(found)
        tested = 1 + max(number for number, (name, _) in enumerate(result.table) if name.startswith("test "))
        whole = replace(
            result,
            metrics=(*result.metrics, *also.metrics),
            notes=(*result.notes, *also.notes),
            table=(*result.table[:tested], *also.table, *result.table[tested:]),
            failed=result.failed or also.failed,
        )
        return training_table.timed_to_now(run, whole)
