"""TensorFlow's names that are not here, and what to use; `replicax migrate` reads it, too."""

from __future__ import annotations

from replicax.tf._absent import ABSENT
from replicax.tf._absent_keras import ABSENT_KERAS

# The full TensorFlow name, or a prefix for a whole namespace, and a sentence: what to use.
INSTEAD = {
    **ABSENT,
    **ABSENT_KERAS,
}


def instead(path: str) -> str | None:
    """What to use for a TensorFlow name: by the longest prefix that the list has."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        found = INSTEAD.get(".".join(parts[:length]))
        if found:
            return found
    return None


def missing_name(namespace: str, name: str) -> AttributeError:
    """The error for a name that is not here.

    Args:
        namespace: What it was asked of, e.g. "tf.data"; also a module's `__name__`.
        name: The name.
    """
    path = f"{namespace.removeprefix('replicax.')}.{name}"
    hint = instead(path)
    return AttributeError(
        f"A name of `replicax.tf` is one that its documentation lists. Received: "
        f"{path}. {hint or 'It is not part of Replicax.'} "
        "See docs/tf.md for the names there are; keras.ops and jax.numpy have the rest."
    )
