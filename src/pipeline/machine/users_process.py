"""A process that is the user's, such as a notebook's kernel: a model is used in it as in one that a command started."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

import numpy as np

KINDS = ("cpu", "cuda")  # of torch's devices, that have an autocast each


@contextmanager
def settings_kept() -> Iterator[None]:
    """What importing a framework and building a model change for the whole process, put back afterwards.

    That is variables, filters of warnings, the generators of Python and NumPy (imports draw from them), finders of
    modules (Keras on JAX hides TensorFlow), and of torch what it makes tensors of and its autocast, which inside are
    its own defaults.
    What only a run's steps change, its backend puts back itself.
    """
    variables, finders, torch = dict(os.environ), list(sys.meta_path), sys.modules.get("torch")
    generator, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  # the one that imports draw from
    with warnings.catch_warnings(), _defaults_of(torch):
        try:
            yield
        finally:
            random.setstate(generator)
            np.random.set_state(legacy)  # noqa: NPY002
            sys.meta_path[:] = [one for one in sys.meta_path if one in finders or not _hides(one)]
            for name in {*os.environ} - {*variables}:
                del os.environ[name]
            os.environ.update(variables)


def _hides(finder: object) -> bool:
    return type(finder).__module__.startswith("pipeline.")


def _defaults_of(torch: ModuleType | None) -> ExitStack:
    """torch's own dtype and device of new tensors inside, and no autocast, where the user has chosen others.

    By blocks alone, since the user's choice may be one: what is set for all of the process would outlive it.
    """
    inside = ExitStack()
    if torch is None:
        return inside
    inside.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float32)
    if torch.get_default_device().type != "cpu":
        inside.enter_context(torch.device("cpu"))
    for kind in filter(torch.is_autocast_enabled, KINDS):
        inside.enter_context(torch.autocast(kind, enabled=False))
    return inside
