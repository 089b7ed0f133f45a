"""Every use of a Keras internal, in one file: what moves when Keras moves.

Importing it checks that Keras runs on JAX and that its version is in the tested range.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import operator
import shutil
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import keras

from replicax._core.errors import UnsupportedVersion, WrongBackend
from replicax._core.tracing import around, with_around

LOWEST, BELOW = (3, 12), (3, 16)


def check_backend(backend: str) -> None:
    if backend != "jax":
        raise WrongBackend(
            f"Keras was imported with the {backend!r} backend; Replicax needs JAX. Put `import "
            "replicax` before `import keras`, or begin the program with `import os; "
            "os.environ['KERAS_BACKEND'] = 'jax'`."
        )


def check_version(version: str) -> None:
    found = tuple(int(part) for part in version.split(".")[:2])
    if not LOWEST <= found < BELOW:
        wanted = f">={LOWEST[0]}.{LOWEST[1]},<{BELOW[0]}.{BELOW[1]}"
        raise UnsupportedVersion(
            f"Replicax supports keras{wanted}, got keras {version}. Run `pip install "
            f"'keras{wanted}'`."
        )


check_backend(keras.config.backend())
check_version(keras.__version__)

from keras.src.backend.common import KerasVariable, global_state
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.jax import distribution_lib as jax_distribution
from keras.src.backend.jax import nn as jax_nn
from keras.src.backend.jax import random as jax_random
from keras.src.backend.jax import trainer as jax_trainer
from keras.src.backend.jax.core import JaxVariable
from keras.src.backend.jax.trainer import JAXEpochIterator, JAXTrainer
from keras.src.callbacks.callback_list import CallbackList
from keras.src.distribution.distribution_lib import Distribution, distribution, set_distribution
from keras.src.export.export_utils import get_input_signature
from keras.src.initializers.random_initializers import compute_fans
from keras.src.layers.merging.dot import batch_dot
from keras.src.legacy.saving import legacy_h5_format
from keras.src.losses import loss as losses
from keras.src.models.functional import Functional
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.random.seed_generator import SeedGenerator
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.trainers.trainer import Trainer
from keras.src.tree import register_tree_node_class
from keras.src.utils.file_utils import is_remote_path as is_remote
from keras.src.utils.python_utils import is_default
from keras.src.utils.python_utils import pythonify_logs as numbers_of
from keras.src.utils.tracking import DotNotTrackScope, TrackedList, Tracker

# `keras.src.backend.jax` has a function of that name, too.
jax_rnn = importlib.import_module("keras.src.backend.jax.rnn")

# Names that patches replace, by the class or module that has them.
# Of `BaseOptimizer`: make a variable (the first calls the second); get the gradients before
# clipping; update all variables after clipping and weight decay.
SLOT_OF, ANY_SLOT = "add_variable_from_reference", "add_variable"
APPLIES, UPDATES = "_backend_apply_gradients", "_backend_update_step"
LSTM_ON_GPU = "_is_gpu_available"  # of `jax_rnn`: whether an LSTM uses cuDNN
ATTENTION_BY_CUDNN = "_can_use_flash_attention"  # of `jax_nn`: whether attention does
BATCH_ITERATOR = "_get_distributed_iterator"  # of `JAXEpochIterator`: places an epoch's batches
BATCH_PLACER = "_distribute_data"  # of `jax_trainer`: places the batch of `train_on_batch`
# Of `JAXTrainer`: takes the values of all variables for a loop; its argument that empties these.
LOOP_STATE, PURGES = "_get_jax_state", "purge_model_variables"
ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")
EPOCH_LOGS = "_get_metrics_result_or_logs"  # of `Trainer`: the logs of an epoch
LAYER_LOSS = "_aggregate_additional_loss"  # of `Trainer`: the loss of layers and regularizers
DATA_LOOK = "_symbolic_build"  # of `Trainer`: gets the epoch iterator before a loop begins
SAVING, LOADING = "_save_model", "_load_model"  # of callbacks: write and read files
REBUILD = "_maybe_rebuild"  # of `Sequential`: makes its graph again
MOMENTS = "_moments"  # of `BatchNormalization`: the mean and variance of a batch
OWN_LOSSES = "_get_own_losses"  # of layers: the losses added to them
METRIC_FUNCTION = "_fn"  # of `MeanMetricWrapper`: an attribute, the function that it averages
VALUE = "_value"  # of variables: an attribute

#: The value that a variable itself holds, whatever scope is active; None if none yet.
stored: Callable[[Any], Any] = operator.attrgetter(VALUE)


def read(variable: KerasVariable) -> Any:
    """The stored value of a variable, through the active stateless scope, without autocast."""
    scope = get_stateless_scope()
    if scope is not None:
        value = scope.get_current_value(variable)
        if value is not None:
            return value
    own = variable._value  # once: a variable on a parameter server fetches it
    return observed(variable, own if own is not None else _plain_value.__get__(variable))


def read_all(variables: Iterable[KerasVariable]) -> list[Any]:
    return [read(variable) for variable in variables]


_plain_value = KerasVariable.value
_plain_scope = keras.StatelessScope.get_current_value


@contextlib.contextmanager
def observing_reads(observe: Callable[[KerasVariable, Any], Any]) -> Iterator[None]:
    """Call `observe(variable, value)` at each read in a `with` block; readers get the result."""
    _count_tapes(1)
    try:
        with with_around(read_observers=(*around().read_observers, observe)):
            yield
    finally:
        _count_tapes(-1)


_tapes = 0  # of all threads
_tapes_lock = threading.Lock()


def _count_tapes(change: int) -> None:
    """Report reads while there is a tape; after the last one, restore Keras' own reads."""
    global _tapes
    with _tapes_lock:
        were_observed, _tapes = bool(_tapes), _tapes + change
        if were_observed == bool(_tapes):
            return
        # Two ways to a value: a variable's own, and a scope's, where Keras' regularizers ask.
        value, current = (_plain_value, _plain_scope) if were_observed else (_value, _current_value)
        KerasVariable.value = value  # pyright: ignore[reportAttributeAccessIssue]
        keras.StatelessScope.get_current_value = current


def observed(variable: KerasVariable, value: Any) -> Any:
    """What the reader of a variable gets; None stays None."""
    for observe in around().read_observers if value is not None else ():
        value = observe(variable, value)
    return value


def unobserved(scope: Any, variable: KerasVariable) -> Any:
    """What a scope holds for a variable, without a read; None if it holds nothing."""
    with with_around(read_observers=()):
        return scope.get_current_value(variable)


@property
def _value(self: KerasVariable) -> Any:
    """`KerasVariable.value`, which reports reads."""
    if not around().read_observers:
        return _plain_value.__get__(self)
    return self._maybe_autocast(read(self))


def _current_value(self: Any, variable: KerasVariable) -> Any:
    """`StatelessScope.get_current_value`, which reports reads."""
    return observed(variable, _plain_scope(self, variable))


def write(variable: KerasVariable, value: Any) -> None:
    """Store a value of the right shape, type and layout: Keras' `assign` without its checks."""
    write_all([variable], [value])


def write_all(variables: Sequence[KerasVariable], values: Sequence[Any]) -> None:
    scope = get_stateless_scope()
    for variable, value in zip(variables, values, strict=True):
        if scope is None:
            variable._value = value
        else:
            scope.add_update((variable, value))


def set_path(variable: KerasVariable, path: str) -> None:
    variable._path = path


def learning_rate(optimizer: BaseOptimizer) -> Any:
    """The variable that holds the learning rate; a schedule, or None, if it is none."""
    return optimizer._learning_rate


def iterations(optimizer: BaseOptimizer) -> KerasVariable:
    """The variable that counts the optimizer's steps, also those that only add up gradients."""
    return optimizer._iterations


@contextlib.contextmanager
def adding_slot(optimizer: BaseOptimizer, parameter: Any) -> Iterator[None]:
    """Variables made in a `with` block are slots of `parameter`, `ANY_SLOT` for no parameter."""
    before = slot_parameter(optimizer)
    vars(optimizer)["_replicax_serves"] = parameter  # past the tracking of `__setattr__`
    try:
        yield
    finally:
        vars(optimizer)["_replicax_serves"] = before


def slot_parameter(optimizer: Any) -> Any:
    return getattr(optimizer, "_replicax_serves", None)


def mark_slot(variable: KerasVariable, parameter: Any) -> None:
    path = getattr(parameter, "path", "")
    variable._replicax_slot = path  # pyright: ignore[reportAttributeAccessIssue]


def slot(variable: KerasVariable) -> str | None:
    """The path of a slot variable's parameter; None if it is no slot."""
    served = slot_parameter(optimizer_in_scope())
    if served is not None:  # the one that is being made
        return getattr(served, "path", "")
    return getattr(variable, "_replicax_slot", None)


def build_optimizer(optimizer: BaseOptimizer, variables: Any) -> None:
    """Make the optimizer's variables; `optimizer_in_scope` finds the optimizer meanwhile."""
    with keras.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
        optimizer.built = True


def unbuild_optimizer(optimizer: Any, kept: Collection[int]) -> None:
    """Undo a build that failed halfway; keep the variables with these ids."""
    for owner in (optimizer, getattr(optimizer, "inner_optimizer", optimizer)):
        owner.built = False
        for variable in [one for one in owner._variables if id(one) not in kept]:
            owner._untrack_variable(variable)


def optimizer_in_scope() -> Any:
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    callers = (scope.caller for scope in reversed(scopes))
    return next((one for one in callers if isinstance(one, BaseOptimizer)), None)


def uses_weight_decay(optimizer: BaseOptimizer, variable: KerasVariable) -> bool:
    return bool(optimizer._use_weight_decay(variable))


def takes_gradient(variable: KerasVariable) -> bool:
    """Whether a variable's gradient is its next value."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def trainable_variables(optimizer: BaseOptimizer) -> list[Any]:
    """The variables that the optimizer was built for."""
    return list(optimizer._trainable_variables)


def clip(optimizer: BaseOptimizer, grads: Any) -> Any:
    return optimizer._clip_gradients(grads)


def outermost(scope: Any) -> Any:
    """The stateless scope around all others, or None."""
    while scope is not None and scope.original_scope is not None:
        scope = scope.original_scope
    return scope


def is_lost(variable: KerasVariable) -> bool:
    """Whether Keras' fit loop has taken the value away, or a step has reused its memory."""
    value = variable._value
    return value.is_deleted() if value is not None else variable._initializer is None


def owner(variable: KerasVariable) -> Any:
    """The store that placed the variable, or None."""
    return getattr(variable, "_replicax_store", None)


def adopt(variable: KerasVariable, store: Any, layout: Any) -> None:
    variable._replicax_store = store  # pyright: ignore[reportAttributeAccessIssue]
    variable._layout = layout


def layout(variable: KerasVariable) -> Any:
    """The layout that the variable was given already, or None."""
    return variable._layout


def mark_per_replica(variable: KerasVariable) -> None:
    """Note that the variable has a row for each replica, which sees and writes its own."""
    variable._replicax_rows = True  # pyright: ignore[reportAttributeAccessIssue]


def is_per_replica(variable: KerasVariable) -> bool:
    return getattr(variable, "_replicax_rows", False)


def set_aggregation(variable: KerasVariable, aggregation: str) -> None:
    variable._aggregation = aggregation


def slots_of_adam(optimizer: Any, variable: KerasVariable) -> tuple[Any, Any]:
    index = optimizer._get_variable_index(variable)
    return optimizer._momentums[index], optimizer._velocities[index]


def reads_arrays(adapter: Any) -> bool:
    """Whether a data adapter of Keras reads arrays; it draws their order when a pass begins."""
    return type(adapter) is ArrayDataAdapter


def end_epoch(epochs: Any) -> None:
    """End an epoch as the end of the data does."""
    epochs._current_iterator = None
    epochs.data_adapter.on_epoch_end()


def build_for(model: Any, batch: Any) -> None:
    """Build a model, its metrics, loss and optimizer from the shapes of a batch."""
    model._symbolic_build(data_batch=batch)


def note_epochs(model: Any, epochs: Any) -> None:
    object.__setattr__(model, "_replicax_epochs", weakref.ref(epochs))


def epochs_of(model: Any) -> Any:
    """The epoch iterator of the loop that began last, or None."""
    noted = getattr(model, "_replicax_epochs", None)
    return noted and noted()


def watch_epochs(epochs: Any, steps: Callable[..., Any], batches: Callable[..., Any]) -> None:
    """Put functions around what an epoch iterator makes for an epoch: its steps, its batches."""
    epochs._enumerate_iterator = functools.partial(steps, epochs._enumerate_iterator)
    epochs._get_iterator = functools.partial(batches, epochs._get_iterator)


def count_seen(epochs: Any, batches: int) -> None:
    epochs._steps_seen += batches


def begin_at(model: Any, epoch: int | None) -> None:
    """Let `fit` begin at an epoch; None for its argument."""
    model._initial_epoch = epoch


def at_end_of_fit(model: Any, call: Callable[[], None]) -> None:
    """Call a function when the model's `fit` ends, also by an error."""
    object.__setattr__(model, "_replicax_at_end", [*getattr(model, "_replicax_at_end", ()), call])


def end_of_fit(model: Any) -> None:
    calls = getattr(model, "_replicax_at_end", ())
    object.__setattr__(model, "_replicax_at_end", [])
    for call in calls:
        call()


def model_of(callback: Any) -> Any:
    """The model of a callback, or None; unlike `.model` it writes no state back."""
    return getattr(callback, "_model", None)  # a list that was made without one has none


def use_one_thread(callbacks: CallbackList) -> None:
    """Call asynchronous batch hooks from one thread: several may change their order."""
    callbacks._executor = callbacks._executor or ThreadPoolExecutor(1)


def add_to_bar(bar: Any, figures: Callable[[], str], unshown: Collection[str]) -> None:
    """Let a progress bar show more text after the time per step, and leave out `unshown` logs."""
    time, update, shown = bar._format_time, bar.update, ""

    def with_more(*args: Any) -> str:
        nonlocal shown
        rest, text = bar._prev_total_width - len(shown), figures()
        # A terminal cannot overwrite a line that has wrapped.
        columns = shutil.get_terminal_size((10_000, 24)).columns
        shown = text if not bar._dynamic_display or rest + len(text) < columns else ""
        return time(*args) + shown

    bar._format_time = with_more

    @functools.wraps(update)
    def updated(current: int, values: Any = None, finalize: bool | None = None) -> None:
        update(current, [v for v in values or () if v[0] not in unshown], finalize)

    bar.update = updated


def has_defaults(callback: Any, methods: Sequence[str]) -> bool:
    return all(is_default(getattr(callback, name)) for name in methods)


def save_weights_by_layers(model: Any, path: str, *, overwrite: bool) -> None:
    """Write weights as Keras 2 did; `load_weights` of both reads that."""
    with legacy_h5_format.h5py.File(path, "w" if overwrite else "x") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, model)


def saves_as_keras(callback: Any, kind: type) -> bool:
    """Whether a callback is of a class of Keras, and writes its files as Keras does."""
    if not isinstance(callback, kind):
        return False
    saves = inspect.unwrap(getattr(type(callback), SAVING))  # ours wraps Keras' own
    return saves is getattr(kind, SAVING)


def backup_paths(callback: Any) -> list[str]:
    """The files of Keras' BackupAndRestore: the weights, and the epoch and step."""
    return [callback._weights_path, callback._training_metadata_path]


def set_backup_paths(callback: Any, paths: list[str]) -> None:
    callback._weights_path, callback._training_metadata_path = paths


def is_seed_state(variable: KerasVariable) -> bool:
    """Whether a variable is a `SeedGenerator`'s state: a seed and a count of draws."""
    return variable.name == "seed_generator_state"


def weights_of_classes(targets: Any, class_weight: Any) -> Any:
    return data_adapter_utils.class_weight_to_sample_weights(targets, class_weight)


def pending_variables() -> int:
    """The number of variables that are initialized at the end of the stateless scope."""
    return len(global_state.get_global_attribute("uninitialized_variables") or [])


def set_value(variable: KerasVariable, value: Any) -> None:
    """Assign a value; a variable without a value yet will be initialized with it."""
    if awaits_value(variable):
        set_initializer(variable, value)
    else:
        variable.assign(value)


def forget_pending(forgets: Callable[[KerasVariable], bool]) -> None:
    """Leave some of the pending variables uninitialized."""
    pending: list[Any] = global_state.get_global_attribute("uninitialized_variables") or []
    pending[:] = [variable for variable in pending if not forgets(variable)]


def strategy_of(model: Any) -> Any:
    """The strategy in whose scope the model was made, or None."""
    return getattr(model, "_replicax_strategy", None)


def bind_strategy(model: Any, strategy: Any) -> None:
    # `Layer.__setattr__` would track the strategy, which is no part of the model's state.
    object.__setattr__(model, "_replicax_strategy", strategy)


def session() -> object:
    """An object that `clear_session` replaces."""
    return global_state.GLOBAL_STATE_TRACKER


def is_session_cleared(since: object) -> bool:
    """Whether `clear_session` has dropped the distribution that was set in this session."""
    tracker = global_state.GLOBAL_STATE_TRACKER
    return since not in (None, tracker) and not hasattr(tracker, "distribution")


def global_random_seed() -> int | None:
    return global_state.get_global_attribute("global_random_seed")


def wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Replace `owner.name` by `wrapper(original)`, once."""
    original = getattr(owner, name)
    if not hasattr(original, "_replicax_original"):
        wrapped = wrapper(original)
        wrapped._replicax_original = original
        setattr(owner, name, wrapped)


def patch(owner: Any, name: str, method: Callable[..., Any]) -> None:
    """Replace `owner.name` by calls of `method(original, …)`, once."""
    wrap(owner, name, functools.partial(calling, method))


def calling(method: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the name and signature of `original` that calls `method(original, …)`."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(original, *args, **kwargs)

    return call


def training_argument(model: Any, training: bool) -> dict[str, bool]:
    return {"training": training} if model._call_has_training_arg else {}


def positional_names(layer: Any) -> list[str]:
    parameters = layer._call_signature.parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in kinds]


def needs_training(layer: Any) -> bool:
    """Whether a layer's `call` has an argument `training` without a default."""
    parameter = layer._call_signature.parameters.get("training")
    return parameter is not None and parameter.default is parameter.empty


def keras_mask(tensor: Any) -> Any:
    return getattr(tensor, "_keras_mask", None)


def training_around() -> bool | None:
    """The `training` of the layer call that runs; None if it is not given, or none runs."""
    context = global_state.get_global_attribute("current_call_ctx")
    return None if context is None else context.get_value("training")


def set_training_around(training: Any) -> None:
    """Set the `training` of the layer call that runs, which a layer inside may have changed."""
    if (context := global_state.get_global_attribute("current_call_ctx")) is not None:
        context.set_value("training", training)


def compute_loss(
    model: Any, x: Any, y: Any, predicted: Any, weights: Any, *, training: bool
) -> Any:
    """The loss of a batch, with the losses of layers and regularizers."""
    return model._compute_loss(x, y, predicted, weights, training=training)


def update_metrics(model: Any, loss: Any, x: Any, y: Any, predicted: Any, weights: Any) -> Any:
    track_loss(model, loss, x)
    return model.compute_metrics(x, y, predicted, weights)


def track_loss(model: Any, loss: Any, batch: Any) -> None:
    rows = next(leaf for leaf in keras.tree.flatten(batch) if leaf is not None).shape[0]
    # In a replica the loss is divided by the number of replicas: the sum over replicas is the mean.
    loss = losses.unscale_loss_for_distribution(loss)
    model._loss_tracker.update_state(loss, sample_weight=rows)


def has_tracked_loss(model: Any) -> bool:
    """Whether a model's metric `loss` was updated since it was reset."""
    return bool(model._loss_tracker.count > 0)


def compiled_loss(model: Any, y: Any, predicted: Any, weights: Any) -> Any:
    """The loss of a batch by the arguments of `compile`, without the losses of layers."""
    return model._compile_loss(y, predicted, weights)


def compiled_metrics(model: Any) -> Any:
    """The metrics of the arguments of `compile`, as one metric; None if there are none."""
    return model._compile_metrics


def set_loop_function(model: Any, kind: str, step: Callable[[Any, Any], Any]) -> None:
    """Make a model's train, test or predict function of `(state, batch) -> (logs, state)`."""
    joins = kind == "predict"
    setattr(model, f"{kind}_function", model._make_function(step, concatenate_outputs=joins))


@contextlib.contextmanager
def _unlocked(layer: Any) -> Iterator[Any]:
    """Let a built layer track other variables."""
    tracker = layer._tracker
    was_locked = tracker.locked
    tracker.unlock()
    try:
        yield tracker
    finally:
        if was_locked:
            tracker.lock()


@contextlib.contextmanager
def replacing(layer: Any, variable: KerasVariable) -> Iterator[None]:
    """Replace a variable of a layer in a `with` block, also if the layer is built.

    The variable stays a weight if another attribute still holds it.
    """
    with _unlocked(layer) as tracker:
        yield
        lists = {id(store) for _, store in tracker.config.values()}  # the tracker's own
        if not _holds(vars(layer), variable, lists):
            tracker.untrack(variable)


def _holds(value: Any, variable: KerasVariable, seen: set[int]) -> bool:
    if id(value) in seen or not isinstance(value, dict | list | tuple):
        return value is variable
    seen.add(id(value))
    parts = value.values() if isinstance(value, dict) else value
    return any(_holds(part, variable, seen) for part in parts)


def is_tracking(layer: Any) -> bool:
    """Whether a layer tracks its weights, which begins with Keras' `__init__`."""
    return "_tracker" in vars(layer)


def drop_loop_state(model: Any) -> None:
    """Drop the state that Keras' loop holds beside the variables."""
    model._jax_state = None
    object.__setattr__(model, "_jax_state_synced", True)


def stored_dtype(variable: KerasVariable) -> str:
    """The dtype in which a variable is stored; layers may read it in another one."""
    return str(jax.dtypes.canonicalize_dtype(variable._dtype))


def commit(variables: Iterable[KerasVariable]) -> None:
    """Commit the values of variables to their devices.

    The results of a step are committed, and a program is compiled once more for values that are
    not.
    """
    for variable in variables:
        value: Any = variable._value
        if value is not None and not value.committed:
            variable._value = jax.device_put(value, value.sharding)


def named_values(variables: Iterable[KerasVariable]) -> list[tuple[str, Any]]:
    return [(variable.path, stored(variable)) for variable in variables]


def store(variable: KerasVariable, value: Any) -> None:
    variable._value = value


def older_preprocessing(kind: str) -> Any:
    return importlib.import_module(f"keras.src.legacy.preprocessing.{kind}")


def holds_learning_rate(optimizer: BaseOptimizer) -> bool:
    """Whether the `__init__` of an optimizer has set its learning rate."""
    return "_learning_rate" in vars(optimizer)


def functional_of(model: Any) -> Any:
    """The functional model inside a `Sequential`; None if it is not built."""
    return model._functional


def nodes_of(functional: Any) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """The calls of a functional model in order: layer, inputs, outputs."""
    for depth in sorted(functional._nodes_by_depth, reverse=True):
        for node in functional._nodes_by_depth[depth]:
            if not node.is_input:
                yield node.operation, list(node.input_tensors), list(node.outputs)


def run_graph(function: Any, inputs: list[Any], training: bool | None) -> Any:
    """Call the layers of a `keras.Function`, as a functional model calls its own."""

    def with_training(operation: Any) -> Any:
        wants = training is not None and getattr(operation, "_call_has_training_arg", False)
        return functools.partial(operation, training=training) if wants else operation

    outputs = function._run_through_graph(inputs, operation_fn=with_training)
    return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs


def set_outputs(model: Any, outputs: list[Any]) -> None:
    """Replace the outputs of a functional model, in the same nest.

    `ValueError` if they are not computed from its inputs.
    """
    struct = keras.tree.pack_sequence_as(model._outputs_struct, outputs)
    graph = keras.Function(model._inputs_struct, struct)
    with DotNotTrackScope():
        for name in ("outputs_struct", "outputs", "nodes", "operations"):
            setattr(model, f"_{name}", getattr(graph, f"_{name}"))
        model._nodes_by_depth = graph._nodes_by_depth
        model._operations_by_depth = graph._operations_by_depth
    for layer in model.layers:
        model._tracker.track(layer)


def add_loss(layer: Any, loss: Any) -> None:
    """Add a loss to a layer until its next call."""
    layer._losses.append(loss)


def own_metrics(layer: Any) -> list[Any]:
    return list(layer._metrics)


def track_metric(layer: Any, metric: Any) -> None:
    """Add a metric to a layer, also if it is built."""
    if not any(metric is one for one in layer._metrics):
        with _unlocked(layer) as tracker:
            tracker.add_to_store("metrics", metric)


def unbuilt(owner: Any) -> list[Any]:
    """The unbuilt parts of a model, layer or optimizer, which make variables when built."""
    if isinstance(owner, BaseOptimizer):
        return [] if owner.built else [owner]
    if isinstance(owner, keras.Layer):
        return [layer for layer in owner._flatten_layers() if not layer.built]
    return []


def after_build(owner: Any, call: Callable[[], None]) -> None:
    """Call a function after a layer or an optimizer is built, perhaps in a trace."""
    original = owner.build

    @functools.wraps(original)
    def build(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        call()
        return result

    object.__setattr__(owner, "build", build)


def awaits_value(variable: KerasVariable) -> bool:
    """Whether a variable is initialized at the end of the stateless scope."""
    return variable._value is None and variable._initializer is not None


def set_initializer(variable: KerasVariable, value: Any) -> None:
    """Set the value, or the initializer, of a variable that `awaits_value`."""
    made = lambda shape, dtype=None: jax.numpy.asarray(value, dtype)  # noqa: E731
    variable._initializer = value if callable(value) else made


def fans(initializer: Any, shape: Sequence[int]) -> tuple[float, float]:
    """The numbers of input and output units by which VarianceScaling scales."""
    axes = [getattr(initializer, name, None) for name in ("input_axes", "output_axes")]
    return compute_fans(shape, *axes) if any(axes) else compute_fans(shape)


def starts_from(variable: KerasVariable, initializer: Any) -> bool:
    return variable._initializer is initializer


@contextlib.contextmanager
def outside_scopes() -> Iterator[None]:
    """Read and write variables themselves in a `with` block, also inside a trace."""
    scope = get_stateless_scope()
    global_state.set_global_attribute("stateless_scope", None)
    try:
        with jax.ensure_compile_time_eval():
            yield
    finally:
        global_state.set_global_attribute("stateless_scope", scope)


def layers_in(layer: Any) -> list[Any]:
    """The layers in a layer or model, at any depth."""
    return list(layer._flatten_layers(include_self=False))


def set_trainable(layer: Any, trainable: bool) -> None:
    """Freeze a layer or let it train, without the layers in it."""
    layer._trainable = trainable
    for variable in layer._trainable_variables:
        variable.trainable = trainable


def share_counts(optimizer: Any, other: Any) -> None:
    """Share the iterations and the learning rate of another optimizer; `optimizer` is not built."""
    for name in ("_iterations", "_learning_rate"):
        old, new = getattr(optimizer, name), getattr(other, name)
        places = [i for i, one in enumerate(optimizer._variables) if one is old]
        for place in places:
            optimizer._variables[place] = new
        vars(optimizer)[name] = new  # `setattr` would track it once more


def call_specs(model: Any) -> list[Any]:
    """The specs of a model's call, a nest for each argument.

    `ValueError` if it was not built or called.
    """
    specs: Any = get_input_signature(model)
    # Keras leaves the batch size open, also where an `Input` has one.
    has_inputs = isinstance(model, keras.Sequential | Functional)
    inputs = model.inputs if has_inputs else ()  # a user's class may have its own `inputs`
    for spec, tensor in zip(keras.tree.flatten(specs), inputs, strict=False):
        spec.shape = tuple(tensor.shape)
    return list(specs)


def copy_of_lambda(layer: Any) -> Any:
    """A copy of a `Lambda` layer with its Python function, which Keras refuses to read again."""
    config = layer.get_config()
    read = {name: config[name] for name in ("name", "trainable", "dtype", "arguments")}
    return type(layer)(layer.function, layer._output_shape, layer.__dict__.get("mask"), **read)
