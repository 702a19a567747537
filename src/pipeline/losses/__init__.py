"""Losses: one file each, a spec with its torch, Keras and NumPy functions side by side.

Each function takes logits (N, classes) and labels (N,) and returns the mean over the batch. Logits narrower than
float32 are widened first: a sum over a batch in half precision would lose the digits that the comparison is about. The
NumPy function measures the test set, in float64, so that a saved model has one loss wherever it is evaluated.
"""
