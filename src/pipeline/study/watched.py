"""Whether DVC watches what `compose` reads: configs, code and files elsewhere could change with no stage rerun."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.cli.conf_path import VARIABLE, conf_path
from pipeline.errors import UserError
from pipeline.raised import is_installed
from pipeline.study import documents, lock, saved

FILE = Path("dvc.yaml")
STAGE = "compose"


def refuse_unwatched(modules: Iterable[str], files: Iterable[Path] = ()) -> None:
    """Raises UserError where the configs, one of `modules` or of `files` lie outside the deps of `compose` in dvc.yaml.

    An installed package is left alone, as the frameworks are: the receipt has its version. Without dvc.yaml nothing is
    watched, and nothing is refused.
    """
    if not FILE.is_file():
        return
    deps = _deps()
    roots = [Path(dep).resolve() for dep in deps]
    known = f"{FILE} has {', '.join(deps) or 'none'}"
    conf = conf_path().resolve()
    if not _below(conf, roots):
        raise UserError(
            f"{VARIABLE}={conf}: DVC does not watch this folder, so an edit there would rerun nothing; unset "
            f"{VARIABLE}, or add the folder to the deps of the stage {STAGE} ({known})"
        )
    for top in dict.fromkeys(name.partition(".")[0] for name in modules):
        place = _place(top)
        if place is not None and not _below(place, roots) and not is_installed(place):
            raise UserError(
                f"{top}: it is imported from {place}, which DVC does not watch, so an edit there would rerun nothing; "
                f"add it to the deps of the stage {STAGE} ({known})"
            )

    for file in files:
        place = file.absolute().resolve()
        if not _below(place, roots) and not is_installed(place):
            raise UserError(
                f"{file}: DVC does not watch this file, so that with other contents it would rerun nothing; add it to "
                f"the deps of the stage {STAGE} ({known})"
            )


def refuse_unchained(sources: Mapping[str, str]) -> None:
    """Raises UserError where a stage starts from the run of another, and dvc.yaml does not say so.

    `sources`: the block whose run it starts from, by the name of the block. Without dvc.yaml nothing is refused.
    """
    if not sources or not FILE.is_file():
        return
    stages = lock.files()
    for name, source in sources.items():
        folder = str(saved.folder(source))
        for block, which, paths in ((name, "deps", 0), (source, "outs", 1)):
            if block in stages and folder not in stages[block][paths]:
                raise UserError(
                    f"{FILE}: {block}: {name} starts from the run of {source}; add {folder} to the {which} of the "
                    f"stage that runs {block}"
                )


def _deps() -> list[str]:
    stages = documents.read(FILE, "it lists the stages").get("stages")
    stage = stages.get(STAGE) if isinstance(stages, dict) else None
    deps = stage.get("deps") if isinstance(stage, dict) else None
    return [str(dep) for dep in deps or []]


def _place(top: str) -> Path | None:
    """The folder of a package, or the file of a module."""
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None


def _below(path: Path, roots: Iterable[Path]) -> bool:
    return any(path == root or path.is_relative_to(root) for root in roots)
