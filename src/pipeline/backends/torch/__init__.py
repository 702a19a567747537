"""PyTorch through Lightning."""
