"""`tf.nest`: lists, tuples and dicts of values, as TensorFlow walks them.

Every mapping is walked in the order of its sorted keys; subclasses of lists are walked; None is
a value. `keras.tree` takes an OrderedDict in its own order and a subclass of a list for a value;
`jax.tree` skips None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from replicax._core.errors import UsageError


def is_nested(seq: Any) -> bool:
    """Whether this is a list, a tuple or a dict."""
    return isinstance(seq, list | tuple | Mapping) and not hasattr(seq, "rank")


def flatten(structure: Any, expand_composites: bool = False) -> list[Any]:
    """The values of a nest, in order.

    Example:
        >>> import replicax.tf as tf
        >>> tf.nest.flatten({"b": 1, "a": (2, [None])})
        [2, None, 1]
    """
    if not is_nested(structure):
        return [structure]
    return [leaf for part in _parts(structure) for leaf in flatten(part)]


def _parts(structure: Any) -> list[Any]:
    if isinstance(structure, Mapping):
        return [structure[key] for key in _keys(structure)]
    return list(structure)


def _keys(structure: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(structure)
    except TypeError:
        return list(structure)


def _like(structure: Any, parts: list[Any]) -> Any:
    if isinstance(structure, Mapping):
        found = dict(zip(_keys(structure), parts, strict=True))
        ordered = {key: found[key] for key in structure}
        return ordered if type(structure) is dict else type(structure)(ordered)  # pyright: ignore[reportCallIssue]
    if hasattr(structure, "_fields"):
        return type(structure)(*parts)
    return type(structure)(parts)


def pack_sequence_as(structure: Any, flat_sequence: Any, expand_composites: bool = False) -> Any:
    """The values of a list in the form of a nest.

    Raises:
        UsageError: If their number differs.
    """
    values, wanted = list(flat_sequence), len(flatten(structure))
    if len(values) != wanted:
        raise UsageError(
            f"Cannot pack {len(values)} values into a structure of {wanted}. Pass the structure "
            "that they came from."
        )
    return _packed(structure, iter(values))


def _packed(structure: Any, values: Iterator[Any]) -> Any:
    if not is_nested(structure):
        return next(values)
    return _like(structure, [_packed(part, values) for part in _parts(structure)])


def map_structure(
    func: Callable[..., Any],
    *structure: Any,
    check_types: bool = True,
    expand_composites: bool = False,
) -> Any:
    """A function of each value of a nest, or of the values of several at the same place.

    Raises:
        UsageError: If the nests differ, or there is none.
    """
    if not structure:
        raise UsageError("`map_structure` got no structure. Pass a nest after the function.")
    for other in structure[1:]:
        assert_same_structure(structure[0], other, check_types)
    rows = zip(*map(flatten, structure), strict=True)
    return pack_sequence_as(structure[0], [func(*row) for row in rows])


def assert_same_structure(
    nest1: Any, nest2: Any, check_types: bool = True, expand_composites: bool = False
) -> None:
    """Check that two nests have the same form.

    Raises:
        UsageError: If they differ.
    """
    if not _are_alike(nest1, nest2, check_types):
        raise UsageError(
            f"The structures {nest1} and {nest2} differ. Give both the same lists, tuples and keys."
        )


def _are_alike(one: Any, other: Any, check_types: bool) -> bool:
    if not (is_nested(one) and is_nested(other)):
        return is_nested(one) == is_nested(other)
    mappings = isinstance(one, Mapping) and isinstance(other, Mapping)
    if check_types and type(one) is not type(other) and not mappings:
        return False
    if mappings and _keys(one) != _keys(other):
        return False
    first, second = _parts(one), _parts(other)
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(_are_alike(a, b, check_types) for a, b in pairs)
