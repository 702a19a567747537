"""The state of DeepXDE's Adam as NumPy arrays: parameters, unknowns, and what the optimizer keeps of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of torch's Adam, for each parameter


class State:
    """Of a learner that is compiled with what `adam` gives. `unknowns`: the problem's coefficients to be found."""

    def __init__(self, learner: Any, backend: str, unknowns: Sequence[Any]) -> None:
        self.learner, self.backend, self.unknowns = learner, backend, unknowns
        self.optimizer: Any = None

    def adam(self, dde: ModuleType, learning_rate: float) -> Any:
        """What DeepXDE's `compile` takes. On TensorFlow it would keep the optimizer to itself."""
        if self.backend == "tensorflow":
            self.optimizer = dde.optimizers.get("adam", learning_rate=learning_rate)
            return self.optimizer
        return "adam"

    def arrays(self) -> dict[str, np.ndarray]:
        """A copy of everything, numbered."""
        return {f"state.{number:04}": array for number, array in enumerate(self._values())}

    def put(self, stored: Mapping[str, np.ndarray]) -> None:
        """Put back what `arrays` gave, before the first step of this process."""
        values = [array for name, array in stored.items() if name.startswith("state.")]
        {"torch": self._put_torch, "tensorflow": self._put_tensorflow, "jax": self._put_jax}[self.backend](values)

    def _values(self) -> list[np.ndarray]:
        if self.backend == "torch":
            kept = self.learner.opt.state
            tensors = [(one, *(kept[one][name] for name in MOMENTS)) for one in self._trained()]
            return [tensor.detach().cpu().numpy().copy() for each in tensors for tensor in each]
        if self.backend == "tensorflow":
            return [variable.numpy() for variable in self._variables()]
        import jax

        return [np.array(leaf) for leaf in jax.tree.leaves((self.learner.params, self.learner.opt_state))]

    def _trained(self) -> list[Any]:
        return [*self.learner.net.parameters(), *self.unknowns]

    def _variables(self) -> list[Any]:
        return [*self.learner.net.trainable_variables, *self.unknowns, *self.optimizer.variables]

    def _put_torch(self, values: list[np.ndarray]) -> None:
        import torch

        width = 1 + len(MOMENTS)
        for at, parameter in enumerate(self._trained()):
            value, step, *moments = map(torch.from_numpy, values[at * width : (at + 1) * width])
            with torch.no_grad():
                parameter.copy_(value)
            moved = [step, *(one.to(parameter.device) for one in moments)]
            self.learner.opt.state[parameter] = dict(zip(MOMENTS, moved, strict=True))

    def _put_tensorflow(self, values: list[np.ndarray]) -> None:
        self.learner.net(self.learner.data.train_next_batch()[0][:1])  # which makes its variables
        self.optimizer.build([*self.learner.net.trainable_variables, *self.unknowns])
        for variable, value in zip(self._variables(), values, strict=True):
            variable.assign(value)

    def _put_jax(self, values: list[np.ndarray]) -> None:
        import jax
        import jax.numpy as jnp

        learner = self.learner
        form = jax.tree.structure((learner.params, learner.opt_state))
        learner.params, learner.opt_state = jax.tree.unflatten(form, [jnp.asarray(value) for value in values])
        learner.net.params, unknowns = learner.params
        for variable, value in zip(self.unknowns, unknowns, strict=True):
            variable.value = value
