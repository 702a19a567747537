"""What stage=generate made: the texts, when they end, the files, the metrics and the table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.backends.shared.generation import Generated, Row
from pipeline.cli.streams import printable_lines
from pipeline.errors import plural, shown
from pipeline.machine.capability import Resolved
from pipeline.report.table import seconds as in_seconds
from pipeline.runs.result import Metric, count, rate, seconds
from pipeline.runs.run import Run
from pipeline.tokens import Tokens


@dataclass(frozen=True)
class Text:
    """What came of one prompt. `made`: the text behind it."""

    row: Row
    prompt_tokens: int
    made: bytes

    @property
    def tokens(self) -> list[int]:
        """Those that were made, also what `made` leaves out because it stops a text."""
        return self.row.tokens[self.prompt_tokens :]


class Stops:
    """The texts in the making, by row, and whether one has come to its end."""

    def __init__(self, tokens: Tokens, texts: Sequence[str], numbers: Sequence[int], rows: int) -> None:
        self.tokens, self.numbers = tokens, frozenset(numbers)
        self.stops = [text.encode() for text in texts]
        self.texts = [b""] * rows

    def ended(self, row: int, token: int) -> str | None:
        """Add a token; what it ended by, if anything."""
        if token in self.numbers:
            return f"token {token}"
        before = self.texts[row]
        text = before + self.tokens.decode(np.array([token]))
        # A stop text may have begun in earlier tokens, but not ended there.
        found = [(text.find(stop, max(0, len(before) - len(stop) + 1)), stop) for stop in self.stops]
        at, stop = min(((at, stop) for at, stop in found if at >= 0), default=(len(text), b""))
        self.texts[row] = text[:at]
        return f"the text {shown(stop.decode())}" if stop else None


def write(run: Run, prompts: Sequence[str], texts: Sequence[Text]) -> None:
    """Each prompt and what came behind it as a file, all of them as generated.json, and for people as summary.md."""
    for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True), 1):
        run.artifact(f"generated/{number}.txt").write_bytes(prompt.encode() + text.made)
    plain = [
        {
            "prompt": prompt,
            "text": text.made.decode("utf-8", errors="replace"),
            "prompt_tokens": text.row.tokens[: text.prompt_tokens],
            "tokens": text.tokens,
            "ended_by": text.row.ended,
        }
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    lines = ",\n".join(json.dumps(one) for one in plain)
    run.artifact("generated/generated.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    run.artifact("summary.md").write_text("\n".join(map(_in_markdown, prompts, texts)), encoding="utf-8")


def _in_markdown(prompt: str, text: Text) -> str:
    """A prompt with what came behind it, as a block of code: the text may hold any mark."""
    lines = readable(prompt.encode() + text.made).splitlines()
    return "\n".join(
        [
            f"Behind {shown(prompt)}, {plural(len(text.tokens), 'token')}:",
            "",
            *(f"    {line}".rstrip() for line in lines),
            "",
        ]
    )


def about(found: Generated, texts: Sequence[Text], *, cached: bool) -> dict[str, Any]:
    """For the receipt: what was made, and how long what took."""
    together = b"".join(len(text.made).to_bytes(8, "big") + text.made for text in texts)
    times = {"prefill_s": found.prefill_s, "moved_s": found.moved_s, "step_s": found.step_s, "choose_s": found.choose_s}
    return {
        "cached": cached,
        "prompt_tokens": [text.prompt_tokens for text in texts],
        "tokens": [len(text.tokens) for text in texts],
        "moved": [row.moved for row in found.rows],
        "text_sha256": hashlib.sha256(together).hexdigest(),
        "first_s": found.first_s,
        **{name: spread_of(values) for name, values in times.items() if values},
    }


def spread_of(values: Sequence[float]) -> dict[str, float]:
    """Median, range, count and sum."""
    ends = {"min": min(values), "max": max(values)}
    return {"median": float(np.median(values)), **ends, "n": len(values), "total": sum(values)}


def metrics(found: Generated) -> tuple[Metric, ...]:
    """Rates of all rows together; that of decoding has windows that moved, and what choosing a token takes."""
    decode: tuple[Metric, ...] = ()
    if decoded(found):
        decode = (rate("decode/tokens_per_s", decoded(found) / decode_s(found), "tokens"),)
    return (
        count("prompts", len(found.rows)),
        count("generated", found.generated, "tokens"),
        seconds("first_s", found.first_s),
        rate("prefill/tokens_per_s", found.prompted / sum(found.prefill_s), "tokens"),
        *decode,
    )


def decoded(found: Generated) -> int:
    """Tokens but for the first of each row, which the prefill gives."""
    return found.generated - len(found.rows)


def decode_s(found: Generated) -> float:
    """All steps, windows that were computed anew, and choices; rows that have ended are computed and do not count."""
    return sum(found.step_s) + sum(found.moved_s) + sum(found.choose_s)


def rows(prompts: Sequence[str], texts: Sequence[Text], found: Generated, resolved: Resolved) -> list[tuple[str, str]]:
    """The rows of the terminal's table, the generated texts first."""
    shown_rows = []
    for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True), 1):
        which = f" {number}" if len(texts) > 1 else ""
        shown_rows.append((f"text{which}", readable(prompt.encode() + text.made)))
        if text.row.ended:
            shown_rows.append((f"ended{which}", f"by {text.row.ended} after {len(text.tokens):,} tokens"))
    measured = {metric.name: metric.value for metric in metrics(found)}
    prefill = f"{measured['prefill/tokens_per_s']:,.0f} tokens/s: {found.prompted:,} tokens of the prompts at once"
    shown_rows.append(("prefill", prefill))
    shown_rows.append(("decode", _decode(found, measured.get("decode/tokens_per_s"))))
    start = f"{in_seconds(found.first_s)} before all that: prefills and a step, in which frameworks compile"
    about_it = (("first", start), ("device", str(resolved.place)), ("precision", resolved.precision))
    return [*shown_rows, *about_it]


def _decode(found: Generated, tokens_per_s: float | None) -> str:
    """The rate in words: of a context of one token there are no steps, since its window moves with each token."""
    if tokens_per_s is None:
        return "no rate: each text has one token, which the prefill gives"
    rate_of_all = f"{tokens_per_s:,.0f} tokens/s of all rows; medians"
    if not found.step_s:
        moved = f"{1e3 * float(np.median(found.moved_s)):.2f} ms a window computed again (n={len(found.moved_s)})"
        return f"{rate_of_all}: {moved}"
    step, choice_s = (1e3 * float(np.median(times)) for times in (found.step_s, found.choose_s))
    return f"{rate_of_all}: {step:.2f} ms a step and {choice_s:.2f} ms to choose (n={len(found.step_s)})"


def readable(text: bytes) -> str:
    """For people: what is not a character is replaced, and what nobody would see is written out."""
    return printable_lines(text.decode("utf-8", errors="replace"))
