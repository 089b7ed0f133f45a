"""The error for a TensorFlow name that is not here."""

from __future__ import annotations

from replicax.tf._absent import instead


def missing_name(namespace: str, name: str) -> AttributeError:
    """The error for a name that is not here.

    Args:
        namespace: What it was asked of, e.g. "tf.data"; also a module's `__name__`.
        name: The name.
    """
    path = f"{namespace.removeprefix('replicax.')}.{name}"
    hint = instead(path) or "keras.ops or jax.numpy may have it."
    return AttributeError(f"replicax.tf has no `{path}`. {hint} docs/tf.md lists all names.")
