"""Variables that must be there."""

from __future__ import annotations

import pytest

from replicax import errors
from replicax.cluster_resolver._variables import number_of, text_of

SET_BY = "`srun`"


def test_a_variable_is_read():
    assert text_of({"A": " b "}, "A", set_by=SET_BY) == "b"
    assert number_of({"A": "12"}, "A", set_by=SET_BY) == 12


@pytest.mark.parametrize("environ", [{}, {"A": ""}, {"A": " "}])
def test_a_variable_that_is_not_there(environ):
    with pytest.raises(errors.ClusterSpecError, match="A is not set") as e:
        text_of(environ, "A", set_by=SET_BY)
    assert "A is not set. It is set by `srun`." in str(e.value)


@pytest.mark.parametrize("value", ["-1", "one", "1.0"])
def test_a_variable_that_is_no_number(value):
    with pytest.raises(errors.ClusterSpecError, match="`A`"):
        number_of({"A": value}, "A", set_by=SET_BY)
