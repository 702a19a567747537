"""Row A9 as the source's course writes it: a Dataset of PIL images, a ToTensor transform per item, a DataLoader.

ToTensor is written out (torchvision's CUDA build does not import beside a CPU torch): PIL image to bytes, to a
(1, 28, 28) tensor, to float, divided by 255.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import numpy as np
import torch
from mnist import load
from PIL import Image
from torch.nn import functional

EPOCHS = 3


def to_tensor(image: Image.Image) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(image, np.uint8, copy=True)).view(image.size[1], image.size[0], 1)
    return pixels.permute(2, 0, 1).contiguous().to(torch.get_default_dtype()).div(255)


class Mnist(torch.utils.data.Dataset[Any]):
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.fromarray(self.x[index].numpy())
        return to_tensor(image), int(self.y[index])


def main() -> None:
    torch.manual_seed(0)
    x, y, x_test, y_test = load("mnist", 10_000)
    batches = torch.utils.data.DataLoader(Mnist(x, y), batch_size=128, shuffle=True)
    test = torch.utils.data.DataLoader(Mnist(x_test, y_test), batch_size=256)
    net = torch.nn.Linear(784, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seconds = []
    for _ in range(EPOCHS):
        started = time.perf_counter()
        for images, labels in batches:
            loss = functional.cross_entropy(net(images.view(-1, 784)), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    with torch.no_grad():
        n_correct = sum(int((net(images.view(-1, 784)).argmax(1) == labels).sum()) for images, labels in test)
    print(json.dumps({"images_per_s": len(y) / statistics.median(seconds[1:]), "accuracy": n_correct / len(y_test)}))


main()
