"""How TensorFlow takes the memory of GPUs: settings that are fixed once it has started its devices."""

from __future__ import annotations

import os
from typing import Any

from pipeline.machine.memory import still_free

GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"  # https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth


def grow_as_needed(tf: Any) -> None:
    """Take memory as it is needed, on every visible GPU: TensorFlow starts them all, and refuses a difference.

    The setting has no effect beside logical devices, where only the environment is asked: otherwise a run with a limit
    would take all the memory of the GPUs that it does not use. Raises RuntimeError once the devices have started.
    """
    os.environ.setdefault(GROWTH, "true")
    for card in tf.config.list_physical_devices("GPU"):
        if not tf.config.get_logical_device_configuration(card):  # which excludes the setting
            tf.config.experimental.set_memory_growth(card, True)


def grows() -> bool:
    """Whether memory is taken as needed where there are logical devices."""
    return os.environ.get(GROWTH, "").lower() == "true"


def free_bytes(free: int, total: int, limit: int | None, given_out: int) -> int:
    """Bytes of a GPU of `total` that TensorFlow's allocator may still give out; `free`: by the driver.

    Where memory does not grow, all of the limit is taken at once, or without one nearly all that was free at the start.
    TensorFlow does not say how much that was: the total stands for it, so that no model that fits is refused.
    """
    if grows():
        return still_free(free, limit, given_out, given_out)
    return total - given_out if limit is None else still_free(free, limit, limit, given_out)
