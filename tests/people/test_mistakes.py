"""Typical mistakes end at once, as documented, and their message holds what helps."""

import pytest
from people.mistakes import MISTAKES, replay


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.written[:60])
def test_a_mistake_is_answered_with_what_helps(mistake):
    ended = replay(mistake)
    assert ended.code == mistake.code, ended.said
    assert mistake.says in ended.said
    assert "Received:" not in ended.said
