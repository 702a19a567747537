"""The user's text: a file, all files of a folder, or those that a pattern matches."""

from __future__ import annotations

import glob
import mmap
from collections.abc import Sequence
from pathlib import Path

from pipeline.datasets.corpus import Corpus
from pipeline.errors import UserError
from pipeline.spec import spec
from pipeline.tokens import Content, decoded


@spec
class Text(Corpus):
    """`path`: a file is one document, cut into the splits; of several files, whole ones are held out.

    A single file that is read by bytes stays on the disk: it may be larger than memory.
    """

    path: str | None = None

    def documents(self, root: Path) -> Sequence[Content]:
        """The files' contents, by path."""
        paths = self.paths()
        whole = len(paths) == 1 and self.tokens == "bytes"
        try:
            contents = [mapped(path) if whole else path.read_bytes() for path in paths]
        except OSError as error:
            raise UserError(f"dataset.path={self.path}: {error.filename}: {error.strerror}") from error
        if self.tokens != "bytes":
            for path, content in zip(paths, contents, strict=True):
                decoded(content, f"dataset.path={path}")
        found = [content for content in contents if len(content)]
        if not found:
            raise UserError(f"dataset.path={self.path}: contains no text")
        return found

    @property
    def user_files(self) -> tuple[Path, ...]:
        """The files: their content decides the result."""
        return tuple(self.paths())

    def paths(self) -> list[Path]:
        """The files, sorted. Raises UserError where there are none."""
        if self.path is None:
            raise UserError("dataset.path=null: name a file, a folder or a pattern, as 'texts/*.txt'")
        path = Path(self.path).expanduser()
        if path.is_dir():
            found = [one for one in path.rglob("*") if one.is_file() and not _hidden(one.relative_to(path))]
        else:
            names = glob.glob(str(path), recursive=True)  # noqa: PTH207  # Path.glob takes no absolute pattern
            found = [Path(name) for name in names if Path(name).is_file()]
        if not found:
            raise UserError(f"dataset.path={self.path}: no such file")
        return sorted(found)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def mapped(path: Path) -> Content:
    """The content of a file, memory-mapped: parts are read when they are needed."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return b""
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
