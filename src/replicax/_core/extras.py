"""What to say where a package is missing that only one of our extras brings."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from replicax._core.errors import UsageError


@contextlib.contextmanager
def needs(rule: str, *, extra: str) -> Generator[None]:
    """Say which extra to install if the imports of this block fail.

    Args:
        rule: What the package is for, as the first sentence of the message, without its full stop.
        extra: Who brings it.

    Raises:
        UsageError: If a module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{rule}. Received: {error}. It comes with an extra of Replicax. "
            f"Run `pip install 'replicax[{extra}]'`."
        ) from error
