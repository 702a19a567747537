"""What our modules hash to is kept between runs, by their bytes: nothing is parsed twice, and nothing is stale."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_backend import experiment

from pipeline.machine.cache_folder import CACHE_VARIABLE
from pipeline.runs.code import code_hash, sources, syntax
from pipeline.runs.code.kept import Kept, kept

NAME = "pipeline.part"
VALUES = ("3", "null", '["a"]', "[1, 2, 3]", '["a", 3]', '["", "abc"]')


@pytest.fixture
def part(tmp_path: Path) -> Path:
    path = tmp_path / "part.py"
    path.write_text("import a\nx = 1\n")
    return path


def known(file: Path, path: Path) -> tuple[str, tuple[str, ...]]:
    """What a process finds out, and keeps."""
    one = Kept(file)
    found = one.of(NAME, path)
    one.write()
    return found


def test_what_is_kept_is_not_parsed_again(part: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = known(tmp_path / "kept.json", part)
    assert found[1] == ("a",)
    monkeypatch.setattr(syntax, "parsed", lambda *_: pytest.fail("parsed again"))
    assert known(tmp_path / "kept.json", part) == found


def test_what_is_not_parsed_is_not_kept(part: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be for want of memory: the next process would have had no import of the module's to follow."""
    with monkeypatch.context() as patched:
        patched.setattr(syntax, "parsed", lambda *_: None)
        assert known(tmp_path / "kept.json", part)[1] == ()
    assert known(tmp_path / "kept.json", part)[1] == ("a",)


def test_a_later_edit_is_not_hashed_by_a_process_that_runs_what_was_before(part: Path) -> None:
    """The worker of a sweep asks anew what the user's code hashes to, which has files that it reads."""
    before = sources.digest(NAME, part, Path.cwd())
    part.write_text("import b\nx = 2\n")
    sources.digest.cache_clear()
    sources.imports.cache_clear()
    assert (sources.digest(NAME, part, Path.cwd()), sources.imports(NAME, part)) == (before, ("a",))


def test_without_a_home_nothing_is_kept(part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_: None) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pipeline.runs.code.kept.cache_root", homeless)
    kept.cache_clear()
    try:
        assert kept().of(NAME, part).imports == ("a",)
        kept().write()
    finally:
        kept.cache_clear()


def test_an_edit_is_seen_and_a_comment_changes_no_hash(part: Path, tmp_path: Path) -> None:
    before = known(tmp_path / "kept.json", part)
    part.write_text("import a  # why\nx = 1\n")
    assert known(tmp_path / "kept.json", part) == before
    part.write_text("import b\nx = 1\n")
    after = known(tmp_path / "kept.json", part)
    assert (after[1], after[0] == before[0]) == (("b",), False)
    part.write_text("import a\nx = 1\n")
    assert known(tmp_path / "kept.json", part) == before


def test_relative_imports_are_of_the_name_that_the_module_has(tmp_path: Path) -> None:
    for name in ("part.py", "__init__.py"):
        (tmp_path / name).write_text("from . import a\n")
    found = [known(tmp_path / "kept.json", tmp_path / name)[1] for name in ("part.py", "__init__.py")]
    assert found == [("pipeline", "pipeline.a"), (NAME, f"{NAME}.a")]


def test_two_processes_keep_what_each_has_found(part: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("y = 2\n")
    both = [Kept(tmp_path / "kept.json") for _ in range(2)]
    for one, path in zip(both, (part, other), strict=True):
        one.of(NAME, path)
    for one in both:
        one.write()
    assert len(Kept(tmp_path / "kept.json").found) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", *(f'{{"KEY": {value}}}' for value in VALUES)])
def test_a_file_that_is_not_ours_is_made_again(part: Path, tmp_path: Path, text: str) -> None:
    right = known(tmp_path / "right.json", part)
    (key,) = Kept(tmp_path / "right.json").found
    (tmp_path / "kept.json").write_text(text.replace("KEY", key))
    assert known(tmp_path / "kept.json", part) == right
    assert Kept(tmp_path / "kept.json").found[key] == [right[0], list(right[1])]


def test_hashes_are_the_same_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = code_hash.modules(experiment("torch"))
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    every = (kept, sources.imports, sources.digest, sources._ours)
    for function in every:
        function.cache_clear()
    try:
        assert code_hash.modules(experiment("torch")) == wanted
        assert str(kept().file).startswith(str(tmp_path))
    finally:
        for function in every:
            function.cache_clear()
