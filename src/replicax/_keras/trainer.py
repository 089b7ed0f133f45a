"""`fit`, `evaluate` and `predict` of models made in a scope: the global view.

Keras' own loops stay. What changes: while a method of an owned model runs, its strategy's
`StoreDistribution` is current; and the model's train, test and predict functions are made here,
so that one program serves every store, batches of any size are split, steps on virtual CPU
devices cannot dead-lock, and a failed call leaves the model as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

import jax

from replicax._control.agreement import agree
from replicax._core.context import current_frame
from replicax._core.device_errors import blame
from replicax._core.errors import MixedStrategies
from replicax._core.placement import place_all
from replicax._core.program import agree_on_program, variable_facts
from replicax._core.progress import begin_step, dispatched, settled
from replicax._keras import _compat
from replicax._keras.data import adapted, unannounced_end
from replicax._keras.distribution import StoreDistribution, installed
from replicax._keras.epochs import heard_of_at_its_end
from replicax._keras.placing import placed_batch, placed_batches, state_elsewhere
from replicax._keras.step import model_step, program_of_step, step_variables
from replicax._keras.worker_batches import refuse_endless_validation

METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def install() -> None:
    """Put the seams into Keras' JAX trainer; a second call changes nothing."""
    trainer = _compat.JAXTrainer
    _compat.wrap(trainer, "__init__", _bound_to_scope)
    # On the base class: Keras takes a `compile` of any subclass for the user's own.
    _compat.wrap(_compat.Trainer, "compile", _checked_compile)
    _compat.wrap(trainer, "fit", lambda fit: heard_of_at_its_end(_in_own_distribution(fit)))
    for method in METHODS[1:]:
        _compat.wrap(trainer, method, _in_own_distribution)
    for kind in ("train", "test", "predict"):
        _compat.wrap(trainer, f"make_{kind}_function", functools.partial(_own_function, kind=kind))
    _compat.wrap(_compat.JAXEpochIterator, _compat.BATCH_ITERATOR, placed_batches)
    _compat.wrap(_compat.jax_trainer, _compat.BATCH_PLACER, placed_batch)
    _compat.wrap(trainer, _compat.LOOP_STATE, state_elsewhere)
    # Not on `fit`: in `model.fit(Dataset(…))` Python looks `fit` up before there is a data set.
    _compat.wrap(_compat.data_adapters, "get_data_adapter", adapted)
    _compat.wrap(_compat.EpochIterator, "catch_stop_iteration", unannounced_end)


def _bound_to_scope(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        frame = current_frame()
        if frame is not None and isinstance(_compat.distribution(), StoreDistribution):
            _compat.bind_strategy(self, frame.strategy)

    return init


def _checked_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame, owner = current_frame(), _compat.strategy_of(self)
        in_scope = isinstance(_compat.distribution(), StoreDistribution)
        if frame is not None and in_scope and frame.strategy is not owner:
            whose = "no strategy" if owner is None else repr(owner)
            raise MixedStrategies(
                "A model is compiled in the scope it was made in, or outside every scope. "
                f"Received: a model of {whose}, compiled in the scope of {frame.strategy!r}. Its "
                "variables live on other devices. Create the model inside the same "
                "`with strategy.scope():` block."
            )
        if owner is None or owner.extended.distribution is _compat.distribution():
            return original(self, *args, **kwargs)
        with installed(owner.extended.distribution):
            return original(self, *args, **kwargs)

    return compile


def _in_own_distribution(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        owner, current = _compat.strategy_of(self), _compat.distribution()
        if owner is None and not isinstance(current, StoreDistribution):
            return original(self, *args, **kwargs)
        if owner is None:
            with installed(None):
                return original(self, *args, **kwargs)
        with owner.scope():
            if owner.extended.distribution.make_steps is not None:
                refuse_endless_validation(kwargs)
            try:
                return original(self, *args, **kwargs)
            except BaseException:
                for steps in _steps_of(self):
                    steps.restore()
                raise
            finally:
                for steps in _steps_of(self):
                    steps.forget()

    return method


def _own_function(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    attribute = f"{kind}_function"

    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        owner = _compat.strategy_of(self)
        if owner is None:
            return original(self, force)
        current = getattr(self, attribute)
        distribution = owner.extended.distribution
        # Each time: a layer may have got new variables since (`enable_lora`).
        distribution.adopt(_variables(self, of_optimizer=distribution.make_steps is None))
        if current is None or force:
            make_steps = distribution.make_steps
            current = make_steps(self, kind) if make_steps else Steps(self, kind, distribution)
            setattr(self, attribute, current)
        return current

    return make


def _variables(model: Any, *, of_optimizer: bool) -> list[Any]:
    """What a store takes over; on servers, what an optimizer keeps moves beside its variable."""
    optimizer = getattr(model, "optimizer", None) if of_optimizer else None
    return [*model.variables, *model.metrics_variables, *(optimizer.variables if optimizer else ())]


def _steps_of(model: Any) -> list[Any]:
    functions = (getattr(model, f"{kind}_function", None) for kind in ("train", "test", "predict"))
    return [function for function in functions if hasattr(function, "restore")]


@final
class Steps:
    """A model's train, test or predict function: `(state, iterator) -> (logs, state)`.

    Args:
        model: The Keras model.
        kind: `train`, `test` or `predict`.
        distribution: Where the model's variables and batches live.
    """

    def __init__(self, model: Any, kind: str, distribution: StoreDistribution) -> None:
        self._model = model
        self._kind = kind
        self._distribution = distribution
        self._compiled: Any = None
        self._agreed: set[Any] = set()
        self._is_agreed = False
        self._is_common = distribution.topology.num_processes > 1
        self._in_flight: Any = None
        self._state: Any = None
        self._returned: Any = None
        self._keys: Any = None
        self._variables: Sequence[Sequence[Any]] = ()
        self._eager = model.run_eagerly or not model.jit_compile
        self._donates = distribution.store.is_resident and not self._eager
        self._loop = _compat.make_iterator_step(model, self._step, concatenate=kind == "predict")

    def __call__(self, state: Any, iterator: Any) -> tuple[Any, Any]:
        if state is not self._returned:
            state = self._taken_over(state)
        self._state = state
        try:
            logs, self._state = self._loop(state, iterator)
        except StopIteration:
            raise  # the end of the data, which Keras expects
        except BaseException as error:
            blame(error)
            # At once: Keras' own clean-up would write the state before this call, whose memory
            # may have been reused, or one of an earlier call.
            self.restore()
            raise
        self._returned = self._state
        return logs, self._state

    def _taken_over(self, state: Any) -> Any:
        """The state at the start of a loop, or after a callback has looked at it.

        A step reuses the memory of its state, which by now the user, or another variable, may
        hold as well: what it takes over is a copy. The variables may be other ones than last
        time, too, if a layer was frozen.
        """
        groups = step_variables(self._model, self._kind)
        if [list(map(id, group)) for group in groups] != self._keys:
            self._keys = [list(map(id, group)) for group in groups]
            self._compiled = None
        self._variables = groups
        if self._is_common and not self._is_agreed:
            self._is_agreed = True
            paths = [variable.path for group in groups for variable in group]
            agree("variables", variable_facts(list(zip(paths, sum(state, start=[]), strict=True))))
        if not self._donates:
            return state
        return tuple([value.copy() for value in group] for group in state)

    def _step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        store = self._distribution.store
        lent = store.lend(state)
        if not self._eager:
            self._compiled = self._compiled or self._compile(lent)
            if self._is_common:
                self._agree(lent, batch)
        begin_step(f"{self._kind} step", common=self._is_common)
        if self._eager:
            # Eager operations on split arrays would be hundreds of small collectives: every
            # device computes the whole batch, which gives the same numbers.
            whole = self._distribution.topology.replicated
            logs, new = model_step(self._model, self._kind, lent, place_all(batch, whole))
        else:
            if self._in_flight is not None:
                jax.block_until_ready(self._in_flight)
            logs, new = self._compiled(lent, batch)
            if self._is_common:
                dispatched(min(jax.tree.leaves(logs), key=lambda log: log.size).is_ready)
            # Logs, not state: the next step reuses the memory of the state.
            self._in_flight = logs if self._distribution.topology.may_deadlock else None
        kept = store.keep(new)
        self._state = kept
        return logs, kept

    def _compile(self, state: Any) -> Any:
        distribution = self._distribution
        self._agreed.clear()
        return program_of_step(
            self._model,
            self._kind,
            jax.tree.map(lambda value: value.sharding, state),
            spread=distribution.spread,
            # Of several processes each can read only what it holds the whole of.
            logs=distribution.topology.replicated if self._is_common else None,
            donates=self._donates,
        )

    def _agree(self, state: Any, batch: Any) -> None:
        """Compare the program with the other workers' before a batch of new shapes."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch))
        if shapes not in self._agreed:
            traced = self._compiled.trace(state, batch)
            agree_on_program(f"{self._kind} step", traced.jaxpr, batch)
            self._agreed.add(shapes)

    def restore(self) -> None:
        """Give variables that the loop had emptied the last values it knew, after a failure."""
        if self._state is None:
            return
        for variables, values in zip(self._variables, self._state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                if _compat.is_lost(variable) and not value.is_deleted():
                    _compat.store(variable, value)
        _compat.drop_loop_state(self._model)
        self._state = None

    def forget(self) -> None:
        """Let go of the state at the end of a call: the variables have it."""
        self._state = self._returned = None
        self._is_agreed = False
        if self._is_common:
            settled()
