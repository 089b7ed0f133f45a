"""The operations of a compiled function, listed as nodes of a TensorFlow graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from replicax._program.jaxpr import flatten


@final
@dataclass(frozen=True)
class Node:
    """An operation, an argument or a constant."""

    name: str  # unique in the graph
    op: str  # a JAX primitive, "Placeholder" or "Const"
    input: list[str] = field(default_factory=list)  # names of nodes

    @property
    def type(self) -> str:
        """The same as `op`: TensorFlow's operations have `type`, its nodes `op`."""
        return self.op


@final
@dataclass(frozen=True)
class GraphDef:
    """The nodes of a graph, in the order in which they are computed."""

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

    **Differs from TF:** operations are JAX primitives, and a loop or a branch is one node with its
    body. The graph is read-only. The last arguments of the program, a closed jaxpr, have `names`;
    those before them are variables.
    """

    def __init__(self, program: Any, names: Sequence[str]) -> None:
        self._nodes: list[Node] = []
        self._used: dict[str, int] = {}
        jaxpr = program.jaxpr
        first = len(jaxpr.invars) - len(names)
        inputs = [f"variable_{number}" for number in range(first)] + [*names]
        found = [self._add(name or "argument", "Placeholder", []) for name in inputs]

        def constant(*_: Any) -> str:
            return self._add("Const", "Const", [])

        def note(equation: Any, operands: list[str]) -> list[str]:
            op = equation.primitive.name
            return [self._add(op, op, operands)] * len(equation.outvars)

        flatten(program, found, constant, note, remat=True)

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
