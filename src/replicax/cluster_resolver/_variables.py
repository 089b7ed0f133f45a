"""Reading the environment variables that schedulers set, with an error that says who sets them."""

from __future__ import annotations

from collections.abc import Mapping

from replicax._core.errors import ClusterSpecError


def text_of(environ: Mapping[str, str], name: str, *, set_by: str) -> str:
    """The value of a variable that must be there and not empty.

    `set_by` is the end of the sentence "It is set by …".
    """
    value = environ.get(name, "").strip()
    if not value:
        raise ClusterSpecError(
            f"{name} is not set. It is set by {set_by}. Start the program in that way, or describe "
            "the cluster in TF_CONFIG."
        )
    return value


def number_of(environ: Mapping[str, str], name: str, *, set_by: str) -> int:
    """The value of a variable that must be there and is a whole number from 0."""
    value = text_of(environ, name, set_by=set_by)
    if not value.isdecimal():
        raise ClusterSpecError.of(
            name,
            "an integer from 0",
            value,
            f"It is set by {set_by}. Remove what sets it otherwise.",
        )
    return int(value)
