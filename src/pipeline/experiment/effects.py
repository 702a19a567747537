"""Settings that have no effect, or less of one than whoever sets them may expect: refused, or said before the training.

One that nothing reads is refused where the user has set it, unless the keys by which it would be read are the user's
too: a grid may vary those, or their whole group. How long the training is decides about the others, and is often
changed for a trial run, so that these are only said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import UserError, plural
from pipeline.experiment.training import Training
from pipeline.machine.others import allowed_cores
from pipeline.spec import choice, group_of

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

INITIAL_SHARE = 0.05  # of the initial weights in a moving average; after 3 / (1 - ema) steps it is that small


@dataclass(frozen=True)
class Unread:
    """A setting that nothing reads, what would make it count, and the keys of that."""

    key: str
    why: str
    instead: str
    read_by: tuple[str, ...]


def check_read(experiment: Experiment, keys: Sequence[str], swept: Sequence[str] = ()) -> None:
    """Refuse what the user has set (`keys`) and nothing reads. `swept`: in what a grid's cells differ.

    Raises UserError.
    """
    for one in _unread(experiment, keys):
        varied = {*keys, *swept}.intersection(one.read_by) or set(swept).intersection(map(group_of, one.read_by))
        if one.key in keys and not varied:
            raise UserError(f"{one.why}; set {one.instead}, or leave it out")


def refuse_unread(why: Mapping[str, str], beside: str) -> None:
    """Refuse keys that nothing reads, all in one message. `why`: by key; `beside`: the choice that does not read them.

    Raises UserError.
    """
    if not why:
        return
    together: dict[str, list[str]] = {}
    for key, reason in why.items():
        together.setdefault(reason, []).append(key)
    (reason, keys), *others = together.items()
    said = [f"{', '.join(keys)} with {beside}: {reason}", *(f"{', '.join(keys)}: {reason}" for reason, keys in others)]
    raise UserError(f"{'; '.join(said)}; leave {'it' if len(why) == 1 else 'them'} out")


def of_settings(experiment: Experiment, keys: Sequence[str]) -> list[str]:
    """What to say of settings that nothing reads; `keys`: those that the user has set."""
    training = experiment.training
    notes = [one.why for one in _unread(experiment, keys)]
    changed = "augmentation" in map(group_of, keys) and choice(experiment.augmentation) != "none"
    if changed and not experiment.augmentation.active:
        notes.append(f"augmentation={choice(experiment.augmentation)}: changes nothing with these settings")
    if training.steps is not None and "training.epochs" in keys:
        notes.append(f"training.epochs={training.epochs}: training.steps={training.steps} replaces it")
    if choice(experiment.loader) == "dataloader":
        notes += of_workers("loader.workers", getattr(experiment.loader, "workers", 0), len(allowed_cores()))
    return notes


def of_workers(key: str, workers: int, cores: int) -> list[str]:
    """What to say of the processes of torch's DataLoader, where they are more than the cores."""
    if workers <= cores:
        return []
    return [
        f"{key}={workers}: this process may use {plural(cores, 'core')}; more workers than cores take time to start "
        "and memory, and seldom gain"
    ]


def of_length(training: Training, steps: int, validations: int, batches: int) -> list[str]:
    """What to say of settings that a training of so many optimizer steps and validations is too short for.

    `batches`: of the training set.
    """
    notes = []
    if training.accumulate > batches:
        notes.append(
            f"training.accumulate={training.accumulate}: the training set has {plural(batches, 'batch')}, so a step "
            f"takes all of them, and the training has {plural(steps, 'step')}; training.steps sets how many"
        )
    if training.ema is not None and training.ema**steps > INITIAL_SHARE:
        notes.append(
            f"training.ema={training.ema}: averages over about {1 / (1 - training.ema):,.0f} steps, 1 / (1 - ema), and "
            f"the training has {steps:,}: {training.ema**steps:.0%} of what is saved is the initial weights"
        )
    every = training.validate_every
    if every is not None and every > steps:
        notes.append(f"training.validate_every={every}: the training has {steps:,} steps and is validated at its end")
    if training.patience is not None and training.patience >= validations - 1:
        several = plural(validations, "validation")
        notes.append(f"training.patience={training.patience}: never ends a training of {several}")
    if training.weights == "best" and validations == 1:
        notes.append("training.weights=best: the training is validated once, at its end, so that the last are kept")
    return notes


def tokens_of(experiment: Experiment) -> str | None:
    """What a token is, of the texts of this package; None of other datasets, whose settings may have the same name."""
    dataset = experiment.dataset
    ours = type(dataset).__module__.startswith("pipeline.datasets.")
    return getattr(dataset, "tokens", None) if ours else None


def _unread(experiment: Experiment, keys: Sequence[str]) -> list[Unread]:
    training, optimizer, found = experiment.training, experiment.optimizer, list[Unread]()
    if not experiment.reads("training") or experiment.stage.starts_from_run:
        return found
    chosen = "training.monitor" in keys or training.monitor != Training.monitor
    if chosen and training.validates_for is None:
        why = f"training.monitor={training.monitor}: has no effect without early stopping or the best weights"
        instead = "training.patience=5 or training.weights=best"
        found.append(Unread("training.monitor", why, instead, ("training.patience", "training.weights")))
    if optimizer.decay != "all" and getattr(optimizer, "weight_decay", None) == 0:
        why = f"optimizer.decay={optimizer.decay}: nothing decays with optimizer.weight_decay=0"
        found.append(Unread("optimizer.decay", why, "optimizer.weight_decay=0.01", ("optimizer.weight_decay",)))
    tokens = tokens_of(experiment)
    if "dataset.vocabulary" in keys and tokens not in (None, "bpe"):
        why = f"dataset.vocabulary: says how many byte pairs to learn, and dataset.tokens={tokens} learns none"
        found.append(Unread("dataset.vocabulary", why, "dataset.tokens=bpe", ("dataset.tokens",)))
    return found
