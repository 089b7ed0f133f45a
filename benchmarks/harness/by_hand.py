"""JAX written by hand: `shard_map`, donated buffers, batches placed in one call, stock options."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .training import CENTRAL, FIT, WORKERS, Plan, Training, synchronous

if TYPE_CHECKING:
    from .workloads import Batches, Workload

AXIS = "replica"
IN_FLIGHT = {"cpu": 1, "gpu": 4}  # steps; a GPU computes while its next ones are sent


class ByHand:
    """A training step on one device, on two, or in two processes.

    Args:
        plan: What to train.
        workload: The same, made.
    """

    def __init__(self, plan: Plan, workload: Workload) -> None:
        import jax

        self._plan, self._workload, self._rank = plan, workload, None
        if plan.strategy == WORKERS:
            self._rank = int(os.environ["BENCHMARK_RANK"])
            address = os.environ["BENCHMARK_ADDRESS"]
            jax.distributed.initialize(address, plan.replicas, self._rank)
        elif plan.replicas > 1:
            jax.config.update("jax_num_cpu_devices", plan.replicas)
        types = (jax.sharding.AxisType.Auto,)
        mesh = jax.make_mesh((plan.replicas,), (AXIS,), axis_types=types)
        self._mesh, self._home = mesh, jax.devices()[0]
        self._split, self._whole = (
            jax.NamedSharding(mesh, jax.P(AXIS)),
            jax.NamedSharding(mesh, jax.P()),
        )

    def training(self, path: str) -> Training:
        import jax

        weights, statistics, self._forward = model_of(self._workload)
        start, update = OPTIMIZERS[self._workload.optimizer](self._workload.settings)
        state = (weights, start(weights), statistics)
        if self._plan.strategy == CENTRAL:
            state = jax.device_put(state, self._home)
            compiled = self._central(update, synchronized=path == FIT)
        else:
            state = jax.tree.map(self._everywhere, state)
            compiled = self._compiled(update, synchronized=path == FIT)

        in_flight = IN_FLIGHT[self._plan.device]

        def epoch(batches: Batches) -> float:
            nonlocal state
            losses: list[Any] = []
            for batch in batches:
                placed = self._placed(batch)  # one more than is in flight
                if len(losses) >= in_flight:
                    losses[-in_flight].block_until_ready()
                state, loss = compiled(state, *placed)
                losses.append(loss)
            return sum(map(float, jax.device_get(losses))) / len(losses)

        batches, some = self._workload.batches, self._workload.checked
        training = synchronous(
            lambda: epoch(batches[:1]), lambda: epoch(batches), lambda: epoch(batches[:some])
        )
        return replace(training, cost=lambda: cost_of(compiled, state, *self._placed(batches[0])))

    def _compiled(self, update: Callable[..., Any], *, synchronized: bool) -> Any:
        import jax

        gradients_of = self._gradients_of(synchronized=synchronized)

        def step(state: Any, inputs: Any, labels: Any) -> Any:
            weights, slots, statistics = state
            loss, statistics, gradients = gradients_of(weights, statistics, inputs, labels)
            return (*update(weights, slots, gradients), statistics), loss

        return jax.jit(self._on_each(step, 1), donate_argnums=0)

    def _central(self, update: Callable[..., Any], *, synchronized: bool) -> Any:
        """Weights go to the replicas, gradients go back, and one device updates what it keeps."""
        import jax

        gradients_of = jax.jit(self._on_each(self._gradients_of(synchronized=synchronized), 2))
        updated = jax.jit(update, donate_argnums=(0, 1))

        def step(state: Any, inputs: Any, labels: Any) -> Any:
            weights, slots, statistics = state
            lent = jax.device_put((weights, statistics), self._whole)
            loss, *found = gradients_of(*lent, inputs, labels)
            statistics, gradients = jax.device_put(found, self._home)
            return (*updated(weights, slots, gradients), statistics), loss

        return step

    def _gradients_of(self, *, synchronized: bool) -> Callable[..., Any]:
        """Of one replica: from weights, statistics and rows to loss, statistics and gradients."""
        import jax
        from jax import lax

        workload, forward, replicas = self._workload, self._forward, self._plan.replicas
        many = replicas > 1

        def gradients_of(weights: Any, statistics: Any, inputs: Any, labels: Any) -> Any:
            def loss_fn(weights: Any) -> Any:
                axis = AXIS if many and synchronized else None
                logits, news = forward(weights, statistics, inputs, axis)
                return loss_of(logits, labels, workload.binary) / replicas, news

            grad = jax.value_and_grad(loss_fn, has_aux=True)
            (loss, news), gradients = grad(weights)
            if many:
                loss, gradients = summed((loss, gradients), packed=self._rank is not None)
                if not synchronized:
                    news = lax.pmean(news, AXIS)
            return loss, news, gradients

        return gradients_of

    def _on_each(self, fn: Callable[..., Any], states: int) -> Callable[..., Any]:
        """A function of a number of states and two halves of a batch, on each replica."""
        import jax

        if self._plan.replicas == 1:
            return fn
        split, whole = jax.P(AXIS), jax.P()
        specs = (*[whole] * states, split, split)
        return jax.shard_map(fn, mesh=self._mesh, in_specs=specs, out_specs=whole, check_vma=False)

    def _everywhere(self, array: Any) -> Any:
        import jax

        if self._rank is None:
            return jax.device_put(array, self._whole)
        return jax.make_array_from_process_local_data(self._whole, array)

    def _placed(self, batch: Any) -> Any:
        import jax

        if self._rank is None:
            return jax.device_put(batch, self._split)

        def own(array: Any) -> Any:
            rows = len(array) // self._plan.replicas
            mine = array[self._rank * rows : (self._rank + 1) * rows]
            return jax.make_array_from_process_local_data(self._split, mine)

        return jax.tree.map(own, batch)


def model_of(workload: Workload) -> tuple[Any, Any, Callable[..., tuple[Any, Any]]]:
    """Trainable weights, statistics and the forward; if nobody wrote that, Keras' model is one."""
    if workload.weights and workload.forward and workload.precision == "float32":
        initial = workload.weights()
        return initial.trainable, initial.statistics, workload.forward
    import keras
    import numpy as np

    keras.config.set_dtype_policy(workload.precision)
    model: Any = workload.model(keras, keras.layers)
    workload.begin(model)

    def forward(weights: Any, statistics: Any, inputs: Any, _axis: str | None) -> tuple[Any, Any]:
        return model.stateless_call(weights, statistics, inputs, training=True)

    variables = model.trainable_variables, model.non_trainable_variables
    return *([np.asarray(one.value) for one in some] for some in variables), forward


def cost_of(compiled: Any, *arguments: Any) -> dict[str, float]:
    """Operations of a step as it is written, and bytes as it is compiled.

    What a GPU's libraries compute is not counted in a compiled program, so the operations are those
    of the same step for a CPU.
    """
    import jax

    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    found = {}
    if memory := compiled.lower(*arguments).compile().cost_analysis().get("bytes accessed"):
        found["bytes"] = memory
    step = compiled.__wrapped__
    # Keras chooses cuDNN's attention for bfloat16 while it traces, and a CPU has none.
    with contextlib.suppress(Exception), jax.default_device(jax.devices("cpu")[0]):
        found["flops"] = jax.jit(lambda *x: step(*x)).lower(*shapes).cost_analysis()["flops"]
    return found


def loss_of(logits: Any, labels: Any, binary: bool) -> Any:
    """The mean cross-entropy."""
    import jax
    import jax.numpy as jnp

    if binary:  # log(1 + exp(z)) - y z, without overflow
        return (jnp.maximum(logits, 0) - logits * labels + jnp.log1p(jnp.exp(-abs(logits)))).mean()
    rows = jax.nn.log_softmax(logits.astype("float32"))
    return -jnp.take_along_axis(rows, labels[..., None], axis=-1).mean()


def summed(tree: Any, *, packed: bool) -> Any:
    """All-reduced; in one buffer between processes, where each operation costs."""
    import jax.numpy as jnp
    from jax import lax, tree_util

    if not packed:
        return lax.psum(tree, AXIS)
    leaves, structure = tree_util.tree_flatten(tree)
    buffer = jnp.zeros(sum(leaf.size for leaf in leaves), jnp.float32)
    place = 0
    for leaf in leaves:
        buffer = lax.dynamic_update_slice(buffer, leaf.ravel(), (place,))
        place += leaf.size
    buffer, place, found = lax.psum(buffer, AXIS), 0, []
    for leaf in leaves:
        found.append(lax.dynamic_slice(buffer, (place,), (leaf.size,)).reshape(leaf.shape))
        place += leaf.size
    return tree_util.tree_unflatten(structure, found)


def sgd(settings: Mapping[str, float]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """v ← m v − r g; w ← w + v."""
    import jax

    rate, momentum = settings["learning_rate"], settings.get("momentum", 0)

    def start(weights: Any) -> Any:
        return jax.tree.map(lambda w: w * 0, weights) if momentum else ()

    def update(weights: Any, slots: Any, gradients: Any) -> tuple[Any, Any]:
        if not momentum:
            return jax.tree.map(lambda w, g: w - rate * g, weights, gradients), ()
        slots = jax.tree.map(lambda v, g: momentum * v - rate * g, slots, gradients)
        return jax.tree.map(lambda w, v: w + v, weights, slots), slots

    return start, update


def adam(settings: Mapping[str, float]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """As in Keras: the correction of both moments is part of the rate."""
    import jax
    import numpy as np

    rate, beta1, beta2, epsilon = settings["learning_rate"], 0.9, 0.999, 1e-7

    def start(weights: Any) -> Any:
        zeros = jax.tree.map(lambda w: w * 0, weights)
        return zeros, zeros, np.float32(0)

    def update(weights: Any, slots: Any, gradients: Any) -> tuple[Any, Any]:
        first, second, step = slots
        step = step + 1
        first = jax.tree.map(lambda m, g: m + (g - m) * (1 - beta1), first, gradients)
        second = jax.tree.map(lambda v, g: v + (g * g - v) * (1 - beta2), second, gradients)
        scale = rate * (1 - beta2**step) ** 0.5 / (1 - beta1**step)

        def moved(w: Any, m: Any, v: Any) -> Any:
            return w - scale * m / (v**0.5 + epsilon)

        return jax.tree.map(moved, weights, first, second), (first, second, step)

    return start, update


OPTIMIZERS = {"SGD": sgd, "Adam": adam}
