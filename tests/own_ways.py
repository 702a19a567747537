"""Ways to run the two-layer net's step in NumPy: one is right, some end their process, one goes wrong later."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from pipeline.backends.shared.two_layer import Form, Way, by_hand
from pipeline.backends.shared.two_layer_numpy import FORMS as FORMS
from pipeline.backends.shared.two_layer_numpy import arrays as arrays


class Plain(Way):
    name: ClassVar[str] = "plain"
    how: ClassVar[str] = "operation by operation"
    eager: ClassVar[bool] = True

    def build(self) -> Callable[..., Any]:
        return partial(by_hand, rate=self.rate)


class Dying(Plain):
    """As a compiler does that crashes."""

    name: ClassVar[str] = "dying"
    eager: ClassVar[bool] = False

    def build(self) -> Callable[..., Any]:
        os.write(2, b"the compiler has crashed\n")
        os._exit(3)


class Ending(Plain):
    """It starts when it is made, when it is verified and for each sample; for the fourth sample it ends."""

    name: ClassVar[str] = "ending"
    eager: ClassVar[bool] = False
    starts = 0

    def restart(self) -> None:
        self.starts += 1
        if self.starts == 2 + 4:
            os.write(2, b"the machine has no memory left\n")
            os._exit(9)
        super().restart()


class Late(Plain):
    """Right in its first two calls and wrong in the third, which the verification sees."""

    name: ClassVar[str] = "late"
    eager: ClassVar[bool] = False
    calls = 0

    def step(self) -> None:
        self.calls += 1
        super().step()
        if self.calls == 3:
            self.last = self.last * 2


class Lacking(Plain):
    name: ClassVar[str] = "lacking"
    eager: ClassVar[bool] = False

    @classmethod
    def missing(cls, place: str) -> str | None:  # noqa: ARG003
        return "a machine of another kind"


WAYS: tuple[type[Form], ...] = (Plain, Dying, Ending, Late, Lacking)
