"""AutoGraph makes a graph's control flow of Python's `if` and `for` over tensors, where TensorFlow traces a function.

For that it parses the source of every function that is called and writes it anew, as a file: a second or two before the
first step (https://www.tensorflow.org/guide/function#autograph_transformations). What is ours has no such control flow.
The user's may have it, in a loss or a task; not in a layer's call, which Keras leaves out, but in what that hands on to
tf.map_fn.
"""

from __future__ import annotations

from pipeline.spec import is_shipped


def is_needed(*parts: object) -> bool:
    """Whether one of the specs that a traced function calls is the user's, who may write so."""
    return not all(map(is_shipped, parts))
