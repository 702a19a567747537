"""Contamination: whether the weights or tokens that a training starts from were learned from what it holds out.

The training splits of the earlier runs are loaded again from their configs and compared with its validation and its
test: examples by their bytes, text by fingerprints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.datasets import Data
from pipeline.datasets.corpus import Corpus, Divided
from pipeline.datasets.documents import sha256
from pipeline.datasets.duplicates import hashes, in_one_dtype, overlap
from pipeline.datasets.loading import loaded
from pipeline.datasets.text_overlap import LEAST, OPTIMISTIC, common
from pipeline.errors import Readable, UserError
from pipeline.experiment import load
from pipeline.machine.cache_folder import cache_root
from pipeline.models import PADDING
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_config
from pipeline.runs.result import read_result
from pipeline.runs.saved import saved_card
from pipeline.runs.start import SAVED
from pipeline.tokens import KINDS

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

UNKNOWN = "contamination of what is held out here cannot be ruled out"
UNKNOWN_BEFORE = "contamination of this test cannot be ruled out"  # in the words of older versions


def said_of_contamination(experiment: Experiment, data: Data, receipt: Mapping[str, Any]) -> Iterator[str]:
    """For people: how much of this test and validation earlier runs were trained on. `receipt`: this run's, with the
    hashes of its data."""
    found, lost = lineage(starts(experiment.config))
    for file in lost:
        yield f"model.start: {file} is in no run's folder; what it was trained on is not known: {UNKNOWN}"
    for run in found:
        for said in _contamination(run, experiment, data, receipt):
            yield f"model.start: {run.name} was trained on {said}"
    if not isinstance(experiment.data_source, Corpus) or experiment.data_source.kind != "bpe":
        return  # an alphabet says little of a text
    learner, tokens = learned_by(experiment.data_source.tokens)
    if learner is not None:
        for said in _contamination(learner, experiment, data, receipt):
            yield f"dataset.tokens: those of {learner.name} were learned from {said}"
    elif tokens is not None:
        yield f"dataset.tokens: {tokens} is in no run's folder; what it was learned from is not known: {UNKNOWN}"


def said_of_other_data(source: Path, experiment: Experiment, data: Data, *, whole: bool) -> Iterator[str]:
    """For people: how much of other data than the run's own its model was trained on, or one that it started from.

    `whole`: all of the other data are its test.
    """
    for run in lineage([str(source / SAVED)])[0]:
        for said in _contamination(run, experiment, data, {}, whole=whole):
            yield f"{run.name} was trained on {said}"


def noted(run: Path) -> tuple[str, ...]:
    """What a training has noted of its test: its result says so again wherever it is measured again.

    A receipt without `held_out` is of a version that did not look, or damaged.
    """
    result = read_result(run)
    ends = (f"(contamination): {OPTIMISTIC['test']}", UNKNOWN, UNKNOWN_BEFORE)
    said = tuple(note for note in (result.notes if result else ()) if note.endswith(ends))
    if said or "held_out" in read_json(run / "receipt.json"):
        return said
    return tuple(
        f"its receipt does not say that this test was compared with {what}: {UNKNOWN}" for what in _before(run)
    )


def _before(run: Path) -> Iterator[str]:
    """What contamination may have come from, in words."""
    config = read_config(run)
    if starts(config):
        yield "what the model of model.start was trained on"
    tokens = (config.get("dataset") or {}).get("tokens", "bpe")
    if tokens not in KINDS and (saved_card(run).get("tokens") or {}).get("kind") == "bpe":
        yield "what the byte pairs of dataset.tokens were learned from"


def lineage(files: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The folders of the runs that have these among their artifacts, and of those that they started from in turn; and
    the files that are in none, such as those of a run that was deleted."""
    left, found, lost = list(files), list[Path](), list[str]()
    while left:
        file = left.pop(0)
        run = _run_of(file)
        if run is None:
            lost.append(file)
        elif run not in found:
            found.append(run)
            left += starts(read_config(run))
    return found, lost


def learned_by(tokens: str) -> tuple[Path | None, str | None]:
    """The folder of the run that learned tokens, which others may have taken from it; or the file that is in none.

    Neither, of tokens that are learned from the run's own text.
    """
    run, seen = None, set[str]()
    while tokens not in KINDS and tokens not in seen:
        seen.add(tokens)
        run = _run_of(tokens)
        if run is None:
            return None, tokens
        tokens = str((read_config(run).get("dataset") or {}).get("tokens", "bpe"))
    return run, None


def _run_of(file: str) -> Path | None:
    """The folder of the run that has this file among its artifacts."""
    return next((folder for folder in Path(file).parents if (folder / "receipt.json").is_file()), None)


def starts(config: Mapping[str, Any]) -> list[str]:
    """The files of weights and of adapters that a training starts from."""
    model = config.get("model")
    node = model if isinstance(model, dict) else {}
    adapters = node.get("adapters")
    named = [node.get("start"), adapters.get("start") if isinstance(adapters, dict) else None]
    return [one for one in named if isinstance(one, str)]


def _contamination(
    run: Path, experiment: Experiment, data: Data, receipt: Mapping[str, Any], *, whole: bool = False
) -> Iterator[str]:
    """How much of what is held out an earlier run was trained on, in words. `whole`: all of the data are the test."""
    then = read_json(run / "receipt.json")
    if then.get("data_sha256") is None:  # of stage=lightning or stage=keras
        yield f"data that its receipt does not identify: {UNKNOWN}"
        return
    if receipt and all(then.get(key) == receipt[key] for key in ("data_sha256", "held_out")):
        return
    try:
        before = load(read_config(run))
        yield from _of_data(before, then.get("data_sha256"), experiment, data, whole=whole)
    except Readable as error:
        yield f"data that cannot be loaded as they were ({error}): {UNKNOWN}"


def _of_data(earlier: Experiment, known_by: Any, experiment: Experiment, data: Data, *, whole: bool) -> Iterator[str]:
    """How much of what is held out is in an earlier training split. Raises UserError where its data changed."""
    dataset, seed, now = earlier.data_source, earlier.seed, experiment.data_source
    said = dict.fromkeys(OPTIMISTIC, "the result is optimistic") if whole else OPTIMISTIC
    if isinstance(dataset, Corpus) and isinstance(now, Corpus):
        texts = _text(now, experiment.seed, data.sha256, whole=whole)
        shared = common(_text(dataset, seed, known_by).train, [getattr(texts, name) for name in OPTIMISTIC])
        for name, found in zip(OPTIMISTIC, shared, strict=True):
            if found.share >= LEAST:
                yield f"{found} of this {'' if whole else f'{name} '}text (contamination): {said[name]}"
        return
    before = loaded(dataset, seed, earlier.inputs)
    _check(before.sha256, known_by)
    splits = {name: getattr(data, name) for name in OPTIMISTIC}
    trained, *held_out = in_one_dtype([before.train.x, *(split.x for split in splits.values())])
    there = hashes(trained, PADDING if before.holds_tokens else None)
    for (name, split), x in zip(splits.items(), held_out, strict=True):
        count = overlap(hashes(x, PADDING if data.holds_tokens else None), there)
        if count:
            of = f"these {len(split):,}" if whole else f"the {len(split):,} {name}"
            yield f"{count:,} of {of} examples (contamination): {said[name]}"


def _text(dataset: Corpus, seed: int, known_by: Any, *, whole: bool = False) -> Divided:
    root = cache_root(dataset.cache)
    documents = dataset.documents(root)
    _check(sha256(documents), known_by)
    return dataset.whole(documents, root) if whole else dataset.texts(documents, seed, root)


def _check(now: str, then: Any) -> None:
    if now != then:
        raise UserError("they have changed since")
