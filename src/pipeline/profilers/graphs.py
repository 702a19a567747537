"""A model's graph as TensorBoard draws it, from each framework by its own means."""

from __future__ import annotations

from typing import Any

from pipeline.profilers import Subject


def from_torch(subject: Subject) -> Any:
    """torch's trace of the forward pass of one example."""
    import torch
    from torch.utils.tensorboard._pytorch_graph import graph

    shape, _ = subject.example
    like = next(subject.model.parameters())
    dtype = like.dtype if subject.shapes.vocabulary is None else torch.int32
    with torch.random.fork_rng([like.device] if like.is_cuda else []):
        definition, _ = graph(subject.model, torch.zeros(1, *shape, dtype=dtype, device=like.device))
    return definition


def of_tensorflow(subject: Subject) -> Any:
    """The graph of the forward pass of a batch, as TensorFlow builds it."""
    import tensorflow as tf

    shape, dtype = subject.example
    forward = tf.function(lambda x: subject.model(x, training=False))
    return forward.get_concrete_function(tf.TensorSpec((None, *shape), dtype, name="x")).graph.as_graph_def()


def of_jax(subject: Subject) -> Any:
    """The jaxpr of the forward pass of one example: a node for each equation, inner functions' below its name."""
    import jax
    import jax.numpy as jnp
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    shape, dtype = subject.example
    variables = (subject.model.trainable_variables, subject.model.non_trainable_variables)

    def forward(trainable: Any, fixed: Any, x: Any) -> Any:
        mode = {"training": False} if subject.model._call_has_training_arg else {}
        return subject.model.stateless_call(trainable, fixed, x, **mode)[0]

    state = [[variable.value for variable in group] for group in variables]
    traced = jax.make_jaxpr(forward)(*state, jnp.zeros((1, *shape), dtype))
    names = [variable.path for group in variables for variable in group]
    definition = GraphDef()
    for name in [*names, "x"]:
        definition.node.add(name=name, op="Parameter")
    _equations(definition, traced.jaxpr, [*names, "x"], "")
    return definition


def _equations(definition: Any, jaxpr: Any, inputs: list[str | None], scope: str) -> list[str | None]:
    """Add a node for each equation; returns the names of the nodes that make the jaxpr's outputs."""
    made: dict[Any, str | None] = dict(zip(jaxpr.invars, inputs, strict=True))

    def name_of(value: Any) -> str | None:
        return None if hasattr(value, "val") else made.get(value)  # a literal is not a node, nor is a constant

    for number, equation in enumerate(jaxpr.eqns):
        name = f"{scope}{equation.primitive.name}_{number}"
        operands = [name_of(value) for value in equation.invars]
        inner = getattr(equation.params.get("jaxpr"), "jaxpr", None)
        if inner is not None and len(inner.invars) == len(operands):
            outputs = _equations(definition, inner, operands, f"{scope}{equation.params.get('name', name)}_{number}/")
        else:
            node = definition.node.add(name=name, op=equation.primitive.name)
            node.input.extend(operand for operand in operands if operand is not None)
            outputs = [name] * len(equation.outvars)
        made.update(zip(equation.outvars, outputs, strict=True))
    return [name_of(value) for value in jaxpr.outvars]


GRAPHS = {"torch": from_torch, "tensorflow": of_tensorflow, "jax": of_jax}
