"""AutoGraph makes a graph's control flow of Python's `if` and `for` over tensors, where TensorFlow traces a function.

For that it parses the source of every function that is called and writes it anew, as a file: a second or two before the
first step. What is ours has no such control flow, and Keras leaves out its layers' calls, the user's too
(https://www.tensorflow.org/guide/function#autograph_transformations).
"""

from __future__ import annotations


def is_needed(*parts: object) -> bool:
    """Whether one of the parts, or functions, that a traced function calls is the user's, who may write so."""
    return not all(getattr(part, "__module__", "").startswith("pipeline.") for part in parts)
