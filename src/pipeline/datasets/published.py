"""Files that a publisher fixed: named, hashed, and found in any of several sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.datasets.fetch import ensure, read_cached, read_folder
from pipeline.datasets.sources import File, Source
from pipeline.machine.regular_file import as_named


@dataclass(frozen=True)
class PublishedFiles:
    """`name`: the folder in the cache. `files`: in the order in which they are read.

    `offline`: the dataset of the same kind that needs no network.
    """

    name: str
    files: Sequence[File]
    sources: Sequence[Source]
    offline: str | None = field(default=None, kw_only=True)

    def read(self, root: Path, folder: str | None) -> list[np.ndarray]:
        """The content of each file, uint8: from the user's `folder`, or from the cache below `root`.

        Missing files are fetched to the cache. Raises UserError for a file that is missing or damaged.
        """
        if folder is not None:
            return [read_folder(file, as_named(folder)) for file in self.files]
        cache = root / self.name
        ensure(self.files, self.sources, cache, self.offline)
        return [read_cached(file, cache) for file in self.files]
