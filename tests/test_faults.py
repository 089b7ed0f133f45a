"""Every fault of `make faults` has the outcome that docs/measurements_faults.md promises."""

import pytest
from faults import all_faults
from faults.trial import LIMIT_SECONDS, try_apart

from helpers import TESTS

pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 60)

FAULTS = all_faults()


@pytest.mark.parametrize(
    "fault",
    [fault for fault in FAULTS if not fault.tested_by],
    ids=lambda fault: fault.what.replace(" ", "-"),
)
def test_the_outcome_is_the_promised_one(fault):
    found = try_apart(fault)
    assert found.is_as_expected, found


def test_the_others_have_tests_elsewhere():
    tried = {fault.what for fault in FAULTS if not fault.tested_by}
    for test in {fault.tested_by for fault in FAULTS} - {"", *tried}:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (TESTS / file).read_text()
