"""Metrics of a trained model on the test set, one a file: `training.metrics` names them by their modules.

They count in NumPy, in float64, whatever framework trained. What torchmetrics has and NumPy has not is
`torchmetrics.<class>` (of_torchmetrics.py).
"""
