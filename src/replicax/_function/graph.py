"""What a compiled function computes, as TensorFlow lists the nodes of its graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import jax.extend

from replicax._program.jaxpr import called


@final
@dataclass(frozen=True)
class Node:
    """An operation, an argument or a constant.

    Args:
        name: Its name, which no other node has.
        op: The operation; of JAX, but for "Placeholder" and "Const".
        input: The names of the nodes that it computes with.
    """

    name: str
    op: str
    input: list[str] = field(default_factory=list)

    @property
    def type(self) -> str:
        """The operation, as that of an operation is called."""
        return self.op


@final
@dataclass(frozen=True)
class GraphDef:
    """What `Graph.as_graph_def` returns.

    Args:
        node: The nodes, in the order in which they are computed.
    """

    node: list[Node]

    def __str__(self) -> str:
        inputs = ["".join(f'  input: "{name}"\n' for name in node.input) for node in self.node]
        return "".join(
            f'node {{\n  name: "{node.name}"\n  op: "{node.op}"\n{lines}}}\n'
            for node, lines in zip(self.node, inputs, strict=True)
        )


@final
class Graph:
    """The operations of a program.

    **Differs from TF:** they are those of JAX, and the bodies of loops and branches are in one
    node. It is for reading: nothing can be added to it.

    Args:
        program: A closed jaxpr.
        names: The names of its last arguments; the others are variables.
    """

    def __init__(self, program: Any, names: Sequence[str]) -> None:
        self._nodes: list[Node] = []
        self._used: dict[str, int] = {}
        jaxpr = program.jaxpr
        first = len(jaxpr.invars) - len(names)
        inputs = [f"variable_{number}" for number in range(first)] + [*names]
        found = [self._add(name or "argument", "Placeholder", []) for name in inputs]
        self._walk(program, found)

    def as_graph_def(self) -> GraphDef:
        """The nodes, as `.node`."""
        return GraphDef(list(self._nodes))

    def get_operations(self) -> list[Node]:
        """The nodes."""
        return list(self._nodes)

    def _add(self, name: str, op: str, inputs: Sequence[str]) -> str:
        count = self._used[name] = self._used.get(name, -1) + 1
        named = f"{name}_{count}" if count else name
        self._nodes.append(Node(named, op, list(inputs)))
        return named

    def _walk(self, program: Any, inputs: Sequence[str]) -> list[str]:
        """Add the nodes of a program, and of those that it calls; the names of its results."""
        jaxpr = program.jaxpr
        names = dict(zip(jaxpr.invars, inputs, strict=True))
        names.update((v, self._add("Const", "Const", [])) for v in jaxpr.constvars)

        def name_of(value: Any) -> str:
            return (
                self._add("Const", "Const", [])
                if isinstance(value, jax.extend.core.Literal)
                else names[value]
            )

        for equation in jaxpr.eqns:
            given = [name_of(value) for value in equation.invars]
            inner = called(equation, remat=True)
            if inner is None:
                op = equation.primitive.name
                found = [self._add(op, op, given)] * len(equation.outvars)
            else:
                found = self._walk(inner, given)
            names.update(zip(equation.outvars, found, strict=True))
        return [name_of(value) for value in jaxpr.outvars]
