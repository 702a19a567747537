"""stage=generate: what a saved language model writes behind the user's prompts."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from pipeline import tokens as vocabularies
from pipeline.backends.shared.generation import Steps, Uncached, generate
from pipeline.backends.shared.sampling import Sampling
from pipeline.contracts import Model, Stage, defines, offers
from pipeline.contracts.physics import Problem
from pipeline.errors import UserError, shown
from pipeline.machine.capability import Resolved
from pipeline.machine.installed import check_installed
from pipeline.models import Shapes
from pipeline.runs import receipt, weights
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.runs.saved import card_sha256, check_hashes, check_outputs, saved_card, saved_weights
from pipeline.runs.source_rows import source_rows
from pipeline.spec import choice, group_of, spec
from pipeline.stages.generated_text import Stops, Text, about, metrics, rows, write
from pipeline.tasks.language_modelling import LanguageModelling
from pipeline.tokens import Tokens

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

BY = "generate"  # the module of each backend that makes tokens


@dataclass(frozen=True)
class Card:
    """What a saved language model takes. `context`: the most tokens that it sees."""

    context: int
    vocabulary: int
    tokens: Tokens


@spec
class Generate(Stage):
    """`prompt`: a text, or several. `tokens`: how many to write after each. `temperature`: 0 takes the most probable.

    `top_k`, `top_p`: leave improbable tokens out (None: none). `seed`: of the draws. `stop`: texts, and `stop_tokens`:
    tokens by number, before which a text ends. `cache`: keep keys and values; without, all is computed for each token.
    """

    prompt: str | tuple[str, ...] | None = None
    tokens: PositiveInt = 200
    temperature: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    top_k: PositiveInt | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    stop: str | tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    cache: bool = True

    starts_from_run: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("backend", "device", "precision", "model")  # the text is not read again
    by: ClassVar[str] = BY
    headline: ClassVar[str] = "decode/tokens_per_s"
    makes: ClassVar[str | None] = "text"  # a rate says nothing of its quality

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts at any of which a generated text ends."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompts as a tuple, also where a single one was given."""
        return (self.prompt,) if isinstance(self.prompt, str) else self.prompt or ()

    def needs_less(self) -> str:
        return "use fewer prompts in stage.prompt, or a smaller precision"

    def check(self, experiment: Experiment) -> None:
        """Refuse a run that is not a language model of text, and prompts that none can go on with."""
        source = Path(str(experiment.settings.run))
        if isinstance(experiment.dataset, Problem):
            raise UserError(f"run={source.name}: solved a problem; stage=generate takes a language model of text")
        if not issubclass(experiment.data_source.task, LanguageModelling):
            raise UserError(
                f"run={source.name}: its task is {experiment.data_source.task.__name__}; "
                "stage=generate takes a language model of text, as dataset=moby_dick model=gpt trains"
            )
        if self.temperature == 0:
            for key, value in (("top_k", self.top_k), ("top_p", self.top_p)):
                if value is not None:
                    raise UserError(
                        f"stage.{key}={value} with stage.temperature=0: takes the most probable token; leave it out"
                    )
        if not self.prompts:
            raise UserError(f'stage.prompt={shown(self.prompt)}: give a text, as stage.prompt="Call me"')
        refuse_empty(self.prompts, "stage.prompt")
        if "" in self.stops:
            raise UserError("stage.stop='': is empty; every text would end at once")

    def check_source(self, experiment: Experiment, source: Path) -> None:
        """Refuse what the model's tokens cannot write."""
        card = read_card(source)
        encoded(self.prompts, card, "stage.prompt")
        self._check_tokens(card)

    def data_sha256(self, experiment: Experiment) -> str:
        """Hash of the prompts."""
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse what would not be followed: nothing is measured here, and no data are read."""
        greedy = "stage.temperature=0" if self.temperature == 0 else "stage.top_k=1" if self.top_k == 1 else None
        for key in keys:
            if group_of(key) in ("training", "dataset"):
                raise UserError(f"{key} with stage=generate: it reads no data and measures nothing; leave it out")
            if greedy and key in ("stage.seed", "stage.temperature", "stage.top_p") and not greedy.startswith(key):
                value = getattr(self, key.removeprefix("stage."))
                raise UserError(f"{key}={value} with {greedy}: nothing is drawn at random; leave it out")

    def _check_tokens(self, card: Card) -> None:
        """Refuse numbers that no token has, and stop texts that no tokens make."""
        if self.top_k is not None and self.top_k > card.vocabulary:
            raise UserError(
                f"stage.top_k={self.top_k}: the model knows {card.vocabulary:,} tokens; choose 1 to {card.vocabulary}"
            )
        for token in self.stop_tokens:
            if not 0 <= token < card.vocabulary:
                raise UserError(f"stage.stop_tokens={token}: tokens are 0 to {card.vocabulary - 1}")
        for text in self.stops:
            card.tokens.encode(text.encode(), f"stage.stop={shown(text)}")

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Generate. Raises UserError for a model that its run did not save, RunError for logits that are not finite."""
        source = Path(str(experiment.settings.run))
        saved, card = saved_weights(source), read_card(source)
        notes = check_hashes(source, {"weights": weights.digest(saved), "card": card_sha256(saved_card(source))})
        cached = self.cache and has_cache(experiment)
        prompts = encoded(self.prompts, card, "stage.prompt")
        stops = Stops(card.tokens, self.stops, self.stop_tokens, len(prompts))

        def check(logits: np.ndarray) -> None:
            check_outputs(logits, "prompt {}", 1, source, resolved.precision)

        steps = steps_of(experiment, card, saved, resolved, cached=cached)
        sampling = Sampling(self.temperature, self.top_k, self.top_p, self.seed)
        found = generate(steps, prompts, card.context, self.tokens, sampling, stops.ended, check)
        made = zip(found.rows, prompts, stops.texts, strict=True)
        texts = [Text(row, len(prompt), text) for row, prompt, text in made]
        write(run, self.prompts, texts)
        kept = receipt.of_saved(experiment, resolved, saved, self.data_sha256(experiment))
        run.journal.write_receipt({**kept, "generation": about(found, texts, cached=cached)})
        table = [*rows(self.prompts, texts, found, resolved), *source_rows(source)]
        return Result(metrics(found), tuple(table), (*notes, *self._notes(experiment, card, texts, cached=cached)))

    def _notes(self, experiment: Experiment, card: Card, texts: Sequence[Text], *, cached: bool) -> list[str]:
        """What a reader of the texts should know of how they came about."""
        found = []
        if self.cache and not cached:
            found.append(f"model={choice(experiment.model)}: has no cache; everything is computed again for each token")
        moved = max(text.row.moved for text in texts)
        if moved:
            times = "once" if moved == 1 else f"{moved:,} times"
            found.append(
                f"the context of {card.context:,} tokens was full {times}: from then on the model saw only the newer "
                "half"
            )
        return found


def read_card(source: Path) -> Card:
    """What the model of a saved run takes. Raises UserError where it is not a language model of text."""
    card = saved_card(source)
    if not {"task", "x", "outputs"} <= card.keys():
        raise UserError(f"run={source.name}: holds no trained model (artifacts/model/card.json is missing or damaged)")
    if card.get("tokens", {}).get("kind") == "bpe":
        check_installed({"dataset.tokens=bpe": ("tokenizers",)})
    if "tokens" not in card:
        raise UserError(
            f"run={source.name}: its tokens stand for no text; stage=generate takes a language model of text"
        )
    return Card(int(card["x"][0]), int(card["vocabulary"]), vocabularies.from_plain(card["tokens"]))


def refuse_empty(texts: Sequence[str], key: str) -> None:
    """Refuse a prompt without a character. Raises UserError."""
    if "" in texts:
        raise UserError(f"{key}='': is empty; the model needs one token at least to go on")


def encoded(texts: Sequence[str], card: Card, key: str) -> list[np.ndarray]:
    """The tokens of the prompts that a key gives. Raises UserError."""
    refuse_empty(texts, key)
    found = []
    for text in texts:
        who = f"{key}={shown(text)}"
        tokens = card.tokens.encode(text.encode(), who)
        if len(tokens) > card.context:
            raise UserError(
                f"{who}: has {len(tokens):,} tokens, and the model was trained on sequences of {card.context:,}; "
                "give a shorter one"
            )
        found.append(tokens)
    return found


def has_cache(experiment: Experiment) -> bool:
    """Whether the model can keep keys and values on this backend."""
    return defines(experiment.data_model, Model, f"{experiment.backend.builder}_cached")


def steps_of(experiment: Experiment, card: Card, saved: weights.Weights, resolved: Resolved, *, cached: bool) -> Steps:
    """The saved model, with a cache or without, in the run's backend."""
    shapes = Shapes((card.context,), (card.context, card.vocabulary), vocabulary=card.vocabulary)
    loaded = experiment.backend.load()
    if not cached:
        # Ours take windows of any length on torch; Keras has compiled the context's, and so may a model of the user's.
        any_length = experiment.backend.name == "torch" and offers(experiment.data_model, Model.torch_cached)
        predict = loaded.predictor(experiment, shapes, saved, resolved)
        return Uncached(predict, card.context, None if any_length else card.context)
    module = importlib.import_module(experiment.backend.module(BY))
    made: Steps = module.Steps(experiment, shapes, saved, resolved)
    return made
