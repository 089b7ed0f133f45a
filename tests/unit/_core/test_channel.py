"""Facts that all workers must share, and the table of who differs."""

import pickle
import socket

from replicax._core.channel import agree
from replicax._core.errors import WorkersDiffer

from channels import as_workers


def agreed(*facts):
    return as_workers(len(facts), lambda index: agree("set-up", facts[index]))


def test_one_worker_agrees_with_itself():
    assert agree("set-up", {"a": "1"}) is None


def test_equal_facts_are_agreed_on():
    assert agreed({"a": "1", "b": "2"}, {"b": "2", "a": "1"}) == [None, None]


def test_all_workers_raise_and_show_who_has_what():
    errors = agreed({"JAX": "1", "x": "y"}, {"JAX": "1", "x": "y"}, {"JAX": "2", "x": "y"})
    assert [type(error) for error in errors] == [WorkersDiffer] * 3
    host = socket.gethostname()
    lines = ["    JAX:", *(f"      worker {i} ({host}): {v}" for i, v in enumerate("112"))]
    (table,) = {error.table for error in errors}
    assert table.endswith("\n".join(lines))
    assert "worker 2" in table.partition("\n")[0]  # the others are more
    text = str(errors[1])
    assert text.startswith("The workers differ in JAX:")
    assert str(pickle.loads(pickle.dumps(errors[1]))) == text


def test_a_fact_that_a_worker_lacks_differs():
    error = agreed({"a": "1"}, {"b": "1"})[0]
    assert error.differing == ("a", "b")
    assert error.table.count("): nothing") == 2
