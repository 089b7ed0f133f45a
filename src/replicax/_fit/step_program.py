"""The steps of a Keras model: as functions of a batch, and as one program for all replicas.

`fit` runs the program, `replicax plan` only compiles it. It shards each batch over the replicas,
and scans over several batches.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from replicax._core import seams
from replicax._core.errors import UsageError
from replicax._core.reduce import Combine, ReduceOp, SyncGroup
from replicax._core.topology import AXIS
from replicax._cpu.products import with_products_turned
from replicax._cpu.programs import rewritten
from replicax._keras import _compat
from replicax._keras.distribution import mark_slots
from replicax._keras.gradients import value_and_grad
from replicax._program.bucketing import bucket_all_reduces
from replicax._program.compiling import compiled
from replicax._program.jaxpr import indexed_by_int32
from replicax._program.program import ProgramState
from replicax._program.table_gradients import with_slices

if TYPE_CHECKING:
    from replicax._core.topology import Topology

Step = Callable[[Any, Any], tuple[Any, Any]]


def model_step(model: Any, kind: str, state: Any, batch: Any) -> tuple[Any, Any]:
    """The logs and the new state of one step of a model's loop, without side effects."""
    if shares_variables(model, kind):  # Keras' step would keep a value for each path to a variable
        groups = step_variables(model, kind)
        pairs = zip(itertools.chain(*groups), itertools.chain(*state), strict=True)
        with keras.StatelessScope(list(pairs), collect_losses=True) as scope:
            result = own_step(model, kind)(batch)
        return result, tuple(list(map(scope.get_current_value, group)) for group in groups)
    return _stateless(model, kind, state, batch)


def _stateless(model: Any, kind: str, state: Any, batch: Any) -> tuple[Any, Any]:
    result, new = seams.call_traced(getattr(model, f"{kind}_step"), (state, batch), {})
    return result, ((state[0], new) if kind == "predict" else new)


def step_variables(model: Any, kind: str) -> Sequence[Sequence[Any]]:
    """The variables whose values are the state of a step, in groups; each variable is there once.

    A model may hold its optimizer's rate, or a metric a variable of the model.
    """
    known: set[int] = set()
    groups = []
    for group in _held_variables(model, kind):
        groups.append([variable for variable in group if id(variable) not in known])
        known.update(map(id, group))
    return groups


def shares_variables(model: Any, kind: str) -> bool:
    """Whether a model, its optimizer and its metrics hold a variable in common."""
    held = [id(variable) for group in _held_variables(model, kind) for variable in group]
    return len(set(held)) < len(held)


def check_trained(model: Any) -> None:
    """Refuse Keras' own step if its optimizer was built for other variables.

    It pairs them with their values by their order alone.
    """
    is_own = type(model).train_step is not _compat.JAXTrainer.train_step
    if is_own or not model.optimizer.built:
        return
    built = {id(v): v for v in _compat.trainable_variables(model.optimizer)}
    now = {id(v): v for v in model.trainable_variables}
    if built.keys() != now.keys() and not shares_variables(model, "train"):
        paths = [v.path for key, v in (built | now).items() if (key in built) != (key in now)]
        raise UsageError(
            f"The optimizer was built for {len(built)} variables, and {len(now)} are trainable "
            f"now; {paths[0]!r} is one of {len(paths)} that differ. Call `model.compile` again, "
            "with a new optimizer, after `trainable` of a layer was changed. See docs/fit.md."
        )


def _held_variables(model: Any, kind: str) -> Sequence[Sequence[Any]]:
    """The groups of variables that Keras' own step takes."""
    groups = [model.trainable_variables, model.non_trainable_variables]
    if kind == "train":
        groups.append(mark_slots(model.optimizer.variables))
    return groups if kind == "predict" else [*groups, model.metrics_variables]


def step_state(
    groups: Sequence[Sequence[Any]],
    kind: str,
    *,
    host_callbacks: bool = False,
    store: Any = None,
) -> ProgramState:
    """The variables of a step; for `store` see `ProgramState`."""
    variables = [variable for group in groups for variable in group]
    written = range(len(groups[0]) if kind == "predict" else 0, len(variables))
    # Several threads may call `predict` at once.
    how = {"donates": kind != "predict", "host_callbacks": host_callbacks, "store": store}
    return ProgramState(variables, written, **how)


def own_step(model: Any, kind: str) -> Callable[[Any], Any]:
    """The model's own step, or the one that Keras has for it."""
    # `default_step` replaces these two methods.
    methods = (f"{kind}_step", "compute_loss_and_updates")
    if takes_batch(model, kind):
        own = getattr(model, f"{kind}_step")
        return lambda batch: seams.call_traced(own, (batch,), {})
    if any(getattr(type(model), m) is not getattr(_compat.JAXTrainer, m) for m in methods):
        return _stateless_step(model, kind)
    return default_step(model, kind)


def takes_batch(model: Any, kind: str) -> bool:
    """Whether a program for TensorFlow has a step that takes only a batch, not the state."""
    own = getattr(type(model), f"{kind}_step")
    if own is getattr(_compat.JAXTrainer, f"{kind}_step") or not seams.speaks_tensorflow:
        return False
    parameters = inspect.signature(own).parameters.values()
    needed = [
        one for one in parameters if one.default is one.empty and one.kind < one.VAR_POSITIONAL
    ]
    return len(needed) == 2 and all(one.kind != one.VAR_POSITIONAL for one in parameters)


def default_step(model: Any, kind: str) -> Callable[[Any], Any]:
    """The step that Keras has for a model."""
    trains = kind == "train"

    def step(batch: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)

        def predict() -> Any:
            return model(x, **_compat.training_argument(model, trains))

        def loss_of() -> Any:
            predicted = predict()
            loss = _compat.compute_loss(model, x, y, predicted, weights, training=trains)
            return model.optimizer.scale_loss(loss) if trains else loss, (loss, predicted)

        if kind == "predict":
            return predict()
        if trains:
            variables = model.trainable_variables
            (_, (loss, predicted)), grads = value_and_grad(loss_of, variables, has_aux=True)()
            model.optimizer.apply(grads, variables)
        else:
            _, (loss, predicted) = loss_of()
        return _compat.update_metrics(model, loss, x, y, predicted, weights)

    return step


def _stateless_step(model: Any, kind: str) -> Callable[[Any], Any]:
    """A step that the user has written: from a state and a batch to logs and a state."""

    def step(batch: Any) -> Any:
        groups = _held_variables(model, kind)
        state = tuple(map(_compat.read_all, groups))
        result, news = _stateless(model, kind, state, batch)
        for variables, before, after in zip(groups, state, news, strict=True):
            for variable, old, value in zip(variables, before, after, strict=True):
                if value is not old:
                    _compat.write(variable, keras.ops.cast(value, variable.dtype))
        return result

    return step


def program_of_steps(
    model: Any,
    kind: str,
    state: ProgramState,
    layouts: Sequence[Sequence[Any]],
    *,
    logs: Any,
    shard_batch: Callable[[Any], Any],
    apply_passes: Callable[[Step], Step] = lambda step: step,
) -> Any:
    """The compiled program of one or more steps; `logs` is the sharding of the logs.

    It maps `(written values, other values, batches)` to `(logs, new values, token)`.
    """
    one = apply_passes(lambda state, batch: model_step(model, kind, state, batch))
    layouts = tuple(layouts)
    flat = [layout for group in layouts for layout in group]

    def step(groups: Any, batch: Any) -> tuple[Any, Any]:
        return one(gather_variables(groups, layouts), shard_batch(batch))

    def program(written: Any, others: Any, batches: list[Any]) -> tuple[Any, Any, Any]:
        values = iter(state.in_order(written, others))
        groups = tuple([next(values) for _ in group] for group in layouts)
        if len(batches) == 1:
            logs, new = step(groups, batches[0])
        else:
            logs, new = scan_steps(step, groups, batches, layouts, join=kind == "predict")
        news = [value for group in new for value in group]
        return logs, news[len(news) - len(written) :], jnp.int32(0)

    return compiled(
        program,
        donate_argnums=(0,) if state.donates else (),
        out_shardings=(logs, flat[len(flat) - len(state.written) :], None),
        devices=next((layout.device_set for layout in flat), None),
        calls=state.calls,
    )


def are_equal_shapes(batches: Sequence[Any]) -> bool:
    """Whether batches have one structure, and equal shapes and dtypes."""
    kinds = {
        (tree, *((leaf.shape, leaf.dtype) for leaf in leaves))
        for leaves, tree in map(jax.tree.flatten, batches)
    }
    return len(kinds) == 1


def scan_steps(
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    batches: Sequence[Any],
    layouts: Any,
    *,
    join: bool,
) -> tuple[Any, Any]:
    """Inside a compiled program: scan a step over batches of equal shapes.

    `layouts` are the shardings of the state, also between steps. `join`: concatenate the logs of
    all steps along the batch axis; else return the logs of the last step.
    """

    def body(state: Any, batch: Any) -> tuple[Any, Any]:
        logs, new = step(state, batch)
        return jax.tree.map(_like, new, state, layouts), logs

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
    start = jax.tree.map(lambda value: lax.convert_element_type(value, value.dtype), state)
    end, logs = lax.scan(body, start, stacked)
    if join:
        return jax.tree.map(lambda rows: rows.reshape(-1, *rows.shape[2:]), logs), end
    return jax.tree.map(lambda rows: rows[-1], logs), end


def _like(new: Any, old: Any, layout: Any) -> Any:
    """Give a scan's carry the type and the sharding of the old value."""
    new = lax.convert_element_type(new, old.dtype)
    several = isinstance(layout, NamedSharding) and len(layout.device_set) > 1
    return lax.with_sharding_constraint(new, layout) if several else new


@jax.jit
def joined(outputs: Sequence[Any]) -> Any:
    """The outputs of several batches, concatenated along the batch axis."""
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)


def gather_variables(state: Any, layouts: Any) -> Any:
    """Inside a compiled program: all-gather the variables of a model (ZeRO-3).

    XLA might otherwise partition the layers instead of the batch. Slot variables stay sharded: the
    first two groups of the state are the model's trainable and other variables.
    """
    model = [jax.tree.map(_whole, state[i], layouts[i]) for i in (0, 1)]
    return (*model, *state[2:])


def _whole(value: Any, layout: Any) -> Any:
    if not isinstance(layout, NamedSharding) or AXIS not in layout.spec:
        return value
    spec = PartitionSpec(*(None if name == AXIS else name for name in layout.spec))
    return lax.with_sharding_constraint(value, NamedSharding(layout.mesh, spec))


def shard_batch(topology: Topology, batch: Any) -> Any:
    """Inside a compiled step: shard every leaf of a batch over the replicas.

    XLA pads and masks a batch that the replicas do not divide: results are those of one device,
    also of BatchNorm. With fewer rows than replicas every device computes all rows, which costs
    less.
    """
    replicas = topology.num_replicas

    def one(leaf: Any) -> Any:
        if leaf.ndim == 0 or leaf.shape[0] < replicas:
            return leaf
        return jax.lax.with_sharding_constraint(leaf, topology.split)

    return jax.tree.map(one, batch) if replicas > 1 else batch


def apply_passes(
    topology: Topology, combine: Combine, step: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    """Apply the passes that reduce communication to a step of the global view."""
    replicas, packs = topology.num_replicas, topology.packs_up_to
    alone = topology.model_parallel == 1 < replicas
    if topology.pays_per_operation or (alone and packs is not None):
        group = SyncGroup(replicas, combine, packs_up_to=packs)
        all_reduce = functools.partial(group.all_reduce, ReduceOp.SUM)
        step = bucket_all_reduces(step, topology.mesh, all_reduce)
    if topology.model_parallel > 1:
        return with_products_turned(rewritten(step, indexed_by_int32), topology.platform)
    return with_slices(step, topology.mesh if replicas > 1 else None, platform=topology.platform)
