"""Where a text has a character that the tokens of a saved run lack: encoding knows its place in the split alone."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.datasets.documents import Document, File, content
from pipeline.errors import UserError
from pipeline.tokens import characters
from pipeline.tokens.character import UnknownCharacter

REMEDY = "a run with dataset.tokens=bytes knows every text"


def placed(error: UnknownCharacter, documents: Sequence[Document], who: str) -> UserError:
    """The same with the first of these documents that has the character, and its place and line there."""
    for document in documents:
        found = _place(document, error.character, who)
        if found:
            name = f"{who}: {document.path}" if isinstance(document, File) else who
            return UserError(f"{name}: the character {error.character!r} {found} {error.lacking}; {REMEDY}")
    between = f"{error.character!r}, which is put between documents,"
    return UserError(f"{who}: the character {between} {error.lacking}; {REMEDY}")


def _place(document: Document, character: str, who: str) -> str | None:
    before, line = 0, 1
    for piece in characters(content(document), who):
        at = piece.find(character)
        if at >= 0:
            return f"at {before + at:,} (line {line + piece.count(chr(10), 0, at):,})"
        before, line = before + len(piece), line + piece.count("\n")
    return None
