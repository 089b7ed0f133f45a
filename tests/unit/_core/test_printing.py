"""`rx.print`, alias `tf.print`: a line, and that compiled code prints every time."""

import io
from collections import namedtuple

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core import host_calls
from replicax._core.printing import print as tf_print

from helpers import run_python

Pair = namedtuple("Pair", "a b")


def printed(*inputs, **options):
    out = io.StringIO()
    rx.print(*inputs, output_stream=out, **options)
    host_calls.flush()
    return out.getvalue()


# As TensorFlow 2.21 prints them.
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.arange(10), "[0 1 2 ... 7 8 9]"),
        (np.arange(6), "[0 1 2 3 4 5]"),
        (jnp.arange(3.0) / 3, "[0 0.333333343 0.666666687]"),
        (np.arange(4).reshape(2, 2), "[[0 1]\n [2 3]]"),
        (np.arange(8).reshape(2, 2, 2), "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]"),
        (np.zeros((0, 3)), "[]"),
        (np.array([True, False]), "[1 0]"),
        (np.array(["a", "b"]), '["a" "b"]'),
        (np.complex64(1 + 2j), "(1,2)"),
        (np.float32("nan"), "nan"),
        (jnp.bfloat16(0.5), "0.5"),
        ({"b": np.int32(1), "a": [np.arange(10), "s"]}, "{'a': [[0 1 2 ... 7 8 9], 's'], 'b': 1}"),
        ("s", "s"),
        (2.5, "2.5"),
        ((1, None), "(1, None)"),
        ((1,), "(1,)"),
        (Pair(np.int32(1), "x"), "Pair(a=1, b='x')"),
    ],
)
def test_a_line(value, text):
    assert printed(value) == text + "\n"


def test_numbers_are_as_short_as_gives_them_back():
    numbers = np.float32([1.23456789, 1e-10, 1e10, 123456.7])
    assert printed(numbers) == "[1.23456788 1e-10 1e+10 123456.703]\n"
    assert printed(np.float64(8) / 3) == "2.6666666666666665\n"


def test_rows_that_are_left_out():
    text = "[[0 ... 4]\n ...\n [20 ... 24]]"
    assert printed(np.arange(25).reshape(5, 5), summarize=1) == text + "\n"
    assert printed(np.arange(8), summarize=-1) == "[0 1 2 3 4 5 6 7]\n"


def test_separator_and_end():
    assert printed("a", 1, sep="|", end="!") == "a|1!"


def test_values_of_strategies_and_variables():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = keras.Variable([1.0, 2.0])
    (batch,) = strategy.experimental_distribute_dataset([np.arange(4)])
    mirrored = strategy.run(lambda: jnp.float32(3))
    lines = "PerReplica:{\n  0: [0 1],\n  1: [2 3]\n} 3 [1 2]\n"
    assert printed(batch, mirrored, variable) == lines


def test_every_replica_prints_each_time_with_the_numbers_of_then(mirrored):
    out = io.StringIO()

    def step(x):
        rx.print("x", x, {"sum": x.sum()}, "end", output_stream=out)
        rx.print("only text", output_stream=out)

    for batch in mirrored.experimental_distribute_dataset([np.arange(4), np.arange(4, 8)]):
        mirrored.run(step, args=(batch,))
    host_calls.flush()
    expected = [
        f"[replica {replica}] x [{a} {a + 1}] {{'sum': {2 * a + 1}}} end"
        for replica, a in [(0, 0), (0, 4), (1, 2), (1, 6)]
    ]
    lines = sorted(out.getvalue().splitlines())
    assert [line for line in lines if "only" not in line] == expected
    assert lines.count("[replica 0] only text") == lines.count("[replica 1] only text") == 2


def test_uneven_replicas_print_what_each_has(mirrored):
    out = io.StringIO()
    (batch,) = mirrored.experimental_distribute_dataset([np.arange(3)])
    mirrored.run(lambda x: rx.print(x, output_stream=out), args=(batch,))
    host_calls.flush()
    assert sorted(out.getvalue().splitlines()) == ["[replica 0] [0 1]", "[replica 1] [2]"]


def test_a_compiled_function_prints_at_every_call(mirrored):
    out = io.StringIO()

    @rx.function
    def whole(batch):
        rx.print("whole", mirrored.run(lambda x: x * 2, args=(batch,)), output_stream=out)

    for batch in mirrored.experimental_distribute_dataset([np.arange(2), np.arange(2)]):
        whole(batch)
    host_calls.flush()
    assert out.getvalue() == "whole PerReplica:{\n  0: [0],\n  1: [2]\n}\n" * 2


def test_fit_prints_a_line_per_batch(mirrored):
    out = io.StringIO()

    class Speaking(keras.layers.Layer):
        def call(self, x):
            rx.print("rows", x[:, 0], output_stream=out)
            return x

    with mirrored.scope():
        model = keras.Sequential([keras.Input((1,)), Speaking(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    out.truncate(0)
    out.seek(0)
    x = np.arange(4, dtype="float32")[:, None]
    model.fit(x, x, batch_size=2, shuffle=False, verbose=0)
    host_calls.flush()
    assert [line for line in out.getvalue().splitlines() if line != "rows []"] == [
        "rows [0 1]",
        "rows [2 3]",
    ]


def test_long_arrays_keep_their_order_and_do_not_stand_still(mirrored):
    # XLA:CPU copies them on the threads that the other replica's all-reduce waits on.
    out = io.StringIO()

    def step(x):
        rx.print("long", x[:30000], output_stream=out, summarize=-1)
        rx.print("then", x[:2], output_stream=out)
        return rx.get_replica_context().all_reduce("sum", x.sum())

    for batch in mirrored.experimental_distribute_dataset([np.zeros(60000, "float32")] * 5):
        mirrored.run(step, args=(batch,))
    host_calls.flush()
    lines = [line[:16] for line in out.getvalue().splitlines()]
    assert lines.count("[replica 0] long") == lines.count("[replica 1] long") == 5


def test_files_and_functions_take_lines(tmp_path):
    path, lines = tmp_path / "log", []
    rx.print("a", output_stream=f"file://{path}")
    rx.print("b", output_stream=f"file://{path}")
    rx.print("c", output_stream=lines.append)
    assert (path.read_text(), lines) == ("a\nb\n", ["c"])


def test_the_stream_is_that_of_errors_by_default(capsys):
    rx.print("here")
    assert capsys.readouterr().err == "here\n"
    assert tf_print is rx.print


def test_a_stream_takes_text():
    with pytest.raises(rx.errors.UsageError, match="`output_stream` must be"):
        rx.print("a", output_stream="stderr")


def test_text_needs_no_backend_and_the_end_of_a_program_loses_nothing():
    program = """
        import sys
        import jax
        import replicax as rx

        rx.print("before", output_stream=sys.stdout)
        jax.config.update("jax_num_cpu_devices", 2)
        strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        strategy.run(lambda: rx.print("last", output_stream=sys.stdout))
    """
    lines = run_python(program, JAX_NUM_CPU_DEVICES="1").splitlines()
    assert sorted(lines) == ["[replica 0] last", "[replica 1] last", "before"]
