"""Concrete functions: what they are called with, what they look like, and the graph of them."""

import inspect

import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf


@tf.function
def power(a, b=2):
    return a**b


@tf.function
def twice(a):
    return a + a


def test_a_function_of_any_number_of_axes():
    square = power.get_concrete_function(tf.TensorSpec(None, tf.float32))
    assert float(square(tf.constant(10.0))) == 100.0
    assert square(tf.constant([[2.0], [3.0]])).tolist() == [[4.0], [9.0]]
    with pytest.raises(rx.errors.UsageError, match="any number of axes"):
        _ = square.structured_outputs


@pytest.mark.parametrize("other", [3, 2.0, True, None])
def test_a_constant_is_the_one_that_it_was_made_for(other):
    square = power.get_concrete_function(tf.TensorSpec([], tf.float32), b=2)
    assert float(square(tf.constant(3.0), b=2)) == 9.0
    with pytest.raises(TypeError):
        square(tf.constant(3.0), b=other)
    with pytest.raises(TypeError):  # also of a default
        power.get_concrete_function(tf.TensorSpec([], tf.float32))(tf.constant(3.0), other)


def test_the_arrays_alone_may_be_passed():
    class Line(tf.Module):
        slope = 2.0

    concrete = tf.function(lambda line, x, y: line.slope * x - y).get_concrete_function(
        Line(), tf.TensorSpec([], tf.float32), y=tf.TensorSpec([], tf.float32)
    )
    assert float(concrete(tf.constant(5.0), tf.constant(1.0))) == 9.0
    assert float(concrete(tf.constant(5.0), y=tf.constant(1.0))) == 9.0
    for wrong in ((5.0,), (5.0, 1.0, 1.0)):
        with pytest.raises(TypeError):
            concrete(*map(tf.constant, wrong))


def test_text_is_computed_by_python():
    traced = []

    @tf.function
    def doubled(a):
        traced.append(a)
        return a + a

    assert doubled(tf.constant("a")).numpy() == b"aa"
    assert doubled(tf.constant("b")).numpy() == b"bb"
    for number in (1, 2):
        assert int(doubled(tf.constant(number))) == 2 * number
    assert (len(traced), doubled.experimental_get_tracing_count()) == (2 + 1, 1)
    rows, more = tf.function(lambda text, x: (tf.strings.join([text, "!"]), x + 1))(
        tf.constant(["a", "b"]), tf.constant([1, 2])
    )
    assert (rows.numpy().tolist(), more.tolist()) == ([b"a!", b"b!"], [2, 3])


def test_a_concrete_function_of_text():
    concrete = twice.get_concrete_function(tf.TensorSpec([], tf.string))
    assert concrete(a=tf.constant("c")).numpy() == b"cc"
    for wrong in (tf.constant(1), tf.constant(["a", "b"])):
        with pytest.raises(tf.errors.InvalidArgumentError):
            concrete(wrong)
    assert "string" in str(concrete.function_type)
    with pytest.raises(rx.errors.UsageError, match="computes text"):
        _ = concrete.graph


def test_its_type_has_the_parameters_and_the_results():
    concrete = power.get_concrete_function(tf.TensorSpec([None, 3], tf.int32))
    found = concrete.function_type
    spec = found.parameters["a"].annotation
    assert (spec.shape, spec.dtype_name, found.parameters["b"].annotation) == (
        (None, 3),
        "int32",
        2,
    )
    assert found.return_annotation.shape == (None, 3)
    assert isinstance(found, inspect.Signature)
    assert repr(concrete).startswith("<ConcreteFunction power(a: TensorSpec")


def test_its_graph_has_the_operations_of_the_program():
    factor = tf.Variable(3.0)

    @tf.function
    def inner(x):
        return tf.maximum(x, 0.0)

    @tf.function
    def outer(x, y):
        return inner(x) * factor + y

    spec = tf.TensorSpec([2], tf.float32)
    graph = outer.get_concrete_function(spec, spec).graph
    nodes = {node.name: node for node in graph.as_graph_def().node}
    assert len(nodes) == len(graph.get_operations())
    assert [name for name, node in nodes.items() if node.op == "Placeholder"] == [
        "variable_0",
        "x",
        "y",
    ]
    assert nodes["max"].input[0] == "x"
    assert nodes["add"].input == ["mul", "y"]
    assert 'op: "max"' in str(graph.as_graph_def())


def test_a_longer_program_has_more_nodes():
    @tf.function
    def total(pairs):
        loss = tf.constant(0)
        for x, y in pairs:
            loss += tf.abs(y - x)
        return loss

    def count(data):
        return len(total.get_concrete_function(data).graph.as_graph_def().node)

    pair = (tf.constant(1), tf.constant(2))
    one, three = count([pair]), count([pair] * 3)
    assert (three - one) % 2 == 0
    assert three > one
    dataset = tf.data.Dataset.from_tensors((np.int32(1), np.int32(2))).repeat(100)
    with pytest.raises(rx.errors.UsageError, match="runs as plain Python"):
        count(dataset)


class Dense(tf.Module):
    """Makes its variable at its first call."""

    kernel = None

    def __call__(self, x):
        if self.kernel is None:
            self.kernel = tf.Variable(tf.ones((x.shape[-1], 3)))
        return tf.matmul(x, self.kernel)


@pytest.mark.parametrize("rows", [4, None])
def test_replicas_may_make_their_variable_while_a_concrete_function_is_traced(rows, mirrored):
    with mirrored.scope():
        dense = Dense()
    step = tf.function(lambda x: mirrored.run(dense, args=(x,)))
    concrete = step.get_concrete_function(tf.TensorSpec((rows, 2), tf.float32))
    _ = concrete.structured_outputs  # traced now, not at the first call
    (kernel,) = dense.variables
    kernel.assign_add(tf.ones((2, 3)))  # it is the one that the function reads
    results = mirrored.experimental_local_results(concrete(tf.ones((4, 2))))
    assert [result.tolist() for result in results] == [[[4.0] * 3] * 4] * 2
