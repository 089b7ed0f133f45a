"""The layers of a model as a graph for TensorBoard."""

from __future__ import annotations

from collections import Counter
from typing import Any

import keras

from replicax._core.event_files import part
from replicax._keras import _compat


def graph_of(model: Any) -> Any:
    """A `GraphDef` of a built model: a node for each layer call, a group for each inner model.

    None for a model with a `call` of its own, whose layer calls are unknown.
    """
    function = _function_of(model)
    if function is None:
        return None
    graph = part("compat.proto.graph_pb2").GraphDef()
    names: dict[int, str] = {}
    for layer in function.layers:
        if isinstance(layer, keras.layers.InputLayer):
            names[id(layer.output)] = f"{model.name}/{layer.name}"
            _add(graph, names[id(layer.output)], "InputLayer", [], [layer.output])
    _add_calls(graph, function, f"{model.name}/", names)
    return graph


def _function_of(layer: Any) -> Any:
    if isinstance(layer, keras.Sequential):
        return _compat.functional_of(layer)
    return layer if isinstance(layer, _compat.Functional) else None


def _add_calls(graph: Any, function: Any, scope: str, names: dict[int, str]) -> None:
    """Add the layer calls of a function; `names` maps a tensor's `id` to its node."""
    called: Counter[str] = Counter()
    for layer, inputs, outputs in _compat.nodes_of(function):
        again = f"_{called[layer.name]}" if called[layer.name] else ""
        called[layer.name] += 1
        name = f"{scope}{layer.name}{again}"
        inner = _function_of(layer)
        if inner is None:
            _add(
                graph, name, type(layer).__name__, [names[id(tensor)] for tensor in inputs], outputs
            )
            names |= {id(tensor): name for tensor in outputs}
            continue
        begin, end = keras.tree.flatten(inner.inputs), keras.tree.flatten(inner.outputs)
        names |= {id(one): names[id(tensor)] for one, tensor in zip(begin, inputs, strict=True)}
        _add_calls(graph, inner, f"{name}/", names)
        names |= {id(tensor): names[id(one)] for one, tensor in zip(end, outputs, strict=True)}


def _add(graph: Any, name: str, kind: str, inputs: list[str], outputs: list[Any]) -> None:
    node = graph.node.add(name=name, op=kind, input=inputs)
    for tensor in outputs:
        sizes = node.attr["_output_shapes"].list.shape.add()
        for size in tensor.shape:
            sizes.dim.add(size=-1 if size is None else size)
