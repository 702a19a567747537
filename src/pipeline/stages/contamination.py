"""Test contamination: whether the weights or tokens that a training starts from were learned from its test set.

The training splits of the earlier runs are loaded again from their configs and compared with the test: examples by
their bytes, text by fingerprints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.contracts import Dataset
from pipeline.datasets import Data
from pipeline.datasets.corpus import Corpus
from pipeline.datasets.documents import sha256
from pipeline.datasets.duplicates import hashes, overlap
from pipeline.datasets.loading import loaded
from pipeline.datasets.text_overlap import common
from pipeline.errors import Readable, UserError
from pipeline.experiment import load
from pipeline.machine.cache_folder import cache_root
from pipeline.models import PADDING
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_config
from pipeline.tokens import KINDS

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

LEAST = 0.02  # of a text: licences and headings occur in many
OPTIMISTIC = "the test result is optimistic"
UNKNOWN = "contamination of this test cannot be ruled out"


def said_of_contamination(experiment: Experiment, data: Data, receipt: Mapping[str, Any]) -> Iterator[str]:
    """For people: how much of this test earlier runs were trained on. `receipt`: this run's, with its data's hashes."""
    dataset = experiment.data_source
    for file in starts(experiment.config):
        if not lineage([file]):
            yield f"model.start: {file} is in no run's folder, so that what it was trained on is not known: {UNKNOWN}"
    for run in lineage(starts(experiment.config)):
        said = _contamination(run, experiment, data, receipt)
        if said is not None:
            yield f"model.start: {run.name} was trained on {said}"
    if not isinstance(dataset, Corpus) or dataset.tokens in KINDS or dataset.kind != "bpe":
        return  # they are learned from this run's own text, or not at all
    for run in lineage([dataset.tokens])[:1]:
        said = _contamination(run, experiment, data, receipt)
        if said is not None:
            yield f"dataset.tokens: those of {run.name} were learned from {said}"


def lineage(files: Sequence[str]) -> list[Path]:
    """The folders of the runs that have these among their artifacts, and of those that they started from in turn."""
    left, found = list(files), list[Path]()
    while left:
        of = next((folder for folder in Path(left.pop(0)).parents if (folder / "receipt.json").is_file()), None)
        if of is not None and of not in found:
            found.append(of)
            left += starts(read_config(of))
    return found


def starts(config: Mapping[str, Any]) -> list[str]:
    """The files of weights and of adapters that a training starts from."""
    model = config.get("model")
    node = model if isinstance(model, dict) else {}
    adapters = node.get("adapters")
    named = [node.get("start"), adapters.get("start") if isinstance(adapters, dict) else None]
    return [one for one in named if isinstance(one, str)]


def _contamination(run: Path, experiment: Experiment, data: Data, receipt: Mapping[str, Any]) -> str | None:
    """How much of the test an earlier run was trained on, in words; None where no overlap was found."""
    then = read_json(run / "receipt.json")
    if then.get("data_sha256") is None:  # of stage=lightning or stage=keras
        return f"data that its receipt does not identify: {UNKNOWN}"
    of_both = [(one.get("data_sha256"), one.get("held_out", {}).get("test")) for one in (then, receipt)]
    if of_both[0] == of_both[1]:
        return None
    try:
        before = load(read_config(run))
        return _of_data(before.data_source, before.seed, then.get("data_sha256"), experiment, data)
    except Readable as error:
        return f"data that cannot be loaded as they were ({error}): {UNKNOWN}"


def _of_data(dataset: Dataset, seed: int, known_by: Any, experiment: Experiment, data: Data) -> str | None:
    """How much of the test is in the training split of `dataset`, in words. Raises UserError where its data changed."""
    now = experiment.data_source
    if isinstance(dataset, Corpus) and isinstance(now, Corpus):
        trained, tested = _text(dataset, seed, known_by).train, _text(now, experiment.seed, data.sha256).test
        share = common(trained, tested)
        return f"about {share:.0%} of this test text (contamination): {OPTIMISTIC}" if share >= LEAST else None
    before = loaded(dataset, seed)
    _check(before.sha256, known_by)
    trained, tested = (
        hashes(x, PADDING if of.holds_tokens else None) for of, x in ((before, before.train.x), (data, data.test.x))
    )
    count = overlap(tested, trained)
    return f"{count:,} of the {len(data.test):,} test examples (contamination): {OPTIMISTIC}" if count else None


def _text(dataset: Corpus, seed: int, known_by: Any) -> Any:
    root = cache_root(dataset.cache)
    documents = dataset.documents(root)
    _check(sha256(documents), known_by)
    return dataset.texts(documents, seed, root)


def _check(now: str, then: Any) -> None:
    if now != then:
        raise UserError("they have changed since")
