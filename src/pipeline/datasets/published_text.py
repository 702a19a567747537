"""What texts that are fetched share: where their files lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pipeline.datasets.corpus import Corpus
from pipeline.datasets.published import PublishedFiles
from pipeline.spec import spec
from pipeline.tokens import Content


@spec
class PublishedText(Corpus):
    """The settings of every such text; each is a separate spec that says what is `published`."""

    published: ClassVar[PublishedFiles]
    locations: ClassVar[tuple[str, ...]] = ("cache", "folder")

    cache: str | None = None
    """Folder that fetched files are kept in. None is the user's cache (see `machine.cache_folder`)."""
    folder: str | None = None
    """Folder of yours with the file: read from there, nothing is fetched."""

    def documents(self, root: Path) -> Sequence[Content]:
        """The published files, one document each."""
        return [content.tobytes() for content in self.published.read(root, self.folder)]
