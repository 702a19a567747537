"""A form of the two-layer net whose process ends after it was found right and was timed once."""

from __future__ import annotations

import os
from typing import ClassVar

from pipeline.backends.shared import two_layer_numpy
from pipeline.backends.shared.two_layer import Form, Way
from pipeline.backends.shared.two_layer_numpy import arrays as arrays


class Ending(two_layer_numpy.ByHand):
    """It starts once when it is made, then anew for each sample; for the second one it ends."""

    name: ClassVar[str] = "ending"
    starts = 0

    def restart(self) -> None:
        self.starts += 1
        if self.starts == 3:
            os.write(2, b"the machine has no memory left\n")
            os._exit(9)
        super().restart()


FORMS: tuple[type[Form], ...] = (Ending,)
WAYS: tuple[type[Way], ...] = ()
