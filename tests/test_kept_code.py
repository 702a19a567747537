"""What our modules hash to is kept between runs, by their bytes: nothing is parsed twice, and nothing is stale."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_backend import experiment

from pipeline.machine.cache_folder import CACHE_VARIABLE
from pipeline.runs.code import code_hash, sources, syntax
from pipeline.runs.code.kept import Kept, kept

NAME = "pipeline.part"


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


@given(
    st.sampled_from(
        ["", "{", "[]", '{"KEY": 3}', '{"KEY": ["a"]}', '{"KEY": null}', '{"KEY": [1, 2, 3]}', '{"KEY": ["a", 3]}']
    )
)
def test_a_file_that_is_not_ours_is_made_anew(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("kept")
    part = folder / "part.py"
    part.write_text("import a\nx = 1\n")
    right = known(folder / "right.json", part)
    (key,) = Kept(folder / "right.json").found
    (folder / "kept.json").write_text(text.replace("KEY", key))
    assert known(folder / "kept.json", part) == right
    assert Kept(folder / "kept.json").found[key] == [right[0], list(right[1])]


def test_hashes_are_the_same_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = code_hash.modules(experiment("torch"))
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    every = (kept, sources.imports, sources.digest)
    for function in every:
        function.cache_clear()
    try:
        assert code_hash.modules(experiment("torch")) == wanted
        assert kept().file.is_relative_to(tmp_path)
    finally:
        for function in every:
            function.cache_clear()
