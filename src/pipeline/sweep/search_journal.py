"""The journal that Optuna keeps of a study, a line for each change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
from optuna.storages.journal import JournalFileBackend

from pipeline.cli.streams import say
from pipeline.cli.terminal import messages

PATIENCE_SECONDS = 10.0  # with a writer, which takes milliseconds; then the wait is said


class Journal(JournalFileBackend):
    """Optuna's, behind a lock that the kernel drops when a writer is killed, and behind whole lines.

    Optuna's own locks are files, which the next writer waits 30 s for.
    """

    def __init__(self, file: Path) -> None:
        lock: Any = filelock.FileLock(f"{file}.writing")
        self.file, self.writing = file, lock
        super().__init__(str(file), lock)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write these changes. Raises OSError."""
        with self._alone():
            self._cut_half_line()
            super().append_logs(logs)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Say so where another process keeps the lock for long: one that is suspended does not let go of it."""
        try:
            self.writing.acquire(timeout=PATIENCE_SECONDS)
        except filelock.Timeout:
            say(messages(), f"waiting for another process that holds {self.file}; is one suspended (Ctrl-Z)?")
            self.writing.acquire()
        try:
            yield
        finally:
            self.writing.release()

    def _cut_half_line(self) -> None:
        """A full disk leaves half a line at the end, and one behind it would make both, and the study, unreadable."""
        with self.file.open("a+b") as file:
            if not file.seek(0, os.SEEK_END):
                return
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.truncate(self.file.read_bytes().rfind(b"\n") + 1)
