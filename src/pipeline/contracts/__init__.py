"""The contracts: what the spec of each config group has to offer (`physics.py`: problems, networks and solvers;
`runs.py`: stages about saved runs; `kernels.py`: matrix products). A spec derives from its contract.

Abstract methods have to be defined; the rest has a default, and `offers` says whether an optional method was defined.
What a spec lacks is refused when its config is built (`fault`). Frameworks are known to the parts that import them:
their objects are `object` here. All other imports are for annotations alone, so that every layer can use the contracts.
"""

from pipeline.contracts.part import Part, defines, offers
from pipeline.contracts.running import Backend, GridMember, Profiler, Stage, Tracking
from pipeline.contracts.training import Augmentation, Dataset, Loader, Loss, Metric, Model, Optimizer, Schedule

__all__ = [
    "Augmentation",
    "Backend",
    "Dataset",
    "GridMember",
    "Loader",
    "Loss",
    "Metric",
    "Model",
    "Optimizer",
    "Part",
    "Profiler",
    "Schedule",
    "Stage",
    "Tracking",
    "defines",
    "offers",
]
