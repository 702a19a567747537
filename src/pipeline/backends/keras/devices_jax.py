"""Several devices of one process on JAX: each has its rows of every batch, or its part of every weight.

The program is that of one device. Its arrays lie on a mesh of `device.processes` x `device.split` devices; XLA splits
the program along them and adds the exchanges (GSPMD: Xu et al. 2021, https://arxiv.org/abs/2105.04663). So the loss is
the mean over the whole batch, and so is batch normalisation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from pipeline.backends.keras.hlo import Program
from pipeline.errors import RunError
from pipeline.machine.device import Device
from pipeline.runs.fit import NO_STEP

ROWS, WIDTH = "rows", "width"  # the mesh's axes: of batches and of weights
EXCHANGES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


class One:
    """The one device of most trainings, where JAX puts everything by itself."""

    def placed(self, state: Any) -> Any:
        return state

    def everywhere(self, arrays: Any) -> Any:
        return arrays

    def by_rows(self, x: Any, y: Any) -> tuple[Any, Any]:
        return x, y

    def places(self, state: Any) -> Any:
        return None

    def accounts(self, weights: list[Any], program: str) -> dict[str, object] | None:
        return None


class Several:
    """The devices of a training by several."""

    def __init__(self, devices: list[Any], settings: Device) -> None:
        self.mesh = Mesh(np.array(devices).reshape(settings.processes, settings.split), (ROWS, WIDTH))
        self.whole = NamedSharding(self.mesh, PartitionSpec())
        self.batch: dict[str, list[int]] = {}

    def placed(self, state: Any) -> Any:
        """The training's state (a tree of arrays), each array where this class places it."""
        return jax.tree.map(lambda value: jax.device_put(value, self._place_of(value)), state)

    def everywhere(self, arrays: Any) -> Any:
        """The arrays, copied whole to each device."""
        return jax.device_put(arrays, self.whole)

    def places(self, state: Any) -> Any:
        """Where a program leaves the state, and what it found: the state where it was, for the next call."""
        return jax.tree.map(self._place_of, state), self.whole

    def _place_of(self, value: Any) -> NamedSharding:
        """Real numbers are cut along the last axis that `device.split` divides. All else is everywhere."""
        split = self.mesh.shape[WIDTH]
        if split > 1 and jnp.issubdtype(value.dtype, jnp.floating):
            for axis in reversed(range(value.ndim)):
                if value.shape[axis] and value.shape[axis] % split == 0:
                    return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, WIDTH))
        return self.whole

    def by_rows(self, x: Any, y: Any) -> tuple[Any, Any]:
        """In a program: a batch x, y (B, ...), cut into rows. What XLA makes of that is noted when it compiles."""
        x, y = jax.lax.with_sharding_constraint((x, y), NamedSharding(self.mesh, PartitionSpec(ROWS)))
        jax.debug.inspect_array_sharding(x, callback=self._noted(x.shape))
        return x, y

    def _noted(self, shape: tuple[int, ...]) -> Callable[[Sharding], None]:
        count = self.mesh.shape[ROWS]
        padded = (-(-shape[0] // count) * count, *shape[1:])  # as XLA pads a batch that cannot be cut evenly

        def note(seen: Sharding) -> None:
            if not self.batch:
                for device, (rows, *_) in seen.devices_indices_map(padded).items():
                    first, end, _ = rows.indices(padded[0])
                    self.batch[str(device)] = [first, min(end, shape[0])]

        return note

    def accounts(self, weights: list[Any], program: str) -> dict[str, object] | None:
        """For the receipt: what lay where. `weights`: those that are trained; `program`: the step's, as HLO text."""
        held: Counter[str] = Counter()
        for value in weights:
            for shard in value.addressable_shards:
                held[str(shard.device)] += shard.data.nbytes
        exchanges = Counter(
            kind
            for one in Program(program).instructions.values()
            for kind in EXCHANGES
            if one.opcode in (kind, f"{kind}-start")
        )
        seen = {"rows_of_first_batch": self.batch, "exchanges_in_program": dict(exchanges)}
        return {
            "count": 1,
            "devices": [str(device) for device in self.mesh.devices.flat],
            "mesh": dict(self.mesh.shape),
            "weight_bytes": dict(held),
            **(seen if program else dict.fromkeys(seen) | {"not_observed": NO_STEP}),
        }


def devices_of(settings: Device) -> One | Several:
    """The devices of a training, from the run's own on. Raises RunError where JAX has fewer."""
    count = settings.processes * settings.split
    if count == 1:
        return One()
    first: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    every = jax.devices(first.platform)
    found = every[every.index(first) :][:count]
    if len(found) < count:
        raise RunError(f"device.processes x device.split is {count}: JAX finds {len(found)} devices from {first} on")
    return Several(found, settings)


def near(weights: list[Any], x: np.ndarray) -> Any:
    """A batch to be measured where the weights are: by rows, where these are on several devices and cut it evenly."""
    where = weights[0].sharding if weights else None
    if not isinstance(where, NamedSharding):
        return jnp.asarray(x)
    even = len(x) % where.mesh.shape[ROWS] == 0
    return jax.device_put(x, NamedSharding(where.mesh, PartitionSpec(ROWS) if even else PartitionSpec()))
