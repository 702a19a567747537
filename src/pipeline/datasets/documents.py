"""Documents: a text each, in memory or in a file that is read or mapped when its content is asked for."""

from __future__ import annotations

import codecs
import hashlib
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UserError
from pipeline.machine.unnamed_file import kept
from pipeline.tokens import Content

BETWEEN = b"\n\n"  # documents of one split
READ = 2**20  # bytes of the largest file that is read, not mapped: each map keeps its file open


@dataclass(frozen=True)
class File:
    """A file as it is when this is made. `who` begins its messages.

    `begin`: the bytes of the byte-order mark with which programs of Windows sign a file of UTF-8. It is not text.
    """

    path: Path
    who: str
    state: tuple[int, int, int]  # size, time of the last change in ns, inode
    begin: int

    @classmethod
    def of(cls, path: Path, who: str) -> File:
        """Raises OSError."""
        with path.open("rb") as file:
            marked = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
            return cls(path, who, _state(os.fstat(file.fileno())), marked * len(codecs.BOM_UTF8))

    @property
    def size(self) -> int:
        """Bytes of its text."""
        return self.state[0] - self.begin

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return bytes(self.content())

    def content(self) -> Content:
        """What is in the file. Raises UserError where it cannot be read, or has changed: it is read several times."""
        try:
            with self.path.open("rb") as file:
                if _state(os.fstat(file.fileno())) != self.state:
                    raise UserError(f"{self.who}: {self.path}: changed while it was read; start again")
                if self.size <= READ:
                    return file.read()[self.begin :]
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[self.begin :]
        except OSError as error:
            raise UserError(f"{self.who}: {self.path}: {error.strerror}") from error


def _state(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ino


Document = Content | File


def content(document: Document) -> Content:
    """The text of a document. Raises UserError."""
    return document.content() if isinstance(document, File) else document


def joined(documents: Sequence[Document], folder: Path | None, who: str) -> Content:
    """The text of documents with BETWEEN between them: of one its own; a long one lies in a file in `folder`.

    Raises UserError.
    """
    return content(documents[0]) if len(documents) == 1 else kept(_pieces(documents), folder, who)


def joined_size(documents: Sequence[Document]) -> int:
    """Bytes of that text."""
    return sum(len(one) for one in documents) + len(BETWEEN) * max(len(documents) - 1, 0)


def _pieces(documents: Sequence[Document]) -> Iterator[Content]:
    for number, document in enumerate(documents):
        if number:
            yield BETWEEN
        yield content(document)


def sha256(documents: Sequence[Document]) -> str:
    """Of the documents, each with its length."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{len(document)}:".encode())
        digest.update(content(document))
    return digest.hexdigest()
