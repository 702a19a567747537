"""The import of a framework."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.machine.quiet import import_for


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_nothing_is_collected_during_an_import_and_again_after_it(modules: Path) -> None:
    (modules / "own_framework.py").write_text("import gc\n\ncollects = gc.isenabled()\n")
    assert import_for("own", "own_framework").collects is False
    assert gc.isenabled()
    del sys.modules["own_framework"]


def test_a_framework_that_cannot_be_imported_is_one_message_and_garbage_is_collected_again(modules: Path) -> None:
    (modules / "own_broken.py").write_text('raise RuntimeError("no such\\n  driver")\n')
    with pytest.raises(UserError, match=r"^backend=own cannot be imported: .*no such driver"):
        import_for("own", "own_broken")
    assert gc.isenabled()
