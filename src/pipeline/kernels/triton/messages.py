"""What Triton says of a program that it cannot compile or run, in one line."""

from __future__ import annotations

from triton.errors import TritonError


def one_line(error: BaseException) -> str:
    """An error in words. Triton shows the program down to a line, below that a caret, then what is wrong there: of
    these all but the program's other lines. Where a function that it calls is wrong, only the cause says so."""
    inner = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "^" not in lines:
        return " ".join(lines)
    caret = lines.index("^")
    if caret + 1 == len(lines) and isinstance(inner, TritonError):
        return one_line(inner)
    return f"{' '.join((lines[0], *lines[caret + 1 :]))}, in {lines[caret - 1]}"
