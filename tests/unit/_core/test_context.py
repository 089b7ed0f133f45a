"""The frame stack and what a replica context answers; `strategies` is not needed for it."""

import threading

import jax
import jax.numpy as jnp

from replicax._core.context import Frame, ReplicaContext, current_frame, entered, gradients_reduced
from replicax._core.reduce import SyncGroup, sum_leaves
from replicax._core.topology import AXIS

STRATEGY = object()


def context(replicas=1):
    return ReplicaContext(STRATEGY, SyncGroup(replicas, sum_leaves))


def on_replicas(fn, values):
    own = context(len(values))
    return jax.vmap(lambda value: fn(own, value), axis_name=AXIS)(values)


def test_a_frame_belongs_to_its_thread():
    seen = []
    with entered(Frame("mine")):
        thread = threading.Thread(target=lambda: seen.append(current_frame()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_reduced_gradients_are_noted_on_the_frame():
    own = context()
    with entered(Frame("s", own)):
        with gradients_reduced():
            assert current_frame() == Frame("s", own, gradients_reduced=True)
        assert not current_frame().gradients_reduced
    with gradients_reduced():
        assert current_frame() is None


def test_options_are_accepted():
    mean = on_replicas(lambda own, v: own.all_reduce("MEAN", v, options=None), jnp.ones(2))
    gathered = on_replicas(lambda own, v: own.all_gather(v[None], 0, options=None), jnp.ones(2))
    assert mean.tolist() == [1.0, 1.0]
    assert gathered.shape == (2, 2)
