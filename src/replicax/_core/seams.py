"""Late installation of the patches of Keras, and hooks that `replicax.tf` sets.

Patches are installed once, when Keras has been imported and a strategy is made. The package with
the patches imports Keras. Rooms below it call `put_in_if_keras_is_there`, which runs the installers
that the package has provided. A program that ends with installers left, and has trained, is warned.
"""

from __future__ import annotations

import atexit
import functools
import gc
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

logger = logging.getLogger("replicax")

_pending: list[Callable[[], None]] = []

# Whether the program speaks TensorFlow: `replicax.tf` was imported. Then loops over data sets get
# arrays with `numpy()`, and a layer's weights are the shards of a divided variable.
speaks_tensorflow = False


def spelled(tensorflow: str, otherwise: str) -> str:
    """The name for a message: TensorFlow's, if the program uses `replicax.tf`."""
    return tensorflow if speaks_tensorflow else otherwise


def provide(install: Callable[[], None]) -> None:
    """Register an installer of patches, to run after those registered before."""
    _pending.append(install)


def put_in_if_keras_is_there() -> None:
    """Run the registered installers if Keras was imported."""
    while _pending and "keras" in sys.modules and hasattr(sys.modules["keras"], "Model"):
        _pending.pop(0)()


@functools.cache
def warn_at_exit() -> None:
    """Register the warning about a program that uses Replicax, but trains without a strategy."""
    atexit.register(_warn_of_unused)


def _warn_of_unused() -> None:
    """Warn if Keras trained a model, and nothing of this program has installed the patches.

    In a program with `replicax.tf` the default strategy trains such models.
    """
    keras: Any = sys.modules.get("keras")
    if speaks_tensorflow or not _pending or not hasattr(keras, "distribution"):
        return
    if keras.distribution.distribution() is not None:
        return
    models = [one for one in gc.get_objects() if issubclass(type(one), keras.Model)]
    trained = [one for one in models if getattr(vars(one).get("history"), "epoch", None)]
    if trained:
        logger.warning(
            "Keras trained the model '%s' on one device, without Replicax: this program imports "
            "Replicax, but made no strategy. Make and compile the model inside a "
            "`strategy.scope()`, or ignore this line.",
            trained[0].name,
        )


# Calls a traced function with its control flow converted; set by `replicax.tf`.
call_converted: Callable[..., Any] | None = None
# The reasons why the code of user functions was not converted.
unconverted: dict[Any, str] = {}


def call_traced(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    autograph: bool | None = None,
) -> Any:
    """Call a traced function; programs that use `replicax.tf` get its control flow converted.

    `autograph=None` follows the function around it.
    """
    if call_converted is None or not speaks_tensorflow:
        return fn(*args, **kwargs)
    return call_converted(fn, args, kwargs, autograph)
