"""Restores what TensorFlow's `Checkpoint.save` and Keras 2's `save_weights` wrote.

An object is found by its name in TensorFlow's checkpoint, which holds a graph of attributes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from replicax._core import seams
from replicax._core.errors import CheckpointError, UsageError
from replicax._core.wire import fields
from replicax._keras import _compat
from replicax._keras.attributes import DUPLICATES, children_of, finish, holds, weights_of
from replicax.train._arrays import dtype_of
from replicax.train._parts import LeftOvers, Part, Stateful, Variables, is_optional, put
from replicax.train._plain import Value

if TYPE_CHECKING:
    from replicax.train._bundle import Bundle


GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


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


logger = logging.getLogger("replicax")

# The slots of optimizers up to Keras 2.10, and the attributes that hold them here.
_SLOTS = {
    "accumulator": ("_accumulators",),
    "m": ("_momentums",),
    "mg": ("_average_gradients",),
    "momentum": ("momentums", "_momentums"),
    "rms": ("_velocities",),
    "v": ("_velocities",),
    "vhat": ("_velocity_hats",),
}
_COUNTER = "save_counter"

_Plan = list[tuple[Any, Node]]


class RestoredGraph:
    """One of TensorFlow's checkpoints, and the objects that have got their values from it.

    `parts` is called again whenever an object was added.
    """

    def __init__(self, path: str, bundle: Bundle, parts: Callable[[], list[Part]]) -> None:
        self._path, self._bundle, self._parts = path, bundle, parts
        if GRAPH not in bundle.entries:
            raise UsageError(
                f"Cannot restore objects from {path!r}: it holds variables by name only, as "
                "TensorFlow 1 wrote them. Read them with "
                f"`{seams.spelled('tf', 'rx')}.train.load_variable(path, name)`."
            )
        try:
            self._root = graph_of(bundle.read(GRAPH).item())
        except (IndexError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"The checkpoint {path!r} is damaged: its graph of objects ends too early, or "
                "names a file that is missing. Copy it again, or use an older one."
            ) from error
        self._given: dict[int, tuple[Any, Node]] = {}  # variables and their nodes
        self._matched: set[str] = set()
        self._said: set[str] = set()
        self._waiting: dict[str, tuple[Variables, Node, Mapping[str, np.ndarray]]] = {}

    @property
    def save_counter(self) -> int:
        node = self._root.children.get(_COUNTER)
        return int(self._bundle.read(node.key)) if node and node.key else 0

    def restore(self) -> Callable[[], None]:
        """Match the parts with what was saved; the result gives them their values."""
        return self._restore(self._parts())

    def settle(self) -> None:
        """Give values to the parts that were added or found since the last call."""
        added = [part for part in self._parts() if part.name not in self._matched]
        self._restore([part for part in added if self._node(part) is not None])()

    def _restore(self, parts: Sequence[Part]) -> Callable[[], None]:
        plan: _Plan = []
        states: list[tuple[Value, Any]] = []
        found: list[tuple[Part, Node]] = []
        for part in sorted(parts, key=_is_optimizer):  # their slots need the nodes of the variables
            if isinstance(part, LeftOvers):
                continue
            node = self._node(part)
            if node is None:
                self._leave_out(part)
            elif isinstance(part, Stateful):
                if isinstance(part.owner, Value) and node.key is not None:
                    states.append((part.owner, self._bundle.read(node.key).item()))
                    found.append((part, node))
                elif not part.optional:
                    self._log_left(part.name, "only TensorFlow can read its state")
            else:
                plan += self._plan(part, node, plan)
                found.append((part, node))
        values = self._values(plan)
        later = {
            part.name: (part, node, self._all_below(node))
            for part, node in found
            if isinstance(part, Variables) and _compat.unbuilt(part.owner)
        }

        def give() -> None:
            self._matched |= {part.name for part, _ in found}
            self._put(plan, values)
            for value, state in states:
                value.set_state(state)
            for part, _ in found:
                finish(part.owner)
            self._waiting |= later
            for name, (part, *_) in later.items():
                for owner in _compat.unbuilt(part.owner):
                    _compat.after_build(owner, partial(self._fill, name))

        return give

    def _put(self, plan: _Plan, values: Mapping[str, np.ndarray]) -> None:
        for variable, node in plan:
            assert node.key is not None
            put(variable, {node.key: _as_type_of(variable, values[node.key])}, node.key)
            self._given[id(variable)] = variable, node

    def _fill(self, name: str) -> None:
        """Give values to what has been built of a part since the last call."""
        part, node, values = self._waiting[name]
        new = [pair for pair in self._plan(part, node, []) if id(pair[0]) not in self._given]
        self._put(new, values)
        finish(part.owner)

    def _node(self, part: Part) -> Node | None:
        """The node with the name of a part; for a root without a name, the root."""
        name = part.name
        own = name.removesuffix(".optimizer") if _is_optimizer(part) else name
        names = [*own.split("/"), *(["optimizer"] if own != name else [])]
        node = self._root
        for place, one in enumerate(names):
            if place == 0 and one == "root" and one not in node.children:
                continue
            if (below := node.children.get(one)) is None:
                return None
            node = below
        return node

    def _leave_out(self, part: Part) -> None:
        if isinstance(part, Stateful) and part.optional:
            return
        if part.name.endswith(".optimizer"):  # a model's own, which the program does not name
            self._log_left(part.name, "it is not in the checkpoint")
            return
        raise UsageError(
            f"{self._path!r} has no object {part.name!r}; it has {sorted(self._root.children)}. "
            f"Give the objects the names they were saved under, or leave {part.name!r} out."
        )

    def _plan(self, part: Variables, node: Node, before: _Plan) -> _Plan:
        """The checkpoint's value for each variable of a part.

        `node` has the part's name in the checkpoint; `before` are the values of other parts.
        """
        own = {id(variable): variable for variable in part.variables}
        found = [(one, there) for one, there in match(node, part.owner) if id(one) in own]
        if isinstance(part.owner, _compat.BaseOptimizer):
            nodes = {id(one): there for one, there in [*self._given.values(), *before]}
            found, left = _with_slots(part, node, found, nodes)
            if left:
                self._log_left(part.name, left)
        there = {id(one) for one, _ in found}
        if missing := [one.path for one in weights_of(part.owner) if id(one) not in there]:
            names = [name for name in self._keys(node) if "optimizer" not in name]
            raise UsageError(
                f"{self._path!r} has no value for {missing[:3]}. For {part.name!r} it has "
                f"{names[:4] or 'none'}. Build the model as it was saved, with the same attributes "
                "and layers."
            )
        for variable, place in found:
            self._check(variable, place)
        return found

    def _check(self, variable: Any, node: Node) -> None:
        entry = self._bundle.entries.get(str(node.key))
        if entry is None:
            raise CheckpointError(
                f"The checkpoint {self._path!r} is damaged: it names {node.key!r}, and has no "
                "such value. Copy it again, or use an older one."
            )
        here, there = dtype_of(variable.dtype), entry.dtype
        fits = here == there or (here.kind in "iu" and there.kind in "iu")
        if tuple(variable.shape) != entry.shape or not fits:
            raise UsageError(
                f"Cannot restore {node.key!r}, {entry.shape} of {there.name}, into "
                f"{variable.path!r}, {tuple(variable.shape)} of {here.name}. Build the model as it "
                "was when it was saved, with the same precision."
            )

    def _values(self, plan: _Plan) -> dict[str, np.ndarray]:
        """The values of a plan, read before any variable changes."""
        values = {str(node.key): self._bundle.read(str(node.key)) for _, node in plan}
        for variable, node in plan:
            _as_type_of(variable, values[str(node.key)])
        return values

    def _all_below(self, node: Node) -> dict[str, np.ndarray]:
        """The values that objects may ask for once built, when the files may be gone."""
        slots = [slot.key for _, _, slot in node.slots if slot.key in self._bundle.entries]
        return {str(name): self._bundle.read(str(name)) for name in [*self._keys(node), *slots]}

    def _keys(self, node: Node) -> list[str]:
        return [one.key for one in node.below() if one.key in self._bundle.entries and one.key]

    def _log_left(self, name: str, why: str) -> None:
        if name not in self._said:
            self._said.add(name)
            logger.warning("From %s, %r is not restored: %s.", self._path, name, why)

    @property
    def unused(self) -> list[str]:
        """The names of the values that nothing here has asked for."""
        counter = self._root.children.get(_COUNTER)
        used = {node.key for _, node in self._given.values()} | {counter and counter.key}
        used |= {node.key for name in self._matched if (node := self._named(name))}
        for name in self.waiting:
            used |= set(self._waiting[name][2])
        everything = dict.fromkeys(self._all_names())
        return sorted(name for name in everything if name not in used)

    def _named(self, name: str) -> Node | None:
        return self._node(Stateful(name, None))

    def _all_names(self) -> Iterator[str]:
        for node in self._root.below():
            yield from [node.key] if node.key else []
            yield from node.others
            yield from (str(slot.key) for _, _, slot in node.slots)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The names of parts that are not built yet and get their values when they are."""
        used = {node.key for _, node in self._given.values()}
        return tuple(
            name
            for name, (part, _, values) in self._waiting.items()
            if _compat.unbuilt(part.owner) and set(values) - used
        )

    @property
    def matched(self) -> frozenset[str]:
        return frozenset(self._matched)

    @property
    def without_value(self) -> list[str]:
        """The names of parts, and of variables of optimizers, without a value."""
        names = []
        for part in self._parts():
            if is_optional(part):
                continue
            if part.name not in self._matched:
                names.append(part.name)
            elif isinstance(part, Variables) and _is_optimizer(part):
                names += [one.path for one in part.variables if id(one) not in self._given]
        return names


def _is_optimizer(part: Part) -> bool:
    return isinstance(part.owner, _compat.BaseOptimizer)


def _with_slots(
    part: Variables, node: Node, found: _Plan, nodes: Mapping[int, Node]
) -> tuple[_Plan, str]:
    """The values for an optimizer, and what is left out; slots must belong to their variables.

    `found` are the values by the names of its attributes. `nodes` are the checkpoint's nodes of the
    variables that it trains, by `id`.
    """
    trained = _compat.trainable_variables(part.owner) if part.owner.built else []
    attributes = (pair for pair in vars(part.owner).items() if pair[0] not in DUPLICATES)
    lists = {
        name: held
        for name, held in attributes
        if isinstance(held, list) and len(held) == len(trained) > 0
    }
    of = {id(slot): one for held in lists.values() for slot, one in zip(held, trained, strict=True)}
    for slot, there in found:
        own = nodes.get(id(of.get(id(slot))))
        if own is not None and _plain(own.name) not in _plain(there.name):
            found = [(one, place) for one, place in found if id(one) not in of]
            return found, "its slots belong to other variables there"
    by_node = {id(nodes[id(one)]): n for n, one in enumerate(trained) if id(one) in nodes}
    for one, kind, place in node.slots:
        held = next((lists[name] for name in _SLOTS.get(kind, ()) if name in lists), None)
        if held is not None and id(one) in by_node:
            found = [*found, (held[by_node[id(one)]], place)]
    given = {id(one) for one, _ in found}
    left = [one.path for one in part.variables if id(one) not in given]
    return found, f"the checkpoint has no values for {left[:3]}" if left else ""


def _plain(name: str) -> str:
    return name.replace("/", "_").removesuffix(":0")


def _as_type_of(variable: Any, array: np.ndarray) -> np.ndarray:
    """A value in its variable's type: 64 bits only if they fit into 32."""
    converted = array.astype(dtype_of(variable.dtype), copy=False)
    if array.dtype.kind in "iu" and not np.array_equal(converted, array):
        raise UsageError(
            f"{variable.path!r} of {variable.dtype} cannot hold the checkpoint's value "
            f"{array.max()}. Set `jax_enable_x64` for 64 bits."
        )
    return converted
