"""A function by torch.compile, with what of it torch did not compile, or not once and for all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from pipeline.backends.torch.compilers import compilations, failed_conditions, reached_limit, why_anew
from pipeline.errors import cut
from pipeline.raised import where

# Warnings that an optimizer's label for profilers is left out, and, in ten lines, of what is one of the notes here.
NOISE = ("torch._dynamo.variables.ctx_manager", "torch._dynamo.convert_frame", "torch._dynamo.variables.tensor")
ADVICE = "Consider annotating your code using torch._check*(). "  # torch puts it before the reason
OPTIONS = {"fallback_random": True}


class CompiledFunction:
    """`plain` as one graph, in pieces where torch cannot, as it is once torch compiles no more.

    `what` it is, what `runs` by it and for how long so far (`count`: "9 steps"), in the words of the `notes` that it
    adds to. `parts`: it may be in pieces without a note. `dynamic`: as torch.compile has it. `changes` is called where
    it turns out to be another program from call to call, and says what follows from that.
    """

    def __init__(
        self,
        plain: Callable[..., Any],
        what: str,
        runs: str,
        count: Callable[[], str],
        notes: list[str],
        *,
        parts: bool = False,
        dynamic: bool | None = False,
        changes: Callable[[], str] = str,
    ) -> None:
        for name in NOISE:
            logging.getLogger(name).setLevel(logging.ERROR)
        self.what, self.runs, self.count, self.notes, self.changes = what, runs, count, notes, changes
        self._plain, self._in_pieces = plain, parts
        self._how: dict[str, Any] = {"dynamic": dynamic, "options": OPTIONS}
        self._compiled = torch.compile(plain, fullgraph=not parts, **self._how)
        self._noted_anew = False
        self.gave_up = False  # whether torch compiles it, or a piece of it, no more

    def __call__(self, *given: Any, known: bool, **named: Any) -> Any:
        """Call it. `known`: nothing of it should be compiled by that, so that a note says what is."""
        before, limits, failed = compilations(), reached_limit(), failed_conditions()
        try:
            found = self._compiled(*given, **named)
            if compilations() > before:
                self._note_anew(limits, failed, known=known)
            return found
        except torch._dynamo.exc.TorchDynamoException as error:
            if self._in_pieces:
                raise
            first = str(error).splitlines()[0].removeprefix(ADVICE).partition(" (unhinted: ")[0]
            reason = f"{cut(first)}{where(error)}"
            self._note(f"the {self.what} is compiled in pieces, not as a whole{self.changes()}: {reason}")
            self._in_pieces, self._compiled = True, torch.compile(self._plain, **self._how)
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            self._compiled = self._plain
            self._note_limit(failed)
        return self._compiled(*given, **named)

    def _note_anew(self, limits: int, failed: dict[Any, int], *, known: bool) -> None:
        if reached_limit() > limits:
            self._note_limit(failed)
        elif known and not self._noted_anew:
            self._noted_anew = True
            again = f"the {self.what} is compiled more than once{self.changes()}"
            changed = why_anew(failed)
            because = "a part of it runs for the first time" if changed is None else f"this has changed: {changed}"
            self._note(f"{again}, because {because}")

    def _note_limit(self, failed: dict[Any, int]) -> None:
        self.gave_up = True
        self._note(
            f"after {self.count()} the {self.runs} runs uncompiled: torch has reached its limit of recompilations, "
            f"the last because this had changed: {why_anew(failed) or 'not known'}"
        )

    def _note(self, text: str) -> None:
        self.notes.append(f"backend.compile: {text}")
