"""Faults put into a CUDA source, one at a time: a barrier, a fence, a wait, a commit or a check of bounds is taken
out, or a fence comes too late.

Every such place is found in the text, so that a new one in a kernel is a new mutant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# Calls that order what threads do, each a separate statement.
ORDERING = re.compile(
    r"(__syncthreads|__syncwarp|__threadfence\w*|__pipeline_commit|__pipeline_wait_prior"
    r"|barrier_\w+|fence_async|wgmma_fence|wgmma_commit|wgmma_wait<\d+>)\([^;]*\);"
)
# A fence, and the arrival by which other threads learn of it.
PUBLISHED = re.compile(r"(fence_async\(\);)([^;{}]*)(barrier_arrive\([^;]*\);)")
# What a comparison has on its right where it keeps an access inside a matrix or a slice.
LIMIT = (
    r"(?:M|N|K|rows|columns|ROWS(?: \* COLUMNS)?|COLUMNS|TILE(?: \* TILE)?|elements|inside|slices|tiles"
    r"|BLOCK_M|BLOCK_N|BOXES \* LINE|2 \* COUNT)"
)
BOUND = re.compile(rf"[\w.]+(?: [+*] [\w.]+)* (<=|<|>=|>) {LIMIT}\b(?! \*)")
# What keeps a fast way from being taken where it does not suit.
ALIGNMENT = re.compile(
    r"reinterpret_cast<size_t>\(\w+\) % \d+ == 0|leading(?: \* sizeof\(T\))? % \w+ == 0"
    r"|\bK % \w+ == 0|in_chunks\(from\.\w, \w+\)|(?:is_aligned|suits_tma)\(\w+, \w+\)(?= &&|;|\))"
)
SCALE = re.compile(r"beta [!=]= 0")


@dataclass(frozen=True)
class Mutant:
    """A file's text with one fault. `what`: the text that was taken out, and its line."""

    file: str
    line: int
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} without {self.what}"


def mutants(source: Path) -> list[Mutant]:
    """One for each site in a source."""
    text = source.read_text()
    made = []
    for pattern in (ORDERING, PUBLISHED, BOUND, ALIGNMENT, SCALE):
        for found in pattern.finditer(text):
            line = text.count("\n", 0, found.start())
            if "//" in text.splitlines()[line][: found.start() - text.rfind("\n", 0, found.start())]:
                continue  # a comment
            changed = text[: found.start()] + _without(pattern, found) + text[found.end() :]
            what = f"{found[1]} before {found[3]}" if pattern is PUBLISHED else found[0]
            made.append(Mutant(source.name, line + 1, what, changed))
    return sorted(made, key=lambda one: one.line)


def _without(pattern: re.Pattern[str], found: re.Match[str]) -> str:
    """What stands there once the fault is in: no call, the two in the other order, or a check that always lets pass."""
    if pattern is ORDERING:
        return ";"
    if pattern is PUBLISHED:
        return f"{found[3]}{found[2]}{found[1]}"
    leaves = pattern is BOUND and found[1] in (">", ">=") and "return" in found.string[found.end() :].split("\n")[0]
    return "false" if leaves else "true"
