"""Where and when: `device`, `executing_eagerly`, and what a graph needed and JAX does not."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from replicax._core.errors import UnknownDevice
from replicax._core.topology import parse_device
from replicax.tf._config import get_soft_device_placement

__all__ = [
    "control_dependencies", "device", "executing_eagerly", "get_logger", "group", "init_scope",
    "inside_function", "name_scope", "no_op",
]  # fmt: skip

logger = logging.getLogger("replicax")
_missed: set[Any] = set()  # devices of which a warning told


def device(device_name: Any) -> contextlib.AbstractContextManager[Any]:
    """Compute on a device: a context manager.

    For a device that there is not, JAX's default is taken and a warning logged, or, after
    `tf.config.set_soft_device_placement(False)`, it is an error.

    **Differs from TF:** inside compiled code, which runs on the devices of its strategy, it has
    no effect.

    Args:
        device_name: Such as "/GPU:0", "/CPU:0" or "/job:localhost/replica:0/task:0/device:TPU:1";
            a `jax.Device`, or what `tf.config.list_logical_devices` lists. None for any.

    Raises:
        UnknownDevice: If there is no such device, and placement is not soft.

    Example:
        >>> import replicax.tf as tf
        >>> with tf.device("/CPU:0"):
        ...     x = tf.constant(1.0)
    """
    named = (
        device_name
        if isinstance(device_name, jax.Device)
        else getattr(device_name, "name", device_name)
    )
    if not named:
        return contextlib.nullcontext()
    try:
        return jax.default_device(parse_device(named))
    except UnknownDevice:
        if not get_soft_device_placement():
            raise
    if named not in _missed:
        _missed.add(named)
        logger.warning("There is no device %s: the default device computes instead.", named)
    return contextlib.nullcontext()


def executing_eagerly() -> bool:
    """Whether values are known now: not in code that is being compiled."""
    return not isinstance(jnp.zeros(()), Tracer)


def inside_function() -> bool:
    """Whether code is being compiled."""
    return not executing_eagerly()


@contextlib.contextmanager
def name_scope(name: str | None) -> Iterator[str]:
    """Name the operations of a block, in profiles."""
    with jax.named_scope(name or "scope"):
        yield f"{name}/"


def init_scope() -> contextlib.AbstractContextManager[Any]:
    """A block without effect: there is no graph to leave."""
    return contextlib.nullcontext()


def control_dependencies(control_inputs: Any) -> contextlib.AbstractContextManager[Any]:
    """A block without effect: what is written is run in its order, also when compiled."""
    return contextlib.nullcontext()


def group(*inputs: Any, **kwargs: Any) -> None:
    """Nothing: what is written is run. The only keyword is `name`."""
    if unknown := kwargs.keys() - {"name"}:
        raise TypeError(
            f"tf.group takes one keyword, `name`. Received: {', '.join(sorted(unknown))}. "
            "Pass operations by position."
        )


def no_op(name: str | None = None) -> None:
    """Nothing."""


def get_logger() -> logging.Logger:
    """The logger of Replicax."""
    return logging.getLogger("replicax")
