"""Baselines: what a trained model is compared with. Nothing here is trained by gradients."""
