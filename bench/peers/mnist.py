"""MNIST for the peers, from the same cache as the pipeline's, and nothing else of the pipeline."""

from __future__ import annotations

import numpy as np

from pipeline.datasets.fashion_mnist import FashionMnist
from pipeline.datasets.mnist import Mnist
from pipeline.machine.cache_folder import cache_root


def load(name: str, validation: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test images (N, 28, 28) uint8 and labels, the held-out images left aside."""
    dataset = Mnist(validation=validation) if name == "mnist" else FashionMnist(validation=validation)
    data = dataset.load(cache_root(None), 0)
    return data.train.x[..., 0], data.train.y, data.test.x[..., 0], data.test.y
