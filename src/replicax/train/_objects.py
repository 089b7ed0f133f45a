"""Objects by their names in TensorFlow's checkpoints: a graph of attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from replicax._core.errors import UsageError
from replicax._core.wire import fields
from replicax._keras import _compat
from replicax._keras.attributes import children_of, holds, names_below
from replicax.train._parts import Part, Variables

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""What TensorFlow puts behind the name of a variable."""


@dataclass(eq=False)
class Node:
    """An object in a checkpoint, with the objects below it by the names of its attributes.

    A variable has the `key` of its value and a `name` of its own. `others` are the names of other
    values, such as positions of iterators. Slots are what an optimizer of Keras 2 keeps of
    variables: the variable, what, and the value.
    """

    children: dict[str, Node] = field(default_factory=dict)
    key: str | None = None
    name: str = ""
    others: list[str] = field(default_factory=list)
    slots: list[tuple[Node, str, Node]] = field(default_factory=list)

    def below(self) -> Iterator[Node]:
        """This node and all that can be reached from it."""
        seen = {id(self)}
        queue: deque[Node] = deque([self])
        while queue:
            node = queue.popleft()
            yield node
            for child in node.children.values():
                if id(child) not in seen:
                    seen.add(id(child))
                    queue.append(child)


def graph_of(message: bytes) -> Node:
    """The root of the graph in a message `TrackableObjectGraph`.

    Any other message raises ValueError, or IndexError where it refers to missing objects.
    """
    bodies = [list(fields(body)) for number, body in fields(message) if number == 1]
    nodes = [Node() for _ in bodies]
    for node, body in zip(nodes, bodies, strict=True):
        for number, value in body:
            part = dict(fields(value)) if isinstance(value, bytes) else {}
            if number == 1:
                node.children[part[2].decode()] = nodes[part.get(1, 0)]
            elif number == 2 and part.get(1) == b"VARIABLE_VALUE":
                node.key, node.name = part[3].decode(), part.get(2, b"").decode()
            elif number == 2:
                node.others.append(part[3].decode())
            elif number == 3:
                of, slot = nodes[part.get(1, 0)], nodes[part.get(3, 0)]
                node.slots.append((of, part[2].decode(), slot))
    return nodes[0]


def names_of(part: Part) -> list[str | None]:
    """The names of a part's variables below it, in order; None where no attribute holds one."""
    if not isinstance(part, Variables):
        return []
    found = names_below(part.owner)
    return [found.get(id(variable)) for variable in part.variables]


def full_name(part: str, name: str) -> str:
    """The name of a variable in TensorFlow, where a root has none and an optimizer is a child."""
    owner, dot, rest = part.rpartition(".")
    part = f"{owner}/{rest}" if dot and rest == "optimizer" else part
    return f"{part}/{name}".removeprefix("root/").removesuffix("/")


def match(node: Node, owner: Any) -> list[tuple[Any, Node]]:
    """The variables below an object, each with the one in the checkpoint that has its name.

    A variable whose names lead to several values is refused.
    """
    found: dict[int, tuple[Any, Node]] = {}
    seen, queue = {(id(node), id(owner))}, deque([(node, owner)])
    while queue:
        there, value = queue.popleft()
        if isinstance(value, _compat.KerasVariable):
            before = found.setdefault(id(value), (value, there))[1]
            if there.key != before.key:
                raise _ambiguous(value.path, before.key, there.key)
            continue
        for names, child in children_of(value):
            below = {id(one): one for name in names if (one := there.children.get(name))}
            if not below or not (isinstance(child, _compat.KerasVariable) or holds(child)):
                continue
            if len(below) > 1:
                raise _ambiguous(getattr(child, "name", names[0]), *names)
            one = next(iter(below.values()))
            if (id(one), id(child)) not in seen:
                seen.add((id(one), id(child)))
                queue.append((one, child))
    return [(variable, there) for variable, there in found.values() if there.key is not None]


def _ambiguous(what: str, *names: str | None) -> UsageError:
    return UsageError(
        f"{what!r} matches {' and '.join(map(repr, names))} of the checkpoint, which have "
        "different values. Build the model as it was when the checkpoint was saved."
    )
