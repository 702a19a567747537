"""Texts larger than memory: tokens are made piece by piece, and what is long lies in files without a name."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from anonymous_memory import most_anonymous
from command import environment, refused, runs
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline import tokens as vocabularies
from pipeline.datasets import documents
from pipeline.datasets.documents import File, content, joined, joined_size, sha256
from pipeline.datasets.text import Text
from pipeline.errors import UserError
from pipeline.loaders.tfdata import is_mapped
from pipeline.machine import unnamed_file
from pipeline.machine.unnamed_file import kept
from pipeline.runs.result import metrics_of
from pipeline.tokens import bpe, characters, learned, next_character
from pipeline.tokens.character import Characters

Kind = Literal["bytes", "characters", "bpe"]
KINDS: tuple[Kind, ...] = ("bytes", "characters", "bpe")
PARTS = (
    "Über",
    " die",
    " Wälder",
    " – ",
    "中文字",
    " \U0001f40b",
    "!\x1c?",
    "\r\n\t",
    "   ",
    " it's",
    "\u3000",
    "\x85",
    "12",
    "a",
)
WORDS = "".join(PARTS)
KNOWN = st.lists(st.sampled_from(PARTS)).map("".join)
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=3)).map("".join)


@contextmanager
def pieces_of(size: int) -> Iterator[None]:
    """Texts are decoded so many bytes at a time, given to tokenizers by a few characters, and all kept in files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabularies, "PIECE", size)
        patch.setattr(bpe, "HANDED", size)
        patch.setattr(bpe, "TOGETHER", 2)
        patch.setattr(unnamed_file, "SMALL", 0)
        patch.setattr(documents, "READ", 0)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def pairs() -> bpe.Bpe:
    """Byte pairs of a text of words, each of which is a token in the end."""
    return bpe.learned([(WORDS + part + "\n").encode() for part in PARTS], 400, "text")


# Piece by piece


@given(text=TEXTS, size=st.integers(1, 9))
def test_characters_of_a_text_in_tiny_pieces_are_those_of_the_whole(folder: Path, text: str, size: int) -> None:
    alphabet = sorted(set(text))
    with pieces_of(size):
        vocabulary = learned("characters", [text[:5].encode(), text[5:].encode()], 0, "text")
        found = vocabulary.encode(memoryview(text.encode()), "text", folder)
    assert vocabulary == Characters("".join(alphabet))
    assert found.tolist() == [alphabet.index(letter) for letter in text]
    assert not text or found.dtype == np.min_scalar_type(len(alphabet) - 1)


@given(text=TEXTS, size=st.integers(1, 9))
def test_byte_pairs_of_a_text_in_tiny_pieces_are_those_of_the_whole(
    folder: Path, pairs: bpe.Bpe, text: str, size: int
) -> None:
    with pieces_of(size):
        found = pairs.encode(memoryview(text.encode()), "text", folder)
    assert found.tolist() == pairs.library.encode(text).ids
    assert found.dtype == np.uint16


@given(texts=st.lists(TEXTS, max_size=3), size=st.integers(1, 9))
def test_byte_pairs_that_are_learned_in_tiny_pieces_are_those_of_the_whole(texts: list[str], size: int) -> None:
    whole = bpe.learned([text.encode() for text in texts], 270, "text")
    with pieces_of(size):
        assert bpe.learned([text.encode() for text in texts], 270, "text") == whole


@given(text=st.binary() | TEXTS.map(str.encode), size=st.integers(1, 9))
def test_a_text_in_pieces_is_refused_as_the_whole_is(text: bytes, size: int) -> None:
    """Where it is not UTF-8, by the same byte and line."""
    with pieces_of(size):
        try:
            expected = text.decode()
        except UnicodeDecodeError as error:
            place = error.start
            line = text[:place].count(b"\n") + 1
            said = f"text: not UTF-8 at byte {place:,} (line {line:,}): 0x{text[place]:02x}; "
            with pytest.raises(UserError, match=f"^{re.escape(said)}dataset.tokens=bytes takes any file$"):
                list(characters(memoryview(text), "text"))
        else:
            assert "".join(characters(memoryview(text), "text")) == expected


@given(text=KNOWN, unknown=st.none() | st.sampled_from("ЖжÄ"), bad=st.booleans(), size=st.integers(1, 9))
def test_the_first_unknown_character_is_named_unless_the_text_is_not_utf8(
    text: str, unknown: str | None, bad: bool, size: int
) -> None:
    vocabulary = Characters("".join(sorted(set(WORDS))))
    content = (text + (unknown or "") + text + "Ö" * (unknown is not None)).encode() + b"\xff" * bad
    with pieces_of(size):
        if bad:
            with pytest.raises(UserError, match=rf"^text: not UTF-8 at byte {len(content) - 1:,} "):
                vocabulary.encode(content, "text")
        elif unknown:
            said = f"text: the character {unknown!r} at {len(text):,} is not among the {vocabulary.size} that"
            with pytest.raises(UserError, match=f"^{re.escape(said)}"):
                vocabulary.encode(content, "text")
        else:
            assert vocabulary.decode(vocabulary.encode(content, "text")) == content


@given(text=st.binary(max_size=20), place=st.integers(0, 25))
@example(text=b"\0" * 6 + b"\x80" * 4, place=6)
def test_the_next_character_begins_at_no_continuation(text: bytes, place: int) -> None:
    """Of UTF-8: where four continuations follow each other, no character could have begun before them."""
    found = next_character(text, place)
    assert found in (len(text), place + 3) or (found >= place and text[found] & 0xC0 != 0x80)
    assert all(byte & 0xC0 == 0x80 for byte in text[place:found])


# Files


@given(pieces=st.lists(st.binary(max_size=9)), small=st.integers(0, 9))
def test_pieces_are_kept_in_memory_or_in_a_file(folder: Path, pieces: list[bytes], small: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unnamed_file, "SMALL", small)
        found = kept(iter(pieces), folder, "text")
        assert isinstance(found, memoryview) == (len(b"".join(pieces)) > small)
        assert isinstance(kept(pieces, None, "text"), bytes)
    assert bytes(found) == b"".join(pieces)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_data_of_mapped_texts_are_those_of_texts_in_memory(tmp_path: Path, kind: Kind, count: int) -> None:
    for number in range(count):
        (tmp_path / f"{number}.txt").write_text(WORDS * (9 + number), encoding="utf-8", newline="")
    dataset = Text(path=str(tmp_path / "*.txt"), tokens=kind, vocabulary=300, context=8)
    whole = dataset.load(tmp_path / "cache", 0)
    assert not (tmp_path / "cache").exists()
    with pieces_of(5):
        mapped = dataset.load(tmp_path / "cache", 0)
    assert mapped.sha256 == whole.sha256
    assert mapped.task == whole.task
    for split in ("train", "validation", "test"):
        for part in ("x", "y"):
            ours, theirs = (getattr(getattr(data, split), part) for data in (mapped, whole))
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
    assert not mapped.train.x.flags.writeable
    assert list((tmp_path / "cache").glob("*")) == []


@pytest.mark.parametrize(("read", "small"), [(2**20, 2**24), (100, 50_000)])  # as they are; all mapped
def test_more_files_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int, small: int) -> None:
    """Small files are read, and of large ones few are mapped at a time."""
    monkeypatch.setattr(documents, "READ", read)
    monkeypatch.setattr(unnamed_file, "SMALL", small)
    for number in range(200):
        (tmp_path / f"{number:03}.txt").write_bytes(b"%03d" % number * (500 + number))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 60, hard))
    try:
        data = Text(path=str(tmp_path), context=8).load(tmp_path / "cache", 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(data.train) > 20_000


def test_documents_are_joined_as_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "READ", 3)
    texts = (b"abc", b"defg", b"hij" * 9)
    for number, text in enumerate(texts):
        (tmp_path / str(number)).write_bytes(text)
    files = [File.of(tmp_path / str(number), "text") for number in range(len(texts))]
    assert [type(content(file)) for file in files] == [bytes, memoryview, memoryview]
    for count in range(4):
        assert bytes(joined(files[:count], tmp_path, "text")) == b"\n\n".join(texts[:count])
        assert joined_size(files[:count]) == len(b"\n\n".join(texts[:count]))
    assert sha256(files) == sha256(texts)


def test_a_mapped_text_is_known_as_one(tmp_path: Path) -> None:
    """tf.data would put the whole of it into memory."""
    (tmp_path / "a.txt").write_bytes(b"a few words " * 100_000)
    mapped = np.frombuffer(File.of(tmp_path / "a.txt", "text").content(), np.uint8)
    assert is_mapped(np.lib.stride_tricks.sliding_window_view(mapped[1:], 8)[::3])
    assert is_mapped(np.memmap(tmp_path / "a.txt", np.uint8, "r")[5:])
    assert not is_mapped(mapped.copy()[3:]) and not is_mapped(np.frombuffer(b"abc", np.uint8))


def test_a_folder_without_files_is_not_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a folder without files$"):
        Text(path=str(tmp_path)).paths()


# Refusals


def test_a_file_that_changes_meanwhile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    os.utime(path, ns=(1, 1))
    file = File.of(path, "dataset.path=a.txt")
    for change, said in (
        (lambda: path.write_text("two"), "changed while it was read"),
        (lambda: path.write_text("longer"), "changed while it was read"),
        (path.unlink, "No such file"),
    ):
        change()
        with pytest.raises(UserError, match=rf"^dataset\.path=a\.txt: {path}: {said}"):
            file.content()


def test_a_full_disk_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses to make a file larger, as it does where there is no room."""
    monkeypatch.setattr(unnamed_file, "SMALL", 0)
    (tmp_path / "a.txt").write_text("a few words " * 5_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UserError) as refusal:
            Text(path=str(tmp_path / "a.txt")).load(tmp_path / "cache", 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(refusal.value) == unwritten(tmp_path / "cache", "File too large")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_folder_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "a.txt").write_bytes(b"a few words " * 2_000_000)
    words = ("stage=train", "model=gpt", "dataset=text", "dataset.path=a.txt", "tracking=none")
    cache = tmp_path / "file" / "cache"
    assert refused(tmp_path, *words, PIPELINE_CACHE=str(cache)) == unwritten(cache, "Not a directory")


def unwritten(cache: Path, why: str) -> str:
    return (
        f"dataset=text: cache folder {cache}: cannot write the text to a temporary file: {why}; "
        "name another with PIPELINE_CACHE, on a disk with room for it"
    )


# Memory

FILES, SIZE = 5, 40_000_000  # of text, in bytes
ALLOWED = 2**27  # bytes of memory: characters took some 15 for each of the text when their tokens were made at once


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_a_training_on_a_large_text_holds_a_piece_of_it(tmp_path: Path, kind: Kind) -> None:
    """At its most it has little more memory for itself than a training on a small one."""
    largest = {}
    for name, size in (("small", 20_000), ("large", SIZE)):
        (tmp_path / name).mkdir()
        for number in range(FILES + 2):  # one of the last two for the test, one for validation
            line = f"Über die Wälder {number} – weit, 中文字 and the sea.\n".encode()
            repeated = (size if number < FILES else 20_000) // len(line)
            (tmp_path / name / f"{number}.txt").write_bytes(line * repeated)
        largest[name] = anonymous_of_training(tmp_path, name, kind)
    assert largest["large"] < largest["small"] + ALLOWED


def anonymous_of_training(folder: Path, path: str, kind: Kind) -> int:
    """Bytes of anonymous memory that 3 steps on torch take at most."""
    words = ["stage=train", "model=gpt", "model.layers=1", "model.heads=2", "model.width=16", "loader=threads"]
    words += ["dataset=text", f"dataset.path={path}", f"dataset.tokens={kind}", "tracking=none", "backend=torch"]
    words += ["dataset.validation=0.0001", "dataset.test=0.0001", "training.evaluation_batch_size=256"]
    words += ["training.steps=3", "training.batch_size=8"]
    command = [sys.executable, "-m", "pipeline", *words]
    variables = environment(OMP_NUM_THREADS="1", PIPELINE_CACHE=str(folder / "cache"))
    with (folder / "said").open("w") as stream:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=stream, stderr=stream)
    largest = most_anonymous(process)
    assert process.returncode == 0, (folder / "said").read_text()[-2000:]
    assert metrics_of(runs(folder)[-1])["test/loss"].value > 0
    return largest
