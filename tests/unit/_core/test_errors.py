"""The tree of errors: what a program can catch; and which extra is named where one is missing."""

import inspect
import re
from pathlib import Path

import pytest

from replicax._core import errors
from replicax._core.errors import UsageError, needs

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, BaseException)
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_ours_and_says_when_it_is_raised(kind):
    assert issubclass(kind, errors.ReplicaxError)
    assert kind.__doc__.startswith(("Raised when", "Raised by", "Base class"))


@pytest.mark.parametrize("kind", [k for k in ALL if issubclass(k, errors.UsageError)])
def test_a_usage_error_is_a_value_error(kind):
    # Programs that catch what tf.distribute raises go on working.
    assert issubclass(kind, ValueError)


@pytest.mark.parametrize(
    "name",
    [
        "NotInReplicaContext",
        "NotInCrossReplicaContext",
        "MixedStrategies",
        "VariableNotReduced",
        "BackendAlreadyInitialized",
    ],
)
def test_errors_of_context_are_runtime_errors_as_in_tensorflow(name):
    assert issubclass(getattr(errors, name), RuntimeError)


@pytest.mark.parametrize("name", ["PerReplicaMisuse", "LeakedTracer"])
def test_errors_of_kind_are_type_errors(name):
    assert issubclass(getattr(errors, name), TypeError)


def test_the_tree_in_the_docstring_is_complete():
    drawn = set(re.findall(r"\b[A-Z][A-Za-z]+\b", errors.__doc__)) - {"Every"}
    assert {kind.__name__ for kind in ALL} <= drawn


def test_the_page_about_errors_is_complete():
    page = Path(__file__).parents[3].joinpath("docs", "errors.md").read_text()
    assert {kind.__name__ for kind in ALL} <= set(re.findall(r"\b[A-Z][A-Za-z]+\b", page))


def test_the_extra_that_brings_it_is_named():
    with (
        pytest.raises(UsageError, match=r"'rock_'.*`pip install 'replicax\[quarry\]'`"),
        needs("Reading stones", extra="quarry"),
    ):
        import rock_  # noqa: F401


def test_a_wrong_value_is_named_with_its_argument():
    error = errors.ClusterSpecError.of("size", "positive", 0, "See docs/data.md.")
    assert isinstance(error, errors.ClusterSpecError)
    assert "`size`" in str(error)
    assert "got 0" in str(error)
    assert str(error).endswith("See docs/data.md.")
    assert len(str(UsageError.of("size", "positive", "x" * 1000))) < 200


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("MirorredStrategy", ["MirroredStrategy", "run"], "MirroredStrategy"),
        ("gpu:0", ["GPU:0", "CPU:0"], "GPU:0"),
        ("sum", ["SUM", "MEAN"], "SUM"),
    ],
)
def test_the_closest_name_is_offered(name, known, meant):
    assert repr(meant) in errors.did_you_mean(name, known)


def test_a_name_like_no_other_gets_no_offer():
    assert errors.did_you_mean("quarry", ["run", "fit"]) == ""
