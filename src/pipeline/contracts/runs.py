"""The contract of the stages that are about saved runs (stage=runs, show, compare, delete, rerun): no experiment takes
part, so none is built."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pipeline.contracts import Part

if TYPE_CHECKING:
    from pipeline.experiment.settings import Settings
    from pipeline.spec import Config


class AboutRuns(Part):
    """What a command does with the runs of `output_dir`. It leaves no run behind and imports no framework.

    `keys`: the groups and keys that it follows, beside `stage` and `output_dir`; any other that is set is refused.
    """

    keys: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def act(self, settings: Settings, config: Config) -> int:
        """Do it and print what is found; the exit status. Raises UserError.

        `config`: the whole composed config, in which the groups that it does not follow have their defaults.
        """
