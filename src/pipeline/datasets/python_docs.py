"""The topics of Python's own help(): 79 of them, 0.5 MB (CPython 3.11). No network: every Python has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.datasets.corpus import Corpus
from pipeline.spec import spec
from pipeline.tokens import Content


@spec
class PythonDocs(Corpus):
    """Each topic is a document. Another version of Python has another text: compare the receipts' data_sha256."""

    def documents(self, root: Path) -> Sequence[Content]:
        """The topics, by name."""
        from pydoc_data.topics import topics

        return [topics[name].encode() for name in sorted(topics)]
