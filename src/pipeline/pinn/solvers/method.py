"""What an optimization method offers to the training that drives it (training.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from pipeline.pinn.solvers.system import System


class State(NamedTuple):
    """What is carried from step to step: the parameters as one vector, how often the residuals were evaluated, whether
    there is anything left to gain, and what else the method keeps."""

    theta: Any
    evaluations: Any
    done: Any
    memory: Any


class Method(Protocol):
    """Traced by JAX: no Python value may depend on an array's. `ends`: whether a step can find that there is nothing
    left to gain."""

    ends: ClassVar[bool]

    def start(self, system: System, theta: Any) -> State: ...

    def renew(self, system: System, state: State, data: Any) -> State:
        """Before the first step and at new points: bring up to date what depends on them."""
        ...

    def step(self, system: System, state: State, data: Any) -> State: ...
