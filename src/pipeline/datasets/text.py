"""The user's text: a file, all files of a folder, or those that a pattern matches."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pipeline.datasets.corpus import Corpus, Divided
from pipeline.datasets.documents import Document, File, sha256
from pipeline.errors import UserError
from pipeline.machine.regular_file import as_named, fault_of
from pipeline.spec import spec
from pipeline.tokens import characters


@spec
class Text(Corpus):
    """`path`: a file is one document, cut into the splits; of several files, whole ones are held out, and of files that
    are the same one alone counts: the others might be held out, and what was trained on would be tested.

    The files are mapped, whatever the tokens: together they may be larger than memory.
    """

    path: str | None = None

    def documents(self, root: Path) -> Sequence[Document]:
        """The files that are not empty, each once, by path. Raises UserError, also where tokens need UTF-8 and a file
        is not."""
        files = [file for file in self._files() if file.size]
        if self.kind != "bytes":
            for file in files:
                self._check_utf8(file)
        if not files:
            raise UserError(f"dataset.path={self.path}: contains no text")
        return distinct(files)

    def _check_utf8(self, file: File) -> None:
        """Decode a file, as it is again where its tokens are made. Raises UserError."""
        text, folder = file.content(), as_named(str(self.path))
        try:
            for _ in characters(text, f"dataset.path={file.path}", file.begin):
                pass
        except UserError as error:
            some = f"; dataset.path='{folder}/**/*.txt' takes some of the folder's files" if folder.is_dir() else ""
            raise UserError(f"{error}{some}") from error

    def _files(self) -> list[File]:
        """All of them, also those that are empty. Raises UserError."""
        try:
            return [File.of(path, f"dataset.path={self.path}") for path in self.paths()]
        except OSError as error:
            raise UserError(f"dataset.path={self.path}: {error.filename}: {error.strerror}") from error

    def _notes(self, documents: int, learned: int, text: Divided) -> tuple[str, ...]:
        files = self._files()
        empty = sum(not file.size for file in files)
        copies = len(files) - empty - documents
        left_out = (
            (empty, "is empty" if empty == 1 else "are empty"),
            (copies, "is a copy of another" if copies == 1 else "are copies of others"),
        )
        found = [
            f"dataset.path={self.path}: {number} of {len(files)} files {why}, and left out"
            for number, why in left_out
            if number
        ]
        return (*super()._notes(documents, learned, text), *found)

    @property
    def user_files(self) -> tuple[Path, ...]:
        """The files: their content decides the result. Also the card whose tokens these are."""
        return (*self.paths(), *super().user_files)

    def paths(self) -> list[Path]:
        """The files, sorted. Raises UserError where there are none."""
        if self.path is None:
            raise UserError("dataset.path=null: name a file, a folder or a pattern, as 'texts/*.txt'")
        path = as_named(self.path)
        missing: str | None = None
        if path.is_dir():
            missing = "a folder without files"
            found = [one for one in path.rglob("*") if one.is_file() and not _hidden(one.relative_to(path))]
        elif path.is_file():  # whose name may look like a pattern
            found = [path]
        else:
            names = glob.glob(str(path), recursive=True)  # noqa: PTH207  # Path.glob takes no absolute pattern
            found = [Path(name) for name in names if Path(name).is_file()]
            missing = "the pattern matches no file" if glob.has_magic(str(path)) else fault_of(path)
        if not found:
            raise UserError(f"dataset.path={self.path}: {missing}")
        return sorted(found)


def distinct(files: Sequence[File]) -> list[File]:
    """The first of those that have the same content, which only files of the same size can. Raises UserError."""
    sizes = Counter(file.size for file in files)
    found: dict[tuple[int, str], File] = {}
    for number, file in enumerate(files):
        content = sha256([file]) if sizes[file.size] > 1 else str(number)
        found.setdefault((file.size, content), file)
    return list(found.values())


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
