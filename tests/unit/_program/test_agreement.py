"""Programs in words: the same in every process, other ones for another computation."""

from __future__ import annotations

import json
import threading

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from replicax._core.digests import checksum, sample_checksum, without_numbers
from replicax._core.errors import WorkerLost, WorkersDiffer
from replicax._program import agreement
from replicax._program.agreement import agree_on_program, program_facts, versions

from channels import as_workers
from helpers import run_python

X = jnp.ones((2, 3))

FACTS = """
import json
import replicax, keras, jax, jax.numpy as jnp
from replicax._program import agreement

keras.utils.set_random_seed(0)
layer = keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.5)])
layer.build((2, 3))
table = jnp.arange(3.0)

def fn(x, key):
    step = jax.checkpoint(lambda s, r: (s * table + r.sum(), {"b": s, "a": r}))
    y, _ = jax.lax.scan(step, x[0], x)
    z = jax.lax.cond(y.sum() > 0, jnp.sin, jnp.cos, y)
    return layer(x), jax.random.normal(key, (2,)), jnp.where(z > 0, z, 0)[jnp.array([1, 0])]

arguments = jnp.ones((2, 3)), jax.random.key(0)
forward = jax.make_jaxpr(fn)(*arguments)
closed = jax.make_jaxpr(jax.grad(lambda *given: fn(*given)[0].sum()))(*arguments)
words = [*agreement._lines(closed), *agreement._lines(forward)]
print(json.dumps([agreement.program_facts(closed, arguments[:1]), words]))
"""


def facts(fn, *arguments):
    return program_facts(jax.make_jaxpr(fn)(*arguments), arguments)


def test_two_processes_find_the_same_words():
    one, other = (json.loads(run_python(FACTS, PYTHONHASHSEED=seed)) for seed in "12")
    assert one == other
    assert len(one[1]) > 30
    assert not [word for word in one[1] if "0x" in word]


def test_the_same_code_gives_the_same_words():
    def make():
        return lambda x: jnp.tanh(x) * 2

    assert facts(make(), X) == facts(make(), X)


def constant(value, wrap=lambda fn: fn):
    held = jnp.array([value, 1.0, 2.0])
    return wrap(lambda x: jnp.tanh(x) * held)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: jnp.sin(x) * 2, lambda x: jnp.cos(x) * 2),
        (lambda x: x * 2, lambda x: x * 3),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: x.reshape(6), lambda x: x.reshape(3, 2)),
        (lambda x: x * 2, lambda x: (x * 2) * 1),
        (constant(1.0), constant(5.0)),
        (constant(1.0, jax.jit), constant(5.0, jax.jit)),
        (constant(1.0, jax.checkpoint), constant(5.0, jax.checkpoint)),
        (jax.jit(lambda x: jnp.sin(x)), jax.jit(lambda x: jnp.cos(x))),
        (
            lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
            lambda x: jax.lax.cond(x.sum() > 0, jnp.cos, jnp.sin, x),
        ),
    ],
)
def test_another_computation_gives_other_words(one, other):
    assert facts(one, X)["program"] != facts(other, X)["program"]


@pytest.mark.parametrize("argument", [jnp.ones((3, 2)), jnp.ones((2, 3), "bfloat16")])
def test_other_arguments_give_other_words(argument):
    found, expected = facts(lambda x: x * 2, argument), facts(lambda x: x * 2, X)
    assert found["program"] != expected["program"]
    assert found["arguments"] != expected["arguments"]


def test_arguments_are_shown():
    assert facts(lambda x, y: x, X, np.arange(3))["arguments"].startswith("float32[2, 3], int")


def test_one_worker_agrees_without_a_look(monkeypatch):
    monkeypatch.setattr(agreement, "program_facts", None)
    assert agree_on_program("step", None, None) == 0


def agreed(*functions):
    """The number of the program at each worker, or its error."""
    closed = [jax.make_jaxpr(fn)(X) for fn in functions]
    return as_workers(len(functions), lambda i: agree_on_program("step", closed[i], [X]))


def test_workers_with_one_program_agree():
    first, second = agreed(*[lambda x: jnp.tanh(x) * 2] * 2)
    assert first == second != 0


def test_the_first_operation_that_differs_is_named():
    errors = agreed(lambda x: jnp.tanh(x) * 2, lambda x: jnp.tanh(x) + 2)
    assert [type(error) for error in errors] == [WorkersDiffer] * 2
    assert str(errors[0]) == str(errors[1])
    assert errors[0].differing == ("program", "operation 2")
    assert "must have the same step" in str(errors[0])
    assert "): mul float32[2,3]" in errors[0].table
    assert "): add float32[2,3]" in errors[0].table


def test_a_constant_that_differs_is_named():
    error = agreed(constant(1.0), constant(5.0))[0]
    assert error.differing == ("program", "operation 1")
    assert error.table.count("): constant ") == 2


def test_a_program_that_ends_before_another_is_named():
    error = agreed(lambda x: jnp.tanh(x), lambda x: jnp.tanh(x), lambda x: jnp.tanh(x) * 2)[2]
    assert error.differing == ("operations", "program", "operation 2")
    assert error.table.count("): returns ") == 2


def test_arguments_that_differ_are_named():
    given = X, jnp.ones((2, 4))
    closed = [jax.make_jaxpr(lambda x: x)(x) for x in given]
    error, _ = as_workers(2, lambda i: agree_on_program("step", closed[i], [given[i]]))
    assert error.differing == ("arguments", "program", "operation 1")
    assert "float32[2, 4]" in error.table


def test_a_checksum_is_of_content_shape_and_type():
    nests = [
        np.zeros(4, "float32"),
        np.ones(4, "float32"),
        np.zeros((2, 2), "float32"),
        np.zeros(4, "int32"),
        [np.zeros(2, "float32"), np.zeros(2, "float32")],
        np.zeros(0, "float32"),
    ]
    assert len({checksum(nest) for nest in nests}) == len(nests)
    assert checksum({"a": jnp.zeros(4)}) == checksum([np.zeros(8, "float32")[::2]])


def test_versions_are_texts():
    found = versions()
    assert found["JAX"] == jax.__version__
    assert found["number of devices"] == "8"
    assert all(isinstance(value, str) for value in found.values())


def test_the_same_operations_on_other_values_are_another_program():
    def facts(fn):
        return program_facts(jax.make_jaxpr(fn)(1.0, 2.0), ())["program"]

    assert facts(lambda a, b: a - b) == facts(lambda x, y: x - y)
    assert facts(lambda a, b: a - b) != facts(lambda a, b: b - a)
    assert facts(lambda a, b: (a, b)) != facts(lambda a, b: (b, a))


def test_a_key_has_a_checksum_and_so_has_text():
    assert checksum(jax.random.key(1)) == checksum(jax.random.key(1))
    assert checksum(jax.random.key(1)) != checksum(jax.random.key(2))
    assert checksum(np.array(["a", "b"], object)) != checksum(np.array(["a", "c"], object))


def test_a_sample_sees_shapes_and_both_ends():
    batch = np.arange(10.0)
    assert sample_checksum(batch) == sample_checksum(batch.copy())
    assert sample_checksum(batch) != sample_checksum(batch[:9])
    for row in (0, -1):
        other = batch.copy()
        other[row] += 1
        assert sample_checksum(batch) != sample_checksum(other)


def test_a_variable_is_known_by_its_path_without_keras_counters():
    assert without_numbers("sequential_3/dense_12/kernel") == "sequential/dense/kernel"
    assert without_numbers("block_2a/kernel") == "block_2a/kernel"


def test_slots_are_known_without_keras_counters():
    def facts_of_slots():
        layer = keras.layers.Dense(1)
        layer.build((None, 2))
        optimizer = keras.optimizers.Adam()
        optimizer.build(layer.trainable_variables)
        named = [(variable.path, np.zeros(1)) for variable in optimizer.variables]
        return program_facts(jax.make_jaxpr(jnp.sin)(1.0), (), named)

    # The second layer and the second optimizer are counted: `adam_1/dense_1_kernel_momentum`.
    assert facts_of_slots() == facts_of_slots()


def test_what_raises_on_one_worker_raises_on_all():
    def step(index):
        if index == 1:
            raise LookupError("not today")
        return index

    first, second, third = as_workers(3, lambda index: agreement.raise_on_all(step, index))
    assert isinstance(second, LookupError)
    for told in (first, third):
        assert isinstance(told, WorkerLost)
        assert told.workers == (1,)
        assert "LookupError: not today" in str(told)
    assert as_workers(2, lambda index: agreement.raise_on_all(abs, index)) == [0, 1]


def test_an_error_of_one_worker_waits_for_nobody():
    told, seen = threading.Event(), []

    def fail():
        raise MemoryError("here alone")

    def work(index):
        if index == 0:
            return agreement.raise_on_all(lambda: seen.append(told.wait(20)))
        try:
            return agreement.raise_on_all(fail)
        finally:
            told.set()

    first, second = as_workers(2, work)
    assert isinstance(second, MemoryError)
    assert isinstance(first, WorkerLost)
    assert seen == [True]
