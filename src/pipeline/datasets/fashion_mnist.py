"""Fashion-MNIST: articles of clothing, in the files and sizes of MNIST.

Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
arXiv:1708.07747, https://github.com/zalandoresearch/fashion-mnist
"""

from __future__ import annotations

from typing import ClassVar

from pipeline.datasets.mnist_like import MnistLike, published
from pipeline.datasets.published_images import Published
from pipeline.datasets.sources import DebianPackage, File, Mirror
from pipeline.spec import spec

# SHA-256 of the raw IDX content: mirrors compress it differently.
FILES = (
    File("train-images-idx3-ubyte", 47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    File("train-labels-idx1-ubyte", 60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    File("t10k-images-idx3-ubyte", 7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    File("t10k-labels-idx1-ubyte", 10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
)
SOURCES = (
    Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),  # the authors' own; it has no HTTPS
    Mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
    DebianPackage("dataset-fashion-mnist", folder="usr/share/datasets/fashion-mnist"),
)
# As in the "Labels" table of the dataset's README.
CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@spec
class FashionMnist(MnistLike):
    """70,000 grey images (28, 28, 1) of clothing, 60,000 of them for training."""

    published: ClassVar[Published] = published("fashion_mnist", FILES, SOURCES, CLASSES)
