"""`run`: what the replicas are given, and what comes back."""

from __future__ import annotations

import collections
import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

from helpers import (
    assert_trees_close,
    few_strategies,
    local,
    per_replica,
    several_replicas,
    two_strategies,
)


class Pair(NamedTuple):
    first: object
    second: object


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


@pytest.mark.parametrize("value", [3, 2.5, None, "text", True])
@two_strategies
def test_python_values_come_back_as_they_are(strategy, value):
    # Pair 79.
    assert strategy.run(lambda: value) is value


@two_strategies
def test_a_nest_comes_back_with_its_types(strategy):
    # Pairs 79 and 80.
    def replica_fn():
        leaf = 1.0 * replica_id()
        ordered = collections.OrderedDict(b=leaf, a="a1")
        return ("a", [leaf, {"c": leaf, "e": None}, "g"], Pair(leaf, ordered))

    result = strategy.run(replica_fn)
    assert isinstance(result, tuple)
    assert isinstance(result[1], list)
    assert isinstance(result[2], Pair)
    assert isinstance(result[2].second, collections.OrderedDict)
    assert result[0] == "a"
    assert result[1][1]["e"] is None
    expected = [float(r) for r in range(strategy.num_replicas_in_sync)]
    assert local(strategy, result[1][1]["c"]) == expected
    assert local(strategy, result[2].second["b"]) == expected


@two_strategies
def test_a_variable_comes_back_as_itself(strategy):
    with strategy.scope():
        variable = keras.Variable(1.0)
    assert strategy.run(lambda: variable) is variable


def test_a_single_replica_gives_plain_arrays(strategy):
    result = strategy.run(lambda: jnp.ones(2))
    assert isinstance(result, rx.DistributedValues) is (strategy.num_replicas_in_sync > 1)


def test_equal_results_act_as_one_number(strategy):
    # Where the replicas agree, no reduction is needed to print a loss.
    result = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", jnp.float32(1.0)))
    assert float(result) == strategy.num_replicas_in_sync
    assert np.asarray(result).shape == ()


@several_replicas
def test_different_results_do_not_act_as_one_number(strategy):
    result = strategy.run(replica_id)
    with pytest.raises(TypeError, match="`strategy.reduce`"):
        float(result)


@two_strategies
def test_components_of_several_devices_are_computed_with_together(strategy):
    def replica_fn():
        return jnp.full(2, 1.0 + rx.get_replica_context().replica_id_in_sync_group)

    result = strategy.run(replica_fn)
    components = getattr(result, "values", (result,))
    expected = [1.0 + replica for replica in range(strategy.num_replicas_in_sync)]
    assert jnp.stack([jnp.sum(one) / 2 for one in components]).tolist() == expected


@two_strategies
def test_local_results_of_a_nest_are_one_nest_per_replica(strategy):
    result = strategy.run(lambda: {"id": replica_id(), "name": "x"})
    nests = strategy.experimental_local_results(result)
    expected = [{"id": r, "name": "x"} for r in range(strategy.num_replicas_in_sync)]
    assert [{"id": int(nest["id"]), "name": nest["name"]} for nest in nests] == expected
    assert strategy.experimental_local_results(3) == (3,)


def test_each_replica_gets_its_own_component(strategy):
    replicas = strategy.num_replicas_in_sync
    value = per_replica(strategy, *np.arange(10.0, 10.0 + replicas, dtype="float32"))
    result = strategy.run(lambda x: x + replica_id(), args=(value,))
    assert local(strategy, result) == [10.0 + 2 * r for r in range(replicas)]


@two_strategies
def test_arguments_may_be_nests_and_keywords(strategy):
    replicas = strategy.num_replicas_in_sync
    value = per_replica(strategy, *np.arange(replicas, dtype="float32"))

    def replica_fn(pair, *, settings):
        return pair[0]["x"] * settings["scale"] + pair[1]

    result = strategy.run(
        replica_fn, args=(({"x": value}, np.float32(1.0)),), kwargs={"settings": {"scale": 3}}
    )
    assert local(strategy, result) == [3.0 * r + 1 for r in range(replicas)]


def test_results_of_one_run_are_arguments_of_the_next(strategy):
    first = strategy.run(lambda: (replica_id(), jnp.int32(5)))
    second = strategy.run(lambda a, b: a * 10 + b, args=first)
    replicas = strategy.num_replicas_in_sync
    assert local(strategy, second) == [10 * r + 5 for r in range(replicas)]


@two_strategies
def test_an_equal_signature_is_traced_once(strategy):
    traces = []

    def replica_fn(x, n):
        traces.append(n)
        return x * n

    strategy.run(replica_fn, args=(np.float32(1.0), 2))
    first = len(traces)
    strategy.run(replica_fn, args=(np.float32(7.0), 2))
    assert len(traces) == first
    strategy.run(replica_fn, args=(np.float32(7.0), 3))
    assert len(traces) > first


@two_strategies
def test_true_and_one_are_different_arguments(strategy):
    def kind(flag):
        return type(flag).__name__

    kinds = [strategy.run(kind, args=(flag,)) for flag in (1, True, 1.0)]
    assert kinds == ["int", "bool", "float"]


@two_strategies
def test_zero_and_minus_zero_are_different_arguments(strategy):
    def scaled(factor):
        return factor * jnp.float32(1.0)

    signs = [
        bool(np.signbit(local(strategy, strategy.run(scaled, args=(zero,)))[0]))
        for zero in (0.0, -0.0)
    ]
    assert signs == [False, True]


@two_strategies
def test_a_new_object_is_not_taken_for_an_old_one(strategy):
    class Box:
        def __init__(self, content):
            self.content = content

    def content(box):
        return box.content

    # Each box is gone before the next is made, which then has its address.
    assert [strategy.run(content, args=(Box(n),)) for n in range(5)] == [0, 1, 2, 3, 4]


@two_strategies
def test_an_object_that_cannot_be_hashed_may_be_called(strategy):
    @dataclasses.dataclass
    class Scale:
        factor: float

        def __call__(self, x):
            return x * self.factor

    result = strategy.run(Scale(3.0), args=(np.float32(2.0),))
    assert local(strategy, result) == [6.0] * strategy.num_replicas_in_sync


@two_strategies
def test_a_bound_method_may_be_run(strategy):
    class Step:
        calls = 0

        def __call__(self, x):
            self.calls += 1
            return x + 1

        def step(self, x):
            return self(x)

    step = Step()
    for _ in range(3):
        result = strategy.run(step.step, args=(np.float32(1.0),))
    assert float(local(strategy, result)[0]) == 2.0
    assert step.calls <= 2  # traced, not run: `step.step` is another object each time


def test_a_committed_array_of_another_device_may_be_used(strategy):
    elsewhere = jax.device_put(jnp.arange(3.0), jax.devices("cpu")[7])
    result = strategy.run(lambda x: x + elsewhere, args=(elsewhere,))
    assert_trees_close(local(strategy, result)[0], np.array([0.0, 2.0, 4.0]))


@two_strategies
def test_random_keys_may_be_arguments_and_results(strategy):
    def replica_fn(key):
        return jax.random.fold_in(key, replica_id())

    keys = strategy.experimental_local_results(strategy.run(replica_fn, args=(jax.random.key(0),)))
    expected = [
        jax.random.fold_in(jax.random.key(0), r) for r in range(strategy.num_replicas_in_sync)
    ]
    data = jax.random.key_data
    assert_trees_close([data(key) for key in keys], [data(key) for key in expected])


@two_strategies
def test_jax_transformations_work_inside(strategy):
    def replica_fn(x):
        gradient = jax.grad(lambda w: jnp.sum(jnp.sin(w) ** 2))(x)
        return jax.vmap(lambda row: row * 2)(gradient)

    x = np.linspace(0, 1, 4, dtype="float32")
    result = strategy.run(replica_fn, args=(x,))
    assert_trees_close(local(strategy, result)[-1], 4 * np.sin(x) * np.cos(x))


def test_conditions_on_the_replica_id_work(strategy):
    def replica_fn():
        first = replica_id() == 0
        return jax.lax.cond(first, lambda: 10.0, lambda: 20.0), jnp.where(first, 1, 2)

    chosen, also = strategy.run(replica_fn)
    others = strategy.num_replicas_in_sync - 1
    assert local(strategy, chosen) == [10.0] + [20.0] * others
    assert local(strategy, also) == [1] + [2] * others


@pytest.mark.parametrize("collective", ["psum_scatter", "all_to_all", "ppermute"])
@several_replicas
def test_a_jax_collective_that_deals_out_pieces_gives_different_results(strategy, collective):
    # The replicas start with one value, and each ends with its own.
    replicas = strategy.num_replicas_in_sync

    def replica_fn():
        value = jnp.arange(float(replicas))
        if collective == "psum_scatter":
            return jax.lax.psum_scatter(value, "replica") / replicas
        if collective == "all_to_all":
            return jax.lax.all_to_all(value, "replica", 0, 0, tiled=True)[0]
        # Replica 0's to replica 1; the others get zeros.
        return jax.lax.ppermute(jnp.float32(1.0), "replica", [(0, 1)])

    expected = {
        "psum_scatter": list(range(replicas)),
        "all_to_all": list(range(replicas)),
        "ppermute": [float(r == 1) for r in range(replicas)],
    }
    assert local(strategy, strategy.run(replica_fn)) == expected[collective]


@two_strategies
def test_after_an_exception_everything_works(strategy):
    with strategy.scope():
        variable = keras.Variable(1.0, aggregation="mean")

    def replica_fn(fail):
        variable.assign_add(1.0)
        if fail:
            raise ValueError("half-way")

    for _ in range(2):
        with pytest.raises(ValueError, match="half-way"):
            strategy.run(replica_fn, args=(True,))
        assert float(variable.value) == 1.0
        assert not rx.has_strategy()
    strategy.run(replica_fn, args=(False,))
    assert float(variable.value) == 2.0


def test_a_leaked_tracer_is_explained(mirrored):
    kept = []

    def leak(x):
        kept.append(x * 2)
        return x

    mirrored.run(leak, args=(np.float32(1.0),))
    with pytest.raises(rx.errors.LeakedTracer, match="earlier trace"):
        mirrored.run(lambda x: x + kept[0], args=(np.float32(1.0),))


def test_a_leaked_tracer_of_an_earlier_call_is_explained_on_retracing(mirrored):
    kept = []

    def leak(x, n):
        kept.append(x)
        return x + (kept[0] if n else 0)

    mirrored.run(leak, args=(np.float32(1.0), 0))
    with pytest.raises(rx.errors.LeakedTracer, match="return the value"):
        mirrored.run(leak, args=(np.float32(1.0), 1))


@two_strategies
def test_xla_options_work_inside_a_function(strategy):
    options = rx.RunOptions(experimental_xla_options={"xla_cpu_enable_fast_math": True})
    step = rx.function(lambda: strategy.run(lambda: jnp.ones(1), options=options))
    assert float(local(strategy, step())[0][0]) == 1.0


def test_merge_call_sees_all_replicas_at_once(strategy):
    # Pair 76: the sum of id + 1, which is 3 on 2 replicas.
    def merge(merged_strategy, value):
        assert rx.in_cross_replica_context()
        assert merged_strategy is strategy
        return merged_strategy.reduce("SUM", value, axis=None)

    def replica_fn():
        return rx.get_replica_context().merge_call(merge, args=(replica_id() + 1,))

    replicas = strategy.num_replicas_in_sync
    result = local(strategy, strategy.run(replica_fn))
    assert result == [replicas * (replicas + 1) // 2] * replicas


def test_merge_call_hands_back_each_replicas_component(strategy):
    def replica_fn():
        return rx.get_replica_context().merge_call(
            lambda _, value, unit: (value, unit), (replica_id(),), {"unit": 7}
        )

    own, unit = strategy.run(replica_fn)
    assert local(strategy, own) == list(range(strategy.num_replicas_in_sync))
    assert unit == 7


def test_merge_call_works_outside_every_scope():
    # Pair 76.
    context = rx.get_replica_context()
    assert context.merge_call(lambda _, text: "foo_" + text, args=("bar",)) == "foo_bar"


@several_replicas
def test_run_inside_merge_call_is_an_error(strategy):
    def replica_fn():
        context = rx.get_replica_context()
        return context.merge_call(lambda merged: merged.run(lambda: jnp.ones(1)))

    with pytest.raises(RuntimeError, match="`run` requires being in cross-replica context"):
        strategy.run(replica_fn)


def test_a_function_may_be_run(strategy):
    step = rx.function(lambda x: x * (1 + replica_id()))
    result = strategy.run(step, args=(np.float32(2.0),))
    replicas = strategy.num_replicas_in_sync
    assert local(strategy, result) == [2.0 * (r + 1) for r in range(replicas)]


@few_strategies
def test_two_strategies_take_turns_on_the_same_devices(strategy, mirrored):
    with strategy.scope():
        mine = keras.Variable(0.0)
    with mirrored.scope():
        other = keras.Variable(np.zeros(3, "float32"))
    sums = rx.get_replica_context  # looked up inside each run

    def step(variable):
        variable.assign_add(sums().all_reduce("SUM", jnp.ones(variable.shape)))

    for _ in range(5):
        strategy.run(step, args=(mine,))
        mirrored.run(step, args=(other,))
    assert float(mine.value) == 5.0 * strategy.num_replicas_in_sync
    assert_trees_close(other.value, np.full(3, 10.0))


@two_strategies
def test_arrays_of_text_are_refused(strategy):
    with pytest.raises(rx.errors.UsageError, match="Make ids of"):
        strategy.run(lambda x: x, args=(np.array(["a", "b"]),))


def test_values_from_function_count_the_replicas(strategy):
    contexts = []

    def value_fn(context):
        contexts.append((context.replica_id_in_sync_group, context.num_replicas_in_sync))
        return {"x": np.float32(context.replica_id_in_sync_group)}

    value = strategy.experimental_distribute_values_from_function(value_fn)
    replicas = strategy.num_replicas_in_sync
    assert contexts == [(r, replicas) for r in range(replicas)]
    assert local(strategy, value["x"]) == list(range(replicas))


@pytest.mark.filterwarnings("error:Explicitly requested dtype")
@two_strategies
def test_numbers_of_64_bits_become_32_without_a_warning(strategy):
    ids = np.arange(4).reshape(-1, 1)
    twice = rx.function(lambda args: strategy.run(lambda x, y: (2 * x, 2 * y), args=args))
    for call in (twice, twice.python_function):
        found = [local(strategy, one)[0] for one in call((ids, ids.astype("float64")))]
        assert [one.dtype for one in found] == ["int32", "float32"]
        np.testing.assert_array_equal(found[0], 2 * ids)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Embedding(4, 3), keras.layers.Flatten()])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(ids, ids[:, 0] % 3, batch_size=4, verbose=0)
