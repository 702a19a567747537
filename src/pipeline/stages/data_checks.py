"""What only the data show to be wrong, refused before a training begins: in one place for every stage that trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.contracts import Model
from pipeline.datasets import Data
from pipeline.datasets.loading import load_ahead, load_data
from pipeline.errors import UserError, plural
from pipeline.experiment.checks import check_monitor
from pipeline.loaders.batch_plan import Plan
from pipeline.machine.capability import Resolved
from pipeline.models import may_be_too_large
from pipeline.models.patterns import all_but, matches
from pipeline.models.start import SOME, other_model, saved_model
from pipeline.profilers import window
from pipeline.runs import weights
from pipeline.runs.json_files import read_json
from pipeline.runs.start import called
from pipeline.runs.weights import SAFETENSORS
from pipeline.spec import choice, is_shipped
from pipeline.stages import measuring
from pipeline.stages.shapes import check_shapes
from pipeline.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.experiment import Experiment
    from pipeline.models import Shapes

MANY = 1000  # examples: fewer than any dataset of ours has for training, as it comes
TEXT = ("tokens", "pairs of sequences")  # kinds of examples that a vocabulary is of


def rehearse(
    experiment: Experiment,
    resolved: Resolved,
    task: type[Task] | None,
    also: Callable[[Task], object] | None = None,
) -> None:
    """Refuse what only the data show to be wrong. `also`: what else checks their task. Raises UserError.

    Shipped models and metrics are known to work, but not the user's patterns and weights to start from. What is not a
    mistake of the user's is left to the run, which has a journal.
    """
    if not (asks_the_data(experiment) or also):
        return
    with of_user_alone():
        data = load_ahead(experiment)
        check_data(experiment, data, task)
        if also is not None:
            also(data.task)
        if asks_the_model(experiment):
            experiment.backend.load().check_model(experiment, data.task.shapes, resolved)
        elif may_be_too_large(experiment.data_model):
            experiment.backend.load().check_size(experiment, data.task.shapes, resolved)
        if not is_shipped(experiment.loss):
            with experiment.backend.load().loss_of(experiment, resolved) as trained:
                measuring.try_loss(experiment, data, trained)


def rehearse_data(experiment: Experiment, task: type[Task] | None) -> None:
    """`rehearse` without a framework, for a process that leaves the training to others, and keeps no data.

    Raises UserError.
    """
    if asks_the_data(experiment):
        with of_user_alone():
            check_data(experiment, load_data(experiment), task)


@contextmanager
def of_user_alone() -> Iterator[None]:
    """Let the user's mistakes through, and no other error: that is left to the run, which has a journal."""
    try:
        yield
    except UserError:
        raise
    except Exception:
        return


def asks_the_data(experiment: Experiment) -> bool:
    """Whether something of the config can only be checked with the data at hand."""
    training, longest = experiment.training, experiment.schedule.longest()
    data = experiment.data_source
    return (
        asks_the_model(experiment)
        or may_be_too_large(experiment.data_model)
        or not is_shipped(data)
        or data.of_user
        or training.batch_size > MANY
        or (has_own_check(experiment.data_model) and "cache" not in experiment.config["dataset"])  # else: fetched
        or bool(data.user_code or data.user_files)
        or any(map(measuring.asks_the_data, training.metrics))
        or experiment.augmentation.active
        or experiment.inputs.normalise
        or experiment.inputs.folds is not None
        or not is_shipped(experiment.schedule)
        or experiment.loss.asks_the_data
        or not is_shipped(experiment.loss)
        or training.validates_for is not None
        or experiment.profiler.steps > 0
        or (experiment.starting.start is not None and data.task.example_kind in TEXT)
        or (longest is not None and longest[1] > 0 and training.steps is None)
    )


def asks_the_model(experiment: Experiment) -> bool:
    """Whether something of the config can only be checked with the model built for the data."""
    own = not (is_shipped(experiment.model) and is_shipped(experiment.optimizer))
    return own or experiment.starting.active or experiment.optimizer.asks_the_model


def has_own_check(model: Model) -> bool:
    """Whether a model can say, without being built, for which examples it is."""
    return type(model).check_shapes is not Model.check_shapes


def check_data(experiment: Experiment, data: Data, task: type[Task] | None) -> None:
    """Refuse data that do not fit the settings. `task`: what the stage's data have to be of. Raises UserError."""
    check_task(experiment, data, task)
    check_settings(experiment, data)
    measuring.try_metrics(experiment.training.metrics, data)  # in a grid's cell for the first time
    measuring.try_loss(experiment, data)


def check_task(experiment: Experiment, data: Data, task: type[Task] | None) -> None:
    """Refuse data of another task than the dataset and the stage say. Raises UserError."""
    for who, wanted in (
        (f"dataset={choice(experiment.dataset)}", experiment.data_source.task),
        (f"stage={choice(experiment.stage)}", task),
    ):
        if wanted is not None and not isinstance(data.task, wanted):
            raise UserError(f"{who}: its task is {wanted.__name__}, and load() gave data of {type(data.task).__name__}")


def check_settings(experiment: Experiment, data: Data) -> None:
    """What only the data can tell. Raises UserError."""
    training, examples = experiment.training, len(data.train)
    if training.batch_size > examples:
        raise UserError(
            f"training.batch_size={training.batch_size}: larger than the {examples:,} training examples; "
            f"choose 1 to {examples}"
        )
    check_shapes(experiment, data.task.shapes)
    experiment.loss.check(data.task)
    check_vocabulary(experiment, data.task)
    check_validation(experiment, data)
    plan = Plan.of(experiment, examples)
    _check_smallest_batch(experiment, data.task.shapes, plan)
    window(experiment.profiler, plan)


def _check_smallest_batch(experiment: Experiment, shapes: Shapes, plan: Plan) -> None:
    """Refuse a batch, mostly the last of an epoch, of fewer examples than the model needs. Raises UserError."""
    least, size = experiment.data_model.least_batch(shapes), plan.batch_size
    last = plan.total_batches > plan.whole_batches
    # Each process of such a backend normalises its own rows; where there are too few, it has one that counts nothing.
    processes = experiment.device.processes if experiment.backend.distributes else 1
    smallest = plan.examples % size if last else size
    if (part := max(smallest // processes, 1)) >= least:
        return
    has = f"{'the last batch of an epoch' if last else 'a batch'} has {plural(smallest, 'example')}"
    has += f", {part} of them in a process" if processes > 1 else ""
    larger, least_rows = range(size + 1, plan.examples + 1), least * processes
    fitting = next((one for one in larger if one >= least_rows and not 0 < plan.examples % one < least_rows), None)
    choose = "give more training examples" if fitting is None else f"choose training.batch_size={fitting}, for example"
    raise UserError(
        f"training.batch_size={size}: {has}, and model={choice(experiment.model)} needs {least} of "
        f"this shape, to have a variance; {choose}"
    )


ROWS = 10_000  # of a table that may be larger than memory
OUTWEIGHS = 100  # times the spread of the others


def said_of_scales(experiment: Experiment, data: Data) -> str | None:
    """Where a column of a table outweighs the others and nothing normalises it; a model of the user's may do so.

    Measured with model=mlp on scikit-learn's wine, breast cancer and iris, as they are or with one column multiplied,
    30 epochs, two seeds: from 100 times on, dataset.normalise=true gained 0.02 to 0.25 of accuracy on all eight tables.
    """
    x = data.train.x[:ROWS]
    given = x.ndim != 2 or data.task.shapes.vocabulary is not None or data.scale or data.normalisation is not None
    if given or experiment.starting.start is not None or not is_shipped(experiment.model):
        return None
    spread = np.std(x, axis=0, dtype=np.float64)
    widest = int(spread.argmax())
    others = np.delete(spread, widest)
    usual = np.median(others[others > 0]) if others.any() else np.inf  # of a single one it has none to outweigh
    if spread[widest] < OUTWEIGHS * max(usual, 1.0):
        return None
    name = data.columns[widest] if data.columns else f"column {widest} of x"
    return (
        f"dataset={choice(experiment.dataset)}: {name} spreads over {spread[widest]:,.3g} (standard deviation), most "
        f"others over {usual:,.3g}, so that it outweighs them; dataset.normalise=true gives all of them the same"
    )


OF_TOKENS = ("tokens.embeddings", "logits.kernel")  # weights that have a row or a column for each token


def check_vocabulary(experiment: Experiment, task: Task) -> None:
    """Refuse to start from a saved run whose tokens stand for other text. Raises UserError."""
    start = experiment.starting
    now = task.card().get("tokens")
    if start.start is None or now is None:
        return
    if start.start_layers and not any(matches(name, one) for name in OF_TOKENS for one in start.start_layers):
        return
    saved = read_json(Path(start.start).parent / "card.json").get("tokens", now)
    if saved != now:
        _check_model(experiment)
        dataset = f"dataset={choice(experiment.dataset)} ({_described(now, saved)})"
        raise UserError(
            f"model.start={called(start.start)}: it was trained with another vocabulary ({_described(saved, now)}) "
            f"than that of {dataset}; {_instead(experiment, Path(start.start))}"
        )


def _check_model(experiment: Experiment) -> None:
    """Refuse all weights of another model of this package: no vocabulary makes them fit. Raises UserError.

    Those of a class of the user's may fit, such as one that is written after a shipped one.
    """
    starting, model = experiment.starting, experiment.model
    start = Path(str(starting.start))
    other = other_model(start, experiment.config["model"])
    shipped = is_shipped(model) and str(saved_model(start).get("_target_")).startswith("pipeline.")
    if other and shipped and not starting.start_layers:
        raise UserError(
            f"model.start={called(start)}: weights of another model: that run has model={other}, this one "
            f"model={choice(model)}; {SOME}"
        )


def _instead(experiment: Experiment, start: Path) -> str:
    """What would go with the weights of a saved run."""
    from pipeline.datasets.corpus import Corpus

    taken = SOME
    if start.suffix != SAFETENSORS:  # which has a framework's own names
        layers = all_but((name.partition(".")[0] for name in OF_TOKENS), weights.load(start))
        taken = f"model.start_layers={layers} takes all but tokens and logits"
    if not isinstance(experiment.data_source, Corpus):
        return taken
    return f"dataset.tokens=<that run> uses that run's, dataset.tokens=bytes is the same for every text, and {taken}"


def _described(tokens: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Its kind; of an alphabet also a character that the other lacks."""
    alphabets = [set(one.get("alphabet", "")) for one in (tokens, other)]
    if tokens["kind"] != other["kind"] or not all(alphabets):
        return str(tokens["kind"])
    more = sorted(alphabets[0] - alphabets[1])
    return f"{len(alphabets[0])} characters{f', {more[0]!r} among them' if more else ''}"


def check_validation(experiment: Experiment, data: Data) -> None:
    """Refuse what needs a validation that the data or the task do not allow. Raises UserError."""
    check_monitor(experiment.training, data.task.score)
    key = experiment.training.validates_for
    if key is not None and not len(data.validation):
        dataset = choice(experiment.dataset)
        raise UserError(f"{key} with dataset={dataset}: it holds no examples out for validation; leave it out")
