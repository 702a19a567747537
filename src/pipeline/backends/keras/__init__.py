"""Keras on TensorFlow or JAX."""
