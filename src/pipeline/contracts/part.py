"""What every choice of any config group offers."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path


def offers(part: object, method: Callable[..., object]) -> bool:
    """Whether a part defines an optional method of its contract, such as `Problem.hard`."""
    return getattr(type(part), method.__name__) is not method


def defines(part: object, contract: type[Part], name: str) -> bool:
    """The same by the method's name: a backend names its builder."""
    return offers(part, getattr(contract, name))


class Part(ABC):  # noqa: B024  # the contracts below have abstract methods
    """A choice of any config group.

    `packages`: distributions whose versions decide the result, beside the backend's. `locations`: fields that decide
    nothing (where files lie, when checkpoints are written), and stay out of the config's hash. `imports`: modules that
    a run needs late and a grid's worker imports once.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    locations: ClassVar[tuple[str, ...]] = ()
    imports: ClassVar[tuple[str, ...]] = ()
    one_of: ClassVar[tuple[str, ...]] = ()  # optional methods of a contract of which a spec defines one at least

    @property
    def user_code(self) -> tuple[str, ...]:
        """The user's code that it runs, by dotted names: it counts in the code's hash."""
        return ()

    @property
    def user_files(self) -> tuple[Path, ...]:
        """Files and folders that it reads and whose content decides the result."""
        return ()

    @property
    def inside(self) -> tuple[Part, ...]:
        """The parts that it holds: their code, files and packages count as its own."""
        return ()
