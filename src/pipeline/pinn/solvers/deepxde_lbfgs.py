"""DeepXDE's L-BFGS, kept to the steps that were asked for."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

BLOCK = 1000  # steps between which DeepXDE itself comes to look, at most


def lbfgs(dde: ModuleType, learner: Any, steps: int, unknowns: list[Any], callback: Any, backend: str) -> int:
    """Run it; returns how often it has evaluated the loss.

    torch's comes in blocks of 1,000 whatever `maxiter` says, so the block is set beside it: a part of `steps`.
    """
    options = dde.optimizers.config.LBFGS_options
    before = dict(options)
    dde.optimizers.set_LBFGS_options(maxiter=steps)
    blocks = math.ceil(steps / BLOCK)
    options["iter_per_step"] = math.ceil(steps / blocks)
    options["fun_per_step"] = math.ceil(options["iter_per_step"] * 1.25)
    try:
        learner.compile("L-BFGS", external_trainable_variables=unknowns)
        return _on_torch(dde, learner, steps, callback) if backend == "torch" else _on_tensorflow(learner, callback)
    finally:
        options.clear()
        options.update(before)


def _on_torch(dde: ModuleType, learner: Any, steps: int, callback: Any) -> int:
    first = learner.train_state.step
    limits = dde.callbacks.Callback()
    limits.on_batch_end = Limits(learner, first + steps).look
    learner.train(display_every=1, callbacks=[callback, limits], verbose=0)
    state = learner.opt.state_dict()["state"][0]
    missed = first + int(state["n_iter"]) - learner.train_state.step
    if missed:  # a block of one step is to DeepXDE the end, of which it notes nothing
        learner.train_state.step += missed
        learner.train_state.iteration += missed
        learner._test(verbose=0)
    return int(state["func_evals"])


class Limits:
    """Between two blocks on torch: the end at the `last` step, and where a block has not moved.

    A block that ends early, by its evaluations, is followed by a whole one, past the steps that were asked for. One
    that finds nothing to gain at its first point is followed by the same again, for ever.
    """

    def __init__(self, learner: Any, last: int) -> None:
        self.learner, self.last, self.before = learner, last, learner.train_state.step

    def look(self) -> None:
        """As DeepXDE's `on_batch_end`."""
        step = self.learner.train_state.step
        if step in (self.before, self.last):
            self.learner.stop_training = True
        else:
            (group,) = self.learner.opt.param_groups
            group["max_iter"] = min(group["max_iter"], self.last - step)
        self.before = step


def _on_tensorflow(learner: Any, callback: Any) -> int:
    """Counts the evaluations of each call of TensorFlow Probability's L-BFGS."""
    step, counts = learner.train_step, []

    def counting(*arguments: Any) -> Any:
        found = step(*arguments)
        counts.append(int(found.num_objective_evaluations))
        return found

    learner.train_step = counting
    learner.train(display_every=1, callbacks=[callback], verbose=0)
    return sum(counts)
