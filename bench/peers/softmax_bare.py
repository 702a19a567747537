"""Row A9 with nothing round it: a loop over tensors that lie in memory. Argument: CPU threads, 0 for torch's choice."""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from mnist import load
from torch.nn import functional

EPOCHS = 10


def main() -> None:
    torch.manual_seed(0)
    if int(sys.argv[1]):
        torch.set_num_threads(int(sys.argv[1]))
    x, y, x_test, y_test = (torch.from_numpy(array) for array in load("mnist", 10_000))
    images, test = x.reshape(-1, 784) / 255, x_test.reshape(-1, 784) / 255
    net = torch.nn.Linear(784, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seconds = []
    for _ in range(EPOCHS):
        started = time.perf_counter()
        order = torch.randperm(len(y))
        for first in range(0, len(y), 128):
            rows = order[first : first + 128]
            loss = functional.cross_entropy(net(images[rows]), y[rows])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    with torch.no_grad():
        accuracy = float((net(test).argmax(1) == y_test).float().mean())
    print(json.dumps({"images_per_s": len(y) / statistics.median(seconds[1:]), "accuracy": accuracy}))


main()
