"""stage=seq2seq: pairs by rule, the encoder-decoder and its masks, what counts in the loss, decoding, and the run."""

from __future__ import annotations

import csv
import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import TORCH_THEN_WIDE, TWO_THEN_WIDE, done, pipeline, refused, runs, status, write_files
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.datasets.dates import SPELLINGS, Dates, short_ordinal, year
from pipeline.datasets.paired import check_pairs, encoded
from pipeline.datasets.reversals import Reversals
from pipeline.errors import RunError, UserError
from pipeline.experiment import load
from pipeline.losses.cross_entropy import CrossEntropy
from pipeline.models import PADDING, Shapes, weights
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.models.transformer import reference
from pipeline.runs import weights as saved
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_config, read_metrics
from pipeline.runs.result import metrics_of
from pipeline.spec import build_as
from pipeline.stages.about_runs.predictions import SEQUENCES, read_predictions
from pipeline.stages.cross_attention import maps_of
from pipeline.tasks.sequence_to_sequence import BEGIN, END, SPECIAL, SequenceToSequence, decoded
from pipeline.tokens.character import Characters

SOURCE, TARGET, VOCABULARY = 7, 5, 11
SHAPES = Shapes((SOURCE + TARGET,), (TARGET, VOCABULARY), vocabulary=VOCABULARY)
KINDS: dict[str, dict[str, Any]] = {
    "of 2017": {"norm_place": "after", "bias": True},
    "as it ships": {},
    "rotary": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "normed_heads": True},
    "tied": {"positions": "learned", "tied": True, "activation": "relu2"},
}
SMALL = ("stage=seq2seq", "dataset=reversals", "dataset.characters=abcd", "dataset.shortest=1", "dataset.longest=5")
SIZES = ("dataset.train=256", "dataset.validation=32", "dataset.test=50", "model.width=16", "model.layers=1")
STEPS = ("training.steps=8", "training.batch_size=32", "training.log_every_n_steps=1", "training.validate_every=4")
WORDS = (*SMALL, *SIZES, *STEPS, "schedule.warm_up=2", "tracking=none")


def examples(count: int = 4) -> np.ndarray:
    """Sources of 3 to 7 tokens and targets so far, with padding behind each."""
    generator = np.random.default_rng(0)
    x = generator.integers(SPECIAL, VOCABULARY, (count, SOURCE + TARGET))
    for row in range(count):
        x[row, 3 + row : SOURCE] = PADDING
    x[:, SOURCE] = BEGIN
    return x


def net_of(source: int = SOURCE, **settings: Any) -> tuple[Any, dict[str, np.ndarray], EncoderDecoder]:
    """A small model with random weights, larger than those of a start, in float64."""
    model = EncoderDecoder(layers=2, heads=2, width=8, **settings)
    net = model.torch(Shapes((source + TARGET,), SHAPES.outputs, vocabulary=VOCABULARY)).double().eval()
    generator = np.random.default_rng(1)
    values = {name: generator.normal(0, 0.4, array.shape) for name, array in weights.from_torch(net).items()}
    weights.to_torch(net, values, "test")
    return net, values, model


def logits_of(net: Any, x: np.ndarray) -> np.ndarray:
    """(N, T, V)."""
    with torch.no_grad():
        return np.asarray(net(torch.from_numpy(x)).numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_torch_computes_the_formulas(kind: str) -> None:
    net, values, model = net_of(**KINDS[kind])
    maps: list[np.ndarray] = []
    expected = reference.encoder_decoder(examples(), values, model.stacks(), SOURCE, maps)
    np.testing.assert_allclose(logits_of(net, examples()), expected, rtol=0, atol=1e-12)
    assert [one.shape for one in maps] == [(4, 2, TARGET, SOURCE)] * 2
    np.testing.assert_allclose(maps[1].sum(-1), 1, atol=1e-12)
    assert (maps[1][0, :, :, 3:] == 0).all()  # the padding of the first source


def test_a_source_filled_up_further_comes_to_the_same() -> None:
    net, values, _ = net_of()
    longer, _, _ = net_of(SOURCE + 4)
    weights.to_torch(longer, values, "test")
    x = examples()
    wide = np.insert(x, [SOURCE] * 4, PADDING, axis=1)
    np.testing.assert_allclose(logits_of(longer, wide), logits_of(net, x), rtol=0, atol=1e-12)


def test_what_is_written_later_changes_nothing_before_it_and_the_source_all() -> None:
    net, _, _ = net_of()
    x, later, other = examples(), examples(), examples()
    later[:, SOURCE + 3 :] = SPECIAL
    other[:, 0] = SPECIAL + (other[:, 0] - SPECIAL + 1) % (VOCABULARY - SPECIAL)
    np.testing.assert_array_equal(logits_of(net, x)[:, :3], logits_of(net, later)[:, :3])
    assert (np.abs(logits_of(net, x) - logits_of(net, other)).max(axis=2) > 1e-6).all()


# Decoding


def counting(x_NW: np.ndarray) -> np.ndarray:
    """Logits (N, T, V) of a writer that writes the numbers from the source's first token on, and ends before its
    second: it reads the token before each position alone.
    """
    before = x_NW[:, SOURCE:]
    following = np.where(before == BEGIN, x_NW[:, :1], before + 1)
    best = np.where(following >= x_NW[:, 1:2], END, following)
    return np.eye(VOCABULARY)[best]


def test_rows_end_each_at_its_end_token_and_the_target_is_not_read() -> None:
    x = np.full((3, SOURCE + TARGET), 9)
    x[:, :2] = [[4, 6], [3, 4], [4, 11]]  # the last has more to write than there is room for
    calls: list[np.ndarray] = []

    def predict(x_NW: np.ndarray) -> np.ndarray:
        calls.append(x_NW.copy())
        return counting(x_NW)

    found = decoded(predict, x, TARGET)
    assert found.tolist() == [[4, 5, END, 0, 0], [3, END, 0, 0, 0], [4, 5, 6, 7, 8]]
    assert len(calls) == TARGET
    assert (calls[0][:, SOURCE + 1 :] == PADDING).all()
    calls.clear()
    assert decoded(predict, x[:2], TARGET).tolist() == found[:2].tolist()
    assert len(calls) == 3  # it stops once all have ended


def task_of(share: float = 1.0) -> SequenceToSequence:
    return SequenceToSequence(SOURCE, TARGET, Characters("abcdefgh"), share)


def test_the_exact_match_is_of_what_runs_free() -> None:
    """A model that only knows what follows a token is right behind each true one, and wrong behind its own."""
    follows = np.array([END, 5, 0, 0, 5, 6, 7, END, 9, END, 0])

    def counts(x_NW: np.ndarray) -> np.ndarray:
        return np.eye(VOCABULARY)[follows[x_NW[:, SOURCE:]]] * 50

    x = examples(2)
    x[:, SOURCE + 1 :] = [[4, 5, 6, 7], [8, 9, 0, 0]]
    y = np.array([[4, 5, 6, 7, END], [8, 9, END, 0, 0]])
    judge = task_of().judge(CrossEntropy())
    judge.add(x, counts(x), y)
    judge.ask(counts, x, y)
    found = {metric.name: metric.value for metric in judge.metrics()}
    assert found["test/accuracy"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert found["test/exact_match"] == 0
    assert "2 of 2 sequences" in judge.details().rows[0][1]


def test_a_decoder_that_reads_the_token_that_it_is_to_write_is_refused() -> None:
    """Its accuracy was 1. Where the decoder is given no target, it may look wherever it likes."""

    def peeks(x_NW: np.ndarray) -> np.ndarray:
        following = np.pad(x_NW[:, SOURCE + 1 :], ((0, 0), (0, 1)))
        return np.eye(VOCABULARY)[np.where(following == PADDING, END, following)]

    x = examples(2)
    x[:, SOURCE + 1 :] = [[4, 5, 6, 7], [8, 9, 0, 0]]
    y = np.array([[4, 5, 6, 7, END], [8, 9, END, 0, 0]])
    with pytest.raises(RunError) as error:
        task_of().judge(CrossEntropy()).ask(peeks, x, y)
    assert str(error.value) == (
        "the model looks ahead: other tokens of the target from 2 on move its logits at the first 2 tokens by up to "
        "1.0e+00; it sees what it should predict, as through a missing mask or a convolution padded on both sides, so "
        "neither its loss nor its accuracy says anything"
    )
    x[:, SOURCE + 1 :] = PADDING
    task_of().judge(CrossEntropy()).ask(peeks, x, y)


@given(st.data())
def test_batches_of_any_size_add_up_to_the_mean_over_what_is_no_padding(data: st.DataObject) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    lengths = generator.integers(1, TARGET, 6)
    y = np.where(np.arange(TARGET) < lengths[:, None], generator.integers(SPECIAL, VOCABULARY, (6, TARGET)), PADDING)
    y[np.arange(6), lengths] = END
    outputs = generator.normal(size=(6, TARGET, VOCABULARY))
    task, loss = task_of(float((y != PADDING).mean())), CrossEntropy(label_smoothing=0.1)
    cut = data.draw(st.integers(1, 5))
    ops: Any = torch
    total = 0.0
    for rows in (slice(cut), slice(cut, None)):
        batch = (torch.from_numpy(outputs[rows]), torch.from_numpy(y[rows]))
        total += float(task.loss_of(loss.torch(), ops, *batch)) * len(batch[1])
    real = y != PADDING
    assert total / 6 == pytest.approx(loss.numpy(outputs[real], y[real]), rel=1e-12)


# Pairs


@pytest.mark.parametrize(
    ("day", "spelt"),
    [
        (date(1987, 3, 3), "the third of March 1987|the 3rd of March 1987|3 March 1987|March 3, 1987|Mar 3rd, 1987"),
        (date(1987, 3, 3), "Tuesday, 3 March 1987|3.3.1987|March the third, nineteen eighty-seven"),
        (date(1905, 5, 31), "the thirty-first of May 1905|31.5.1905|May the thirty-first, nineteen oh five"),
    ],
)
def test_dates_are_spelt_as_people_write_them(day: date, spelt: str) -> None:
    month = day.strftime("%B")
    assert set(spelt.split("|")) <= {spelling(day, month) for spelling in SPELLINGS}


def test_years_and_ordinals() -> None:
    years = {1900: "nineteen hundred", 2000: "two thousand", 2009: "two thousand and nine", 2015: "twenty fifteen"}
    assert {value: year(value) for value in years} == years
    assert [short_ordinal(day) for day in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "30th"]
    )


@pytest.mark.parametrize("dataset", [Dates(train=300, validation=50, test=70), Reversals(train=300, test=70)])
def test_splits_hold_different_pairs_and_the_test_is_the_same_for_every_seed(dataset: Any) -> None:
    one, other = (dataset.load(Path(), seed) for seed in (0, 1))
    texts = [
        {(one.task.text(x[: one.task.source]), one.task.text(y)) for x, y in zip(split.x, split.y, strict=True)}
        for split in (one.train, one.validation, one.test)
    ]
    assert sum(map(len, texts)) == dataset.count == len(set.union(*texts))
    targets = [{target for _, target in part} for part in texts]
    assert not targets[0] & targets[2] and not targets[0] & targets[1]  # of dates: the days
    np.testing.assert_array_equal(one.test.x, other.test.x)
    assert one.sha256 == other.sha256 and (one.train.x != other.train.x).any()
    for source, target in texts[2]:
        if isinstance(dataset, Reversals):
            assert target == source[::-1]
        else:
            assert date.fromisoformat(target).isoformat() == target
            assert str(date.fromisoformat(target).day) in source or "the " in source


def test_a_splits_loss_is_the_mean_over_its_own_tokens() -> None:
    """Whatever share of the training's is padding, by which each batch's loss is divided."""
    split = encoded([("ab", "b"), ("a", "ba"), ("b", "abab")], Characters("ab"), "validation")
    target = split.y.shape[1]
    task = SequenceToSequence(split.x.shape[1] - target, target, Characters("ab"), counted_share=0.9)
    logits = np.random.default_rng(0).normal(size=(*split.y.shape, task.vocabulary))
    of_token = np.log(np.exp(logits).sum(2)) - np.take_along_axis(logits, split.y[..., None], 2)[..., 0]
    real = split.y != PADDING

    def loss(outputs: np.ndarray, targets: np.ndarray, counted: np.ndarray) -> float:
        """As Loss.torch() and Loss.keras() take padding: the mean over all rows, where padding is 0."""
        found = np.log(np.exp(outputs).sum(1)) - outputs[np.arange(len(targets)), targets]
        return float((found * counted).mean())

    parts = [
        task.loss_of(loss, np, logits[rows], split.y[rows]) * len(split.y[rows]) for rows in (slice(2), slice(2, 3))
    ]
    assert task.of_split(sum(parts) / 3, split.y) == pytest.approx(of_token[real].mean(), rel=1e-12)


def test_a_pair_is_written_with_its_ends() -> None:
    split = encoded([("ab", "b"), ("a", "ba")], Characters("ab"), "test")
    assert split.x.tolist() == [[3, 4, END, BEGIN, 4, 0], [3, END, 0, BEGIN, 4, 3]]
    assert split.y.tolist() == [[4, END, 0], [4, 3, END]]


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([("a", "b"), ("", "b")], "pair 2 ('', 'b') has an empty source"),
        ([("a", "")], "pair 1 ('a', '') has an empty target"),
        ([("a", "b"), ("c", "d␀")], "the target of pair 2 has ␀, which stands for a special token"),
        ([("a", "b"), ("c", "d"), ("a", "c")], "pair 3 has the source of pair 1, 'a'"),
    ],
)
def test_pairs_that_teach_nothing_are_refused(pairs: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(UserError) as error:
        check_pairs(pairs, "dataset=mine")
    assert str(error.value).startswith(f"dataset=mine: {said}")


def test_an_unknown_character_is_refused() -> None:
    with pytest.raises(UserError, match="dataset=mine: the character 'c' at 1 is not among the 2"):
        encoded([("ac", "b")], Characters("ab"), "dataset=mine")


def test_targets_without_an_end_are_refused() -> None:
    for wrong in ([4, 5, 0, 0, 0], [END, 0, 0, 0, 0], [4, END, 5, 0, 0], [4, END, END, 0, 0], [4, 0, END, 0, 0]):
        assert "a target has tokens" in str(task_of().check(np.array([wrong])))
    assert task_of().check(np.array([[4, 5, 6, 7, END], [4, END, 0, 0, 0]])) is None


# The run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return done(tmp_path_factory.mktemp("seq2seq"), *WORDS)


def test_a_run_leaves_what_was_written_and_where_the_decoder_looked(run: Path) -> None:
    found = metrics_of(run)
    with (run / "artifacts" / "decoded.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 50
    assert all((row["decoded"] == row["target"] == row["source"][::-1]) == (row["exact"] == "true") for row in rows)
    assert found["test/exact_match"].value == np.mean([row["exact"] == "true" for row in rows])
    assert found["test/exact_match"].direction == "max"
    assert "sequences_per_s" in found
    assert (run / "artifacts" / "figures" / "cross_attention.png").stat().st_size > 5000
    page = (run / "artifacts" / "cross_attention.html").read_text()
    shown = json.loads(page.partition("const data = ")[2].partition(";\n")[0])
    assert "".join(shown["attended"]) == rows[0]["source"] + "∎"
    assert len(shown["signs"]) == shown["length"] <= 6
    card = read_json(run / "artifacts" / "model" / "card.json")
    assert (card["task"], card["tokens"]["alphabet"]) == ("sequencetosequence", "abcd")
    first = next(record.metrics["train/loss"] for record in read_metrics(run) if "train/loss" in record.metrics)
    assert first == pytest.approx(math.log(7), rel=0.05)  # of a guess; the first batch has not the mean length


def test_a_special_token_that_a_model_writes_is_shown(run: Path) -> None:
    """Without it "ab" was wrong where "ab" was asked for, and the map had a row fewer than the decoder had written."""
    tokens = Characters("abcd")
    task = SequenceToSequence(6, 6, tokens)
    written = task.text(np.array([SPECIAL, PADDING, BEGIN, SPECIAL + 1, PADDING, END]))
    assert written == "a␀␂b␀"
    assert task.text(np.array([PADDING] * 6)) == "␀" * 6
    model: Any = load(read_config(run)).model
    maps = {text: maps_of(model, run, "abc", text) for text in ("a␂b", "ab")}
    assert maps["a␂b"].shape[2:] == (4, 4)
    np.testing.assert_array_equal(maps["a␂b"][:, :, :2], maps["ab"][:, :, :2])
    assert not np.allclose(maps["a␂b"][:, :, 2], maps["ab"][:, :, 2])


def test_a_saved_run_is_evaluated_to_the_same(run: Path) -> None:
    again = done(run.parents[1], "stage=evaluate", f"run={run.name}", "tracking=none")
    for name in ("test/loss", "test/accuracy", "test/exact_match"):
        assert metrics_of(again)[name].value == metrics_of(run)[name].value
    found = pipeline(run.parents[1], "stage=compare", f"stage.runs=[{run.name},{again.name}]").stdout
    assert [line.split() for line in found.splitlines() if line.startswith(("sequences ", "answered"))] == [
        ["sequences", "50"],
        ["answered", "otherwise", "0"],
    ]


def test_whole_sequences_have_an_interval_and_their_tokens_none(run: Path) -> None:
    found = metrics_of(run)
    right = round(found["test/exact_match"].value * 50)
    expected = stats.binomtest(right, 50).proportion_ci(method="wilson")
    assert (found["test/exact_match_low"].value, found["test/exact_match_high"].value) == pytest.approx(tuple(expected))
    assert not {"test/accuracy_low", "test/loss_low"} & found.keys()


def test_an_edited_file_of_sequences_concludes_nothing(run: Path, tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    text = (run / "artifacts/decoded.csv").read_text()
    flipped = text.replace(",true", ",false") if ",true" in text else text.replace(",false", ",true")
    (tmp_path / "artifacts/decoded.csv").write_text(flipped)
    metric = metrics_of(run)["test/exact_match"]
    assert len(read_predictions(run, SEQUENCES, metric).right) == 50
    with pytest.raises(UserError, match=r"decoded\.csv is not of this result, perhaps edited: test/exact_match is "):
        read_predictions(tmp_path, SEQUENCES, metric)


@pytest.mark.wide
def test_a_saved_run_of_other_characters_is_refused_with_what_pairs_have(run: Path, tmp_path: Path) -> None:
    """They were offered `dataset.tokens`, which they lack, and `blocks*`, which their model does."""
    words = ("stage=seq2seq", "dataset=dates", *WORDS[len(SMALL) :], f"model.start={run}")
    said = refused(tmp_path, *words)
    assert "it was trained with another vocabulary (" in said and "dataset.tokens" not in said
    layers = "model.start_layers=[encoder,encoder_norm,decoder,norm]"
    assert said.endswith(f"; {layers} takes all but tokens and logits")
    start = read_json(done(tmp_path, *words, layers) / "receipt.json")["initial_weights"]
    assert "decoder.0.cross.query.kernel" in start["loaded"] and "tokens.embeddings" not in start["loaded"]


def test_a_saved_run_of_another_model_is_refused_for_its_model_and_not_for_its_vocabulary(
    run: Path, tmp_path: Path
) -> None:
    """It was offered `dataset.tokens=<that run>`, with which its weights do not fit either."""
    (tmp_path / "mine.txt").write_text("def f(x):\n    return x\n" * 200)
    words = ("stage=transformer", "dataset=text", "dataset.path=mine.txt", "training.steps=3", "schedule.warm_up=1")
    said = refused(tmp_path, *words, f"model.start={run}")
    assert said == (
        f"model.start={run.name}: weights of another model: that run has model=encoder_decoder, "
        "this one model=gpt; model.start_layers=[<layer>,...] takes those layers from the file, and all others begin "
        "as without it"
    )
    some = refused(tmp_path, *words, f"model.start={run}", "model.start_layers=[tokens]")
    assert "it was trained with another vocabulary (" in some


PEEKS = """
from pipeline.contracts import Model
from pipeline.spec import spec

@spec
class Peeks(Model):
    def torch(self, shapes):
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                length, vocabulary = shapes.outputs
                self.tokens, self.mix = nn.Embedding(vocabulary, 16), nn.Conv1d(16, vocabulary, 3, padding="same")
                self.length = length

            def forward(self, x):
                return self.mix(self.tokens(x[:, -self.length :]).transpose(1, 2)).transpose(1, 2)

        return Net()

    def keras(self, shapes):
        import keras

        length, vocabulary = shapes.outputs
        x = keras.Input(shapes.x)
        h = keras.layers.Embedding(vocabulary, 16)(x[:, -length:])
        return keras.Model(x, keras.layers.Conv1D(vocabulary, 3, padding="same")(h))
"""


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_decoder_that_looks_ahead_has_no_result(tmp_path: Path, backend: str) -> None:
    write_files(tmp_path, {"peeks.py": PEEKS, "conf/model/peeks.yaml": "_target_: peeks.Peeks\n"})
    known = {"PIPELINE_MODULES": "peeks", "PYTHONPATH": str(tmp_path)}
    words = ("stage=train", *SMALL[1:], *SIZES[:3], *STEPS, "model=peeks", f"backend={backend}", "--config-dir=conf")
    ended = pipeline(tmp_path, *words, **known)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    (run,) = runs(tmp_path)
    said = "RunError: the model looks ahead: other tokens of the target from 3 on move its logits at the first 3 tokens"
    assert str(status(run).error).startswith(said)


@pytest.mark.wide
@pytest.mark.parametrize("backend", TWO_THEN_WIDE[1:])
@pytest.mark.parametrize("settings", [(), ("model.positions=learned", "model.norm_place=after", "model.tied=true")])
def test_every_step_is_the_same(tmp_path: Path, backend: str, settings: tuple[str, ...]) -> None:
    words = (*WORDS, *settings, "precision=fp64", "training.accumulate=2")
    one, other = (done(tmp_path, f"backend={name}", *words) for name in ("torch", backend))
    for name in ("train/loss", "validation/loss", "validation/accuracy"):
        found = [[record.metrics[name] for record in read_metrics(x) if name in record.metrics] for x in (one, other)]
        assert len(found[0]) >= 2
        np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-10 if "loss" in name else 1e-7, err_msg=name)
    ours, theirs = (saved.load(x / "artifacts" / "model" / "weights.npz") for x in (one, other))
    assert set(ours) == set(theirs)
    assert (one / "artifacts" / "decoded.csv").read_text() == (other / "artifacts" / "decoded.csv").read_text()


def test_an_alphabet_of_digits_is_no_number() -> None:
    """`dataset.characters=123` is a number to YAML."""
    made = build_as(Reversals, {"characters": 123, "train": 40, "validation": 9, "test": 9}, "dataset")
    assert {letter for source, _ in made.pairs() for letter in source} == {*"123"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stage=train", "dataset=dates", "model=gpt"), "it takes tokens, and the examples of this dataset are pairs"),
        (("dataset=python_docs", "model=encoder_decoder", "stage=train"), "takes pairs of sequences"),
        (("stage=transformer", "dataset=dates"), "its task is SequenceToSequence, not LanguageModelling"),
        (("stage=seq2seq", "dataset=digits"), "its task is Classification, not SequenceToSequence"),
        (("stage=seq2seq", "loss=hinge"), "loss=hinge with dataset=dates: some of its targets are padding"),
        (("stage=seq2seq", "model.heads=3"), "width=64: not divisible by model.heads=3"),
        (("stage=seq2seq", "dataset.train=110000"), "there are 109,573 days"),
        (("stage=seq2seq", "dataset=reversals", "dataset.shortest=9", "dataset.longest=8"), "dataset.longest=8: is"),
        (("stage=seq2seq", "dataset=reversals", "dataset.characters=aba"), "has a character twice"),
        (
            ("stage=seq2seq", "dataset=reversals", "dataset.characters=1"),
            "dataset.characters='1': the alphabet of the sequences has one character; give two or more, each once",
        ),
        (("stage=seq2seq", "dataset=reversals", "dataset.longest=4", "dataset.characters=ab"), "ask for 8 at most"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused(tmp_path, *words)
