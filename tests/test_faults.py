"""Every fault of `make faults` has the outcome that docs/reliability.md promises."""

from __future__ import annotations

import pytest
from faults import all_faults
from faults.trial import LIMIT_SECONDS, try_apart

pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 60)


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: fault.what.replace(" ", "-"))
def test_the_outcome_is_the_promised_one(fault):
    found = try_apart(fault)
    assert found.is_as_expected, found
