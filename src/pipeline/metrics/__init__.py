"""Metrics of a trained model, in NumPy."""
