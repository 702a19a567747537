"""Datasets of text: documents are divided before anything is learned, and cut into sequences without copies."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.datasets import Data, Split
from pipeline.datasets.check import check_data
from pipeline.datasets.corpus import Corpus, divided, sequences
from pipeline.datasets.documents import Document
from pipeline.datasets.king_james import KingJames
from pipeline.datasets.published import PublishedFiles
from pipeline.datasets.python_docs import PythonDocs
from pipeline.datasets.sources import File
from pipeline.datasets.text import Text
from pipeline.errors import UserError
from pipeline.losses.cross_entropy import CrossEntropy
from pipeline.spec import spec
from pipeline.tasks.language_modelling import ROWS, LanguageModelling
from pipeline.tokens import from_plain, learned

WORDS = [f"word{number} and some more of document {number}. " * (number % 7 + 3) for number in range(40)]


@spec
class Few(Corpus):
    """Three documents that are no files."""

    def documents(self, root: Path) -> Sequence[Document]:  # noqa: ARG002
        return [b"words"] * 3


@given(st.lists(st.integers(-2, 6), min_size=3, max_size=6), st.sampled_from(["x", "y"]))
def test_tokens_are_below_the_vocabulary_and_not_below_zero(tokens: list[int], of: str) -> None:
    """Of a dataset of the user's; an embedding takes -1 for the last token, and beyond its end reads anything."""
    sequence = {"x": [0] * len(tokens), "y": [4] * len(tokens)} | {of: tokens}
    split = Split(np.array([sequence["x"]]), np.array([sequence["y"]]))
    data = Data(split, split, split, LanguageModelling(len(tokens), 5), "")
    if min(tokens) >= 0 and max(tokens) < 5:
        check_data(data, "mine")
    else:
        said = rf"train\.{of}.* tokens {min(tokens)} to {max(tokens)}; the vocabulary is "
        with pytest.raises(UserError, match=said):
            check_data(data, "mine")


@spec
class Given(Corpus):
    """One document."""

    content: str = ""

    def documents(self, root: Path) -> Sequence[Document]:  # noqa: ARG002
        return [self.content.encode()]


@pytest.mark.parametrize(("length", "apart"), [(400, 1), (40_000, 40)])
def test_a_text_that_is_held_out_is_known_by_its_bytes_and_not_by_its_size(
    length: int, apart: int, tmp_path: Path
) -> None:
    """Of a long one some bytes are looked at, which another division moves."""
    text = "".join(map(chr, np.random.default_rng(0).integers(97, 123, length)))
    changed = f"{text[:-apart]}{text[-apart:].upper()}"
    known, others = (Given(content=one, context=4).load(tmp_path, 0).held_out for one in (text, changed))
    assert known is not None and others is not None
    assert (known["validation"] == others["validation"], known["test"] == others["test"]) == (True, False)
    assert known["test"].partition("-")[0] == others["test"].partition("-")[0] == f"{length // 10}"


def test_bits_per_byte_of_the_validation_are_of_all_its_tokens() -> None:
    """More sequences than are counted at once, of which the first and the last have other tokens."""
    tokens = learned("characters", ["aé€".encode()], 3, "a text")
    y = np.sort(np.random.default_rng(0).integers(0, 3, (2 * ROWS + 7, 3)), axis=0)
    (found,) = LanguageModelling(3, 3, tokens).validated(CrossEntropy(), {"validation/loss": 0.5}, y)
    assert (found.name, found.direction) == ("validation/bits_per_byte", "min")
    assert found.value == pytest.approx(0.5 * y.size / math.log(2) / len(tokens.decode(y.ravel())))


@given(text=st.text(min_size=1), share=st.floats(0, 0.4), test=st.floats(0.01, 0.5))
def test_a_single_document_is_cut_between_characters(text: str, share: float, test: float) -> None:
    parts = divided([text.encode()], share, test, 0)
    pieces = [bytes(part) for part in (parts.train, parts.validation, parts.test)]
    assert b"".join(pieces) == text.encode()
    for piece in pieces:
        piece.decode()


def test_whole_documents_are_held_out_for_the_test_always_the_same() -> None:
    documents = [words.encode() for words in WORDS]
    first, second = (divided(documents, 0.1, 0.2, seed) for seed in (0, 1))
    assert first.test == second.test
    assert first.validation != second.validation
    for parts in (first, second):
        held = [[one in bytes(part) for one in documents] for part in (parts.train, parts.validation, parts.test)]
        assert np.sum(held, axis=0).tolist() == [1] * len(documents)
        assert len(parts.test) / len(b"\n\n".join(documents)) == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 8, 10])
def test_a_split_that_is_asked_for_gets_a_document_of_few(count: int) -> None:
    documents = [f"{number} is a document. ".encode() * 20 for number in range(count)]
    parts = divided(documents, 0.05, 0.1, 0)
    held = [[one in bytes(part) for one in documents] for part in (parts.train, parts.validation, parts.test)]
    assert np.sum(held, axis=0).tolist() == [1] * count
    assert np.sum(held, axis=1).tolist() == ([1, 0, 1] if count == 2 else [count - 2, 1, 1])
    assert not len(divided(documents, 0, 0.1, 0).validation)
    assert divided(documents, 0.05, 0.1, 1).test == parts.test


def test_of_few_documents_the_one_nearest_to_the_share_is_held_out() -> None:
    documents = [letter.encode() * size for letter, size in {"a": 5000, "b": 3000, "c": 1000, "d": 1200}.items()]
    parts = divided(documents, 0.05, 0.04, 0)
    assert (parts.test, parts.validation) == (documents[2], documents[3])


def test_two_files_are_trained_on_without_a_validation_and_a_note_says_so(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"This is {name}. " * 20)
    data = Text(path=str(tmp_path), context=8).load(tmp_path, 0)
    assert (len(data.train) > 0, len(data.validation), len(data.test) > 0) == (True, 0, True)
    said = "dataset.validation=0.05: with 2 documents, one is for the test and one for training, which leaves none for "
    said += "validation"
    tested = "dataset.test=0.1: 0.5 of the text is held out; documents are held out whole, and the text has 2"
    assert data.notes == (said, tested)
    assert Text(path=str(tmp_path), context=8, validation=0).load(tmp_path, 0).notes == (tested,)


def test_shares_that_the_text_cannot_be_split_by_are_noted(tmp_path: Path) -> None:
    """Two thirds of three equal files were held out, and a short text was validated on nothing."""
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"This is {name}. " * 20)
    whole = "0.33 of the text is held out; documents are held out whole, and the text has 3"
    notes = Text(path=str(tmp_path), context=8).load(tmp_path, 0).notes
    assert notes == (f"dataset.validation=0.05: {whole}", f"dataset.test=0.1: {whole}")
    short = Text(path=str(tmp_path / "a.txt"), context=8, validation=0.001)
    assert short.load(tmp_path, 0).notes == (
        "dataset.validation=0.001: 0 of the text is held out; the text has 220 bytes",
    )


def test_a_file_that_is_too_short_for_its_split_is_named(tmp_path: Path) -> None:
    """The third of three is nearest to the share of the test."""
    for name, size in {"a": 300, "b": 300, "c": 1}.items():
        (tmp_path / f"{name}.txt").write_text((name + "word") * size)
    with pytest.raises(UserError) as refused:
        Text(path=str(tmp_path), validation=0).load(tmp_path, 0)
    assert str(refused.value) == (
        f"dataset=text: dataset.test=0.1 (1 of 3 documents, which are held out whole: {tmp_path}/c.txt): has 5 tokens; "
        "dataset.context=64 needs 65 or more"
    )
    with pytest.raises(UserError, match=r"the training text \(2 of 3 documents, which are held out whole\): has 12 "):
        Few(validation=0).load(tmp_path, 0)


@given(length=st.integers(2, 200), context=st.integers(1, 50), stride=st.none() | st.integers(1, 60))
def test_every_token_is_followed_by_the_next(length: int, context: int, stride: int | None) -> None:
    stream = np.arange(length, dtype=np.uint8)
    if length <= context:
        with pytest.raises(UserError, match=rf"has {length} tokens; dataset.context={context} needs {context + 1}"):
            sequences(stream, context, stride, "text")
        return
    split = sequences(stream, context, stride, "text")
    np.testing.assert_array_equal(split.y, split.x + 1)
    assert split.x.shape == ((length - 1 - context) // (stride or context) + 1, context)
    assert np.shares_memory(split.x, stream)
    assert split.x[0, 0] == 0


@pytest.mark.parametrize("tokens", ["bytes", "characters", "bpe"])
def test_pythons_own_documents(tmp_path: Path, tokens: str) -> None:
    dataset = PythonDocs(tokens=tokens, vocabulary=300)
    data = dataset.load(tmp_path, 0)
    check_data(data, "python_docs")
    assert isinstance(data.task, LanguageModelling)
    assert data.task.tokens is not None
    text = data.task.tokens.decode(data.test.x[:20].reshape(-1)).decode()
    assert text in "\n\n".join(bytes(one).decode() for one in dataset.documents(tmp_path)) or tokens == "bpe"
    assert len(data.train) > 8 * len(data.test) > 8 * len(data.validation) > 0
    assert dataset.packages == (("tokenizers",) if tokens == "bpe" else ())


def test_fewer_pairs_of_bytes_than_asked_for_are_noted(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abab cdcd " * 50)
    asked: dict[str, Any] = {"path": str(tmp_path / "text.txt"), "context": 4, "vocabulary": 400}
    note, *leakage = Text(**asked, tokens="bpe").load(tmp_path, 0).notes
    assert re.fullmatch(
        r"dataset\.vocabulary=400: 2\d\d tokens were learned; no further pair of tokens occurs twice within words",
        note,
    )
    assert Text(**asked).load(tmp_path, 0).notes == tuple(leakage)  # the text repeats itself


def test_byte_pairs_are_learned_from_the_training_text_alone(tmp_path: Path) -> None:
    """Whatever the last quarter of the text has, the merges are the same; in the training text it changes them."""
    known, other = "the whale and the sea. " * 300, "qzx jkv wyf " * 190
    merges = {}
    for name, text in {"as it is": known, "other end": known + other, "other begin": other + known}.items():
        (tmp_path / "text.txt").write_text(text + " " * (len(known + other) - len(text)))
        corpus = Text(
            path=str(tmp_path / "text.txt"), tokens="bpe", vocabulary=300, context=8, validation=0.125, test=0.125
        )
        merges[name] = corpus.load(tmp_path, 0).task.card()["tokens"]["merges"]
    assert merges["as it is"] == merges["other end"] != merges["other begin"]


def test_king_james_is_the_string_of_its_module_and_none_of_its_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "bible.py"
    module.write_text('raise SystemExit("it ran")\nTEXT = """\nIn the beginning, \u2014\n\nAmen.\n"""\nOTHER = 1\n')
    content = module.read_bytes()
    published = PublishedFiles("bible", (File(module.name, len(content), hashlib.sha256(content).hexdigest()),), ())
    monkeypatch.setattr(KingJames, "published", published)
    (document,) = KingJames(folder=str(tmp_path)).documents(tmp_path / "no cache")
    assert bytes(document).decode() == "In the beginning, \u2014\n\nAmen."


def test_a_file_a_folder_and_a_pattern(tmp_path: Path) -> None:
    for number, words in enumerate(WORDS):
        (tmp_path / f"{number}.txt").write_text(words)
    (tmp_path / ".hidden").write_bytes(b"\xff")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "object").write_bytes(b"\xff")
    one = Text(path=str(tmp_path / "6.txt"), context=8, tokens="bytes")
    assert [bytes(document).decode() for document in one.documents(tmp_path)] == WORDS[6:7]
    folder, pattern = (Text(path=str(path), context=8) for path in (tmp_path, tmp_path / "*.txt"))
    assert folder.user_files == pattern.user_files
    assert folder.load(tmp_path, 0).sha256 == pattern.load(tmp_path, 0).sha256
    mapped, read = (Text(path=str(tmp_path / "6.txt"), context=8, tokens=kind) for kind in ("bytes", "characters"))
    assert mapped.load(tmp_path, 0).sha256 == read.load(tmp_path, 0).sha256


def test_copies_of_a_file_are_no_documents_beside_it(tmp_path: Path) -> None:
    """Of four files that were one, two were trained on and the others validated and tested."""
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice([*"abcdefgh "], 300)) for _ in range(3)]  # of one size
    for name, number in (("a", 0), ("b", 0), ("c", 1), ("d", 2)):
        (tmp_path / f"{name}.txt").write_text(texts[number])
    (tmp_path / "e.txt").symlink_to(tmp_path / "a.txt")
    dataset = Text(path=str(tmp_path), context=8)
    assert [bytes(document).decode() for document in dataset.documents(tmp_path)] == texts
    said = f"dataset.path={tmp_path}: 2 of 5 files are copies of others, and left out"
    assert dataset.load(tmp_path, 0).notes[-1] == said


def test_tokens_between_sequences_that_are_left_out_are_noted(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(np.random.default_rng(0).integers(97, 123, 1000, np.uint8).tobytes())
    given: dict[str, Any] = {"path": str(tmp_path / "text.txt"), "context": 10, "validation": 0.1, "test": 0.1}
    assert Text(**given, stride=10).load(tmp_path, 0).notes == ()
    note, *others = Text(**given, stride=40).load(tmp_path, 0).notes  # 20 sequences of 10 of the 799 that could be
    assert not others
    assert note == (
        "dataset.stride=40: more than dataset.context=10, so that 600 of the training text's 800 tokens are predicted "
        "by no training sequence"
    )
    (few,) = Text(**given | {"context": 90}, stride=91).load(tmp_path, 0).notes  # 8 of 90; it was "0%" of a long text
    assert ", so that 80 of the training text's 800 tokens are predicted by " in few


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    """It is the signature of a UTF-8 file, as Windows programs write it, also where the file is mapped."""
    text = "".join(np.random.default_rng(0).choice([*"abcdefgh "], 2**20 + 99))
    for name, content in {"a": text[:900], "b": text[100:1000], "large": text, "only": ""}.items():
        (tmp_path / f"{name}.txt").write_text(content, encoding="utf-8-sig")
        (tmp_path / f"{name}_without.txt").write_text(content)
    for tokens in ("bytes", "characters", "bpe"):
        for name in ("a", "large"):
            marked, plain = (
                Text(path=str(tmp_path / f"{name}{ending}.txt"), tokens=tokens, context=8, vocabulary=260)
                for ending in ("", "_without")
            )
            one, other = marked.load(tmp_path, 0), plain.load(tmp_path, 0)
            np.testing.assert_array_equal(one.train.x, other.train.x)
            assert (one.sha256, one.task.card()) == (other.sha256, other.task.card())
    folder = Text(path=str(tmp_path), context=8)
    texts = [text[:900], text[100:1000], text]
    assert [bytes(one).decode() for one in folder.documents(tmp_path)] == texts
    notes = folder.load(tmp_path, 0).notes
    assert f"dataset.path={tmp_path}: 3 of 8 files are copies of others, and left out" in notes
    assert f"dataset.path={tmp_path}: 2 of 8 files are empty, and left out" in notes
    with pytest.raises(UserError, match=r"only\.txt: contains no text"):
        Text(path=str(tmp_path / "only.txt")).load(tmp_path, 0)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_file_in_another_encoding_of_unicode_is_named_as_such(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "my text.txt").write_bytes("\ufeffÄlteste".encode(encoding))
    name = encoding[:6].upper()
    for tokens in ("characters", "bpe"):
        with pytest.raises(UserError) as refused:
            Text(path=str(tmp_path / "my text.txt"), tokens=tokens).load(tmp_path, 0)
        assert str(refused.value) == (
            f"dataset.path={tmp_path}/my text.txt: {name}, by its byte-order mark, and not UTF-8; convert it: iconv -f "
            f"{name} -t UTF-8 <the file> > <a new one>"
        )


def test_a_file_of_a_folder_that_is_not_text_can_be_left_out(tmp_path: Path) -> None:
    """A compiled module or a picture beside the texts: `dataset.tokens=bytes` alone was offered, which trains on it."""
    (tmp_path / "mine.txt").write_text("a few words. " * 100)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(UserError) as refused:
        Text(path=str(tmp_path)).load(tmp_path, 0)
    assert str(refused.value) == (
        f"dataset.path={tmp_path}/picture.png: not UTF-8 at byte 0 (line 1): 0x89; dataset.tokens=bytes takes any "
        f"file; dataset.path='{tmp_path}/**/*.txt' takes some of the folder's files"
    )
    assert len(Text(path=f"{tmp_path}/**/*.txt").load(tmp_path, 0).train)


def test_empty_files_of_a_folder_are_noted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("".join(rng.choice([*"abcdefgh "], 300)))
    (tmp_path / "empty.txt").touch()
    dataset = Text(path=str(tmp_path), context=8)
    assert dataset.load(tmp_path, 0).notes[-1] == f"dataset.path={tmp_path}: 1 of 4 files is empty, and left out"
    (tmp_path / "mark.txt").write_text("", encoding="utf-8-sig")
    (tmp_path / "copy.txt").write_bytes((tmp_path / "a.txt").read_bytes())
    assert dataset.load(tmp_path, 0).notes[-2:] == (
        f"dataset.path={tmp_path}: 2 of 6 files are empty, and left out",
        f"dataset.path={tmp_path}: 1 of 6 files is a copy of another, and left out",
    )


def test_a_pipe_is_no_text_and_no_missing_file(tmp_path: Path) -> None:
    """`dataset.path=<(zcat text.gz)`: it was "no such file"."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError) as refused:
        Text(path=f"{tmp_path}/pipe").load(tmp_path, 0)
    assert str(refused.value) == f"dataset.path={tmp_path}/pipe: not a regular file"


def test_mistakes_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "tiny.txt").write_text("a few words")
    (tmp_path / "latin.txt").write_bytes(b"a\n" + "Älteste".encode("latin-1") * 100)
    for dataset, said in {
        Text(): "dataset.path=null: name a file, a folder or a pattern, as 'texts/*.txt'",
        Text(path=f"{tmp_path}/no"): f"dataset.path={tmp_path}/no: no such file",
        Text(path=f"{tmp_path}/no*"): f"dataset.path={tmp_path}/no*: the pattern matches no file",
        Text(path=f"{tmp_path}/empty.txt"): f"dataset.path={tmp_path}/empty.txt: contains no text",
        Text(path=f"{tmp_path}/empty.txt", tokens="bytes"): f"dataset.path={tmp_path}/empty.txt: contains no text",
        Text(path=f"{tmp_path}/tiny.txt"): (
            "dataset=text: the training text: has 9 tokens; dataset.context=64 needs 65 or more"
        ),
        Text(path=f"{tmp_path}/latin.txt"): (
            f"dataset.path={tmp_path}/latin.txt: not UTF-8 at byte 2 (line 2): 0xc4; "
            "dataset.tokens=bytes takes any file"
        ),
    }.items():
        with pytest.raises(UserError) as refused:
            dataset.load(tmp_path, 0)
        assert str(refused.value) == said
    with pytest.raises(UserError, match=r"vocabulary=256: the 256 bytes are tokens already; give 257 or more"):
        Text(tokens="bpe", vocabulary=256)
    with pytest.raises(UserError, match=r"validation=0\.5 with dataset\.test=0\.5: no text is left to train on"):
        Text(validation=0.5, test=0.5)


def with_alphabet(folder: Path, alphabet: str, path: str) -> str:
    """What a text says of a character that the run does not know whose tokens it takes."""
    card = folder / "run" / "card.json"
    card.parent.mkdir(exist_ok=True)
    card.write_text(json.dumps({"tokens": {"kind": "characters", "alphabet": alphabet}}))
    with pytest.raises(UserError) as refused:
        Text(path=path, context=4, tokens=str(card)).load(folder, 0)
    return str(refused.value)


@pytest.mark.parametrize("at", [7, 540, 590])
def test_a_character_that_a_run_does_not_know_is_named_with_its_place_in_the_file(tmp_path: Path, at: int) -> None:
    """Its place was counted from the beginning of the split: 0 of a test that begins at 540."""
    text = list("äbcd\n" * 120)
    text[at] = "z"
    (tmp_path / "text.txt").write_text("".join(text), encoding="utf-8")
    said = with_alphabet(tmp_path, "\nbcdä", f"{tmp_path}/text.txt")
    assert said == (
        f"dataset=text: {tmp_path}/text.txt: the character 'z' at {at} (line {at // 5 + 1}) is not among the 5 that "
        "the model knows; a run with dataset.tokens=bytes knows every text"
    )


def test_the_file_of_an_unknown_character_is_named(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("abcd\n" * (20 + number) + "z" * (number == 3))
    said = with_alphabet(tmp_path, "\nabcd", f"{tmp_path}/*.txt")
    assert said.startswith(f"dataset=text: {tmp_path}/3.txt: the character 'z' at 115 (line 24) is not among the 5 ")


def test_a_line_break_between_files_may_be_unknown_too(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("abcd" * (20 + number))
    said = with_alphabet(tmp_path, "abcd", f"{tmp_path}/*.txt")
    assert said.startswith("dataset=text: the character '\\n', which is put between documents, is not among the 4 ")


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ({"kind": "words"}, "is missing, or does not describe tokens; name a run that was trained on text"),
        ({"alphabet": "abcd"}, "is missing, or does not describe tokens; name a run that was trained on text"),
        (["a"], "is missing, or does not describe tokens; name a run that was trained on text"),
        ({"kind": "characters"}, "describes no tokens (KeyError: 'alphabet'"),
        ({"kind": "bpe", "merges": {}}, "describes no tokens (Exception: "),
    ],
)
def test_a_card_that_describes_no_tokens_is_one_message(tokens: object, said: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcd " * 100)
    (tmp_path / "card.json").write_text(json.dumps({"tokens": tokens}))
    with pytest.raises(UserError) as refused:
        Text(path=f"{tmp_path}/text.txt", context=4, tokens=f"{tmp_path}/card.json").load(tmp_path, 0)
    assert str(refused.value).startswith(f"dataset.tokens={tmp_path}/card.json: {said}")


@pytest.mark.parametrize("tokens", ["bytes", "characters", "bpe"])
def test_bits_per_byte_are_those_of_the_text_whatever_its_tokens(tokens: str) -> None:
    text = "Über die Wälder – weit. " * 9
    vocabulary = learned(tokens, [text.encode()], 270, "text")
    y = sequences(vocabulary.encode(text.encode(), "text"), 7, None, "text").y
    task = LanguageModelling(7, vocabulary.size, vocabulary)
    judge, found = task.judge(CrossEntropy()), {"validation/loss": math.log(vocabulary.size)}
    for rows in (slice(0, 2), slice(2, None)):
        judge.add(y[rows], np.zeros((*y[rows].shape, vocabulary.size)), y[rows].astype(np.int64))
    (bits,) = [metric for metric in judge.metrics() if metric.name == "test/bits_per_byte"]
    predicted = vocabulary.decode(y.reshape(-1))
    assert bits.value == pytest.approx(math.log2(vocabulary.size) * y.size / len(predicted))
    assert (bits.unit, bits.direction) == ("bits/byte", "min")
    assert task.validated(CrossEntropy(), found, y)[0].value == pytest.approx(bits.value)
    assert task.validated(CrossEntropy(label_smoothing=0.1), found, y) == task.validated(CrossEntropy(), {}, y) == ()


def test_numbers_that_stand_for_no_text_have_no_bits_per_byte() -> None:
    judge = LanguageModelling(2, 3).judge(CrossEntropy())
    judge.add(np.zeros((1, 2)), np.zeros((1, 2, 3)), np.zeros((1, 2), np.int64))
    assert [metric.name for metric in judge.metrics()] == ["test/loss", "test/accuracy", "test/perplexity"]


def test_the_card_has_the_vocabulary() -> None:
    vocabulary = learned("characters", [b"abc"], 0, "text")
    card = json.loads(json.dumps(LanguageModelling(7, 3, vocabulary).card()))
    assert (card["task"], card["x"], card["vocabulary"]) == ("languagemodelling", [7], 3)
    assert from_plain(card["tokens"]) == vocabulary
