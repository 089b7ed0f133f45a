"""What is said where a package of an extra is missing."""

from __future__ import annotations

import pytest

from replicax._core.errors import UsageError, needs


def test_the_extra_that_brings_it_is_named():
    with (
        pytest.raises(
            UsageError,
            match=r"Stones are read by the package rock\. Received: No module named 'rock_'\. "
            r"It comes with an extra of Replicax\. Run `pip install 'replicax\[quarry\]'`\.",
        ),
        needs("Stones are read by the package rock", extra="quarry"),
    ):
        import rock_  # noqa: F401
