"""What this package's own modules import and hash to, kept between runs: to read them takes a fiftieth of parsing.

It is kept by the bytes of a module, by this Python and by the code that finds it out, so that nothing kept is stale.
The file is trusted: whoever can write into the cache folder can write into ours.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import platform
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.machine.cache_folder import cache_root
from pipeline.runs.code import syntax
from pipeline.runs.json_files import read_json, write_json

MOST = 1500  # modules in the file, those of earlier days too; with more it begins anew


class Known(NamedTuple):
    """The hash of what a module does, and every module that it may import."""

    digest: str
    imports: tuple[str, ...]


class Kept:
    """A file of the cache, by the hashes of modules' names and bytes; None: nothing is kept."""

    def __init__(self, file: Path | None) -> None:
        self.file, self.found = file, read_json(file) if file else {}
        self.new: dict[str, Any] = {}

    def of(self, name: str, path: Path) -> Known:
        """What is known of a module of this package."""
        content = path.read_bytes()
        key = hashlib.sha256(f"{name} {path.name}\n".encode() + content).hexdigest()
        with contextlib.suppress(KeyError, TypeError, ValueError):  # not kept, or not by us
            digest, imports = self.found[key]
            if isinstance(digest, str) and isinstance(imports, list):
                return Known(digest, tuple(map(str, imports)))
        tree = syntax.parsed(content, path)
        if tree is None:  # for want of memory perhaps: the next process may parse it
            return Known(hashlib.sha256(content).hexdigest(), ())
        known = _known(name, path, tree)
        self.found[key] = self.new[key] = [known.digest, list(known.imports)]
        return known

    def write(self) -> None:
        """Keep what is new beside what others have kept meanwhile; where nothing can be kept, nothing is lost."""
        if not self.new or self.file is None:
            return
        before = read_json(self.file)
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.file, (before if len(before) < MOST else {}) | self.new)
        self.new = {}


@cache
def kept() -> Kept:
    """That of this user and Python."""
    makes = [Path(module).read_bytes() for module in (__file__, syntax.__file__)]
    decides = hashlib.sha256(b"\n".join([platform.python_version().encode(), *makes])).hexdigest()
    try:
        return Kept(cache_root(None) / "code" / f"{decides[:16]}.json")
    except RuntimeError:  # a user without a home
        return Kept(None)


def _known(name: str, path: Path, tree: ast.Module) -> Known:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return Known(hashlib.sha256(syntax.text(tree).encode()).hexdigest(), syntax.imports(tree, package, by_call=False))
