"""How long gloo takes to add up so many bytes over two processes: python all_reduce.py <bytes> <rounds>, as JSON."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

ALONE = 3  # rounds before any counts


def main() -> None:
    """The median over the rounds, of a sum that is checked first."""
    size, rounds = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        spawn(measured, (f"file://{folder}/group", size // 4, rounds), nprocs=2)


def measured(rank: int, where: str, numbers: int, rounds: int) -> None:
    """One of the two processes."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    found = torch.full((numbers,), float(rank + 1))
    dist.all_reduce(found)
    if not bool((found == 3).all()):
        raise SystemExit("the sum is wrong; no time is worth anything")
    seconds = []
    for _ in range(ALONE + rounds):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(found)
        seconds.append(time.perf_counter() - started)
    dist.destroy_process_group()  # its threads, else still at work when the process ends, sometimes abort it
    if rank == 0:
        print(json.dumps({"seconds": statistics.median(seconds[ALONE:])}))


if __name__ == "__main__":
    main()
