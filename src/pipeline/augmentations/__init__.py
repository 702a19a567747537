"""Augmentations: random changes of the training images. A spec a file (`none`, `images`), and a change a file.

What is random depends on the seed, the epoch and the example's number alone (`draws`). So an image is the same on
every backend, with every loader and any number of threads, and after a resumption.
"""
