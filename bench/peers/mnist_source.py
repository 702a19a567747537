"""Row B1 as the source trains it with PyTorch: PIL images, ToTensor and Normalize per item, a DataLoader with a worker.

    python bench/peers/mnist_source.py [epochs]

The two transforms are written out (torchvision's CUDA build does not import beside a CPU torch).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from mnist import load
from PIL import Image
from torch import nn
from torch.nn import functional

MEAN, SPREAD = 0.1307, 0.3081  # of MNIST's pixels


class Mnist(torch.utils.data.Dataset[Any]):
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.fromarray(self.x[index])
        pixels = torch.from_numpy(np.array(image, np.uint8, copy=True))[None]
        return pixels.float().div(255).sub_(MEAN).div_(SPREAD), int(self.y[index])


def main() -> None:
    torch.manual_seed(0)
    x, y, x_test, y_test = load("mnist", 5000)
    loading: dict[str, Any] = {"num_workers": 1}
    batches = torch.utils.data.DataLoader(Mnist(x, y), batch_size=64, shuffle=True, **loading)
    test = torch.utils.data.DataLoader(Mnist(x_test, y_test), batch_size=1000, **loading)
    net = nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    )
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
    seconds = []
    for _ in range(int(sys.argv[1])):
        started = time.perf_counter()
        for images, labels in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
        seconds.append(time.perf_counter() - started)
    net.eval()
    with torch.no_grad():
        n_correct = sum(int((net(images).argmax(1) == labels).sum()) for images, labels in test)
    median = statistics.median(seconds[1:] or seconds)
    print(json.dumps({"images_per_s": len(y) / median, "accuracy": n_correct / len(y_test)}))


main()
