"""A model's train, test and predict functions, as Keras' loops call them.

One program serves every store; batches of any size are split; steps on virtual CPU devices
cannot dead-lock; and a failed call leaves the model as it was. What is inside a program of
several steps is in repeated.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp

from replicax._core.device_errors import blame
from replicax._core.events import COMPUTE, Step, begin_step, dispatched, settled, tell, timed
from replicax._core.host_calls import carried_out
from replicax._core.in_flight import queue_of
from replicax._core.interrupts import uninterrupted
from replicax._core.placement import copied, place, place_all
from replicax._core.program import agree_on_program
from replicax._core.state_watch import StateWatch
from replicax._fit.pace_shown import paced
from replicax._fit.step_program import (
    central_program,
    model_step,
    program_of_steps,
    step_variables,
)
from replicax._keras import _compat
from replicax._keras.pace import rows_of
from replicax._keras.repeated import are_alike, joined
from replicax._program.central import may_fail
from replicax._program.compiling import compile_for

if TYPE_CHECKING:
    from replicax._keras.distribution import StoreDistribution


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
        self._kind, self._groups = kind, _compat.LOOP_GROUPS[kind]
        self._pace = paced(model, kind, distribution)
        self._distribution = distribution
        self._compiled: Any = None
        self._programs: dict[Any, Any] = {}
        self._is_agreed = False
        self._has_begun = self._may_fail = False
        self._is_common = distribution.topology.num_processes > 1
        self._watch = StateWatch()
        self._queue = queue_of(distribution.topology.devices)
        self._returned: Any = None
        self._keys: Any = None
        self._variables: Sequence[Sequence[Any]] = ()
        self._eager = model.run_eagerly or not model.jit_compile
        is_central = distribution.store.home is not None
        self._donates = (distribution.store.is_resident or is_central) and not self._eager

    def __call__(self, state: Any, iterator: Any) -> tuple[Any, Any]:
        if state is not self._returned:
            state = self._taken_over(state)
        try:
            logs, self._returned = self._execute(state, iterator)
        except StopIteration:
            raise  # the end of the data, which Keras expects
        except BaseException as error:
            blame(error)
            # At once: Keras' own clean-up would write values whose memory a step has reused.
            self.restore()
            raise
        return logs, self._returned

    def _taken_over(self, state: Any) -> Any:
        """The state at the start of a loop, or after a callback has looked at it.

        A step reuses the memory of its state, which by now the user, or another variable, may
        hold as well: what it takes over is a copy. The variables may be other ones than last
        time, too, if a layer was frozen.
        """
        self._variables = step_variables(self._model, self._kind)
        keys = [list(map(id, group)) for group in self._variables]
        if keys != self._keys:
            self._keys, self._compiled = keys, None
        if self._is_common and not self._is_agreed:
            self._is_agreed = True
            self._watch.compare(self._named(state))
        if not self._donates:
            return state
        if not self._has_begun:  # nothing is compiled for the first one
            self._has_begun = True
            return jax.tree.map(copied, state)
        return _copied_together(state)

    def _execute(self, state: Any, iterator: Any) -> tuple[Any, Any]:
        """As many steps as `compile(steps_per_execution=…)` says, or as there are batches left.

        A full number of batches of one shape is one program, a loop on the devices.
        """
        wanted = self._model.steps_per_execution
        batches = self._pace.take(iterator, wanted)
        if len(batches) == wanted and not self._eager and (wanted == 1 or are_alike(batches)):
            return self._step(state, batches)
        outputs = []
        for batch in batches:
            logs, state = self._step(state, [batch])
            outputs.append(logs)
        if self._kind != "predict" or len(outputs) == 1:
            return outputs[-1], state
        # To join what is divided communicates, too: nothing else may run meanwhile.
        self._queue.wait()
        whole = joined(outputs)
        self._queue.put(_smallest(whole))
        return whole, state

    def _step(self, state: Any, batches: list[Any]) -> tuple[Any, Any]:
        topology = self._distribution.topology
        if not self._eager:
            program = self._program(state, batches)
        tell(lambda: Step(f"before {self._kind} step", batches, None, self._pairs(state)))
        begin_step(f"{self._kind} step", common=self._is_common)
        if self._is_common:
            self._watch.step(lambda: self._named(state))
        if self._eager:
            # Eager operations on split arrays would be hundreds of small collectives: every
            # device computes the whole batch, which gives the same numbers.
            whole = place_all((state, batches[0]), topology.replicated)
            logs, new = model_step(self._model, self._kind, *whole)
            new = jax.tree.map(lambda now, then: place(now, then.sharding), new, state)
            _compat.hold_loop_state(self._model, self._groups, new)
        else:
            self._queue.wait()
            with uninterrupted:  # from here on the old values are gone
                # If it may fail, the values before are still there.
                call = [carried_out, program] if self._may_fail else [program]
                logs, new = timed(COMPUTE, *call, state, batches)
                _compat.hold_loop_state(self._model, self._groups, new)
            # Of the logs, not of the state: the next step reuses the memory of the state.
            token = _smallest(logs)
            if self._is_common:
                dispatched(token.is_ready)
            self._queue.put(token)
        if self._kind == "train":
            self._pace.did(len(batches), sum(map(rows_of, batches)), logs)
        tell(lambda: Step(f"{self._kind} step", batches, logs, self._pairs(new)))
        return logs, new

    def _pairs(self, state: Any) -> list[tuple[Any, Any]]:
        """The variables with their values, which a loop hands over at its end."""
        groups = zip(self._variables, state, strict=True)
        return [
            pair for variables, values in groups for pair in zip(variables, values, strict=True)
        ]

    def _program(self, state: Any, batches: list[Any]) -> Any:
        """The program for such batches, compiled: its call is not to be interrupted."""
        leaves, tree = jax.tree.flatten(batches)
        key = tree, *((leaf.shape, leaf.dtype) for leaf in leaves)
        if self._compiled is None:
            self._programs.clear()
            self._compiled = self._compile(state)
        if key not in self._programs:
            self._programs[key] = self._made(state, batches)
        return self._programs[key]

    def _named(self, state: Any) -> list[tuple[str, Any]]:
        return [(variable.path, value) for variable, value in self._pairs(state)]

    def _compile(self, state: Any) -> Any:
        distribution = self._distribution
        return program_of_steps(
            self._model,
            self._kind,
            jax.tree.map(lambda value: value.sharding, state),
            spread=distribution.spread,
            together=distribution.together,
            # Of several processes each can read only what it holds the whole of.
            logs=distribution.topology.replicated if self._is_common else None,
            donates=self._donates,
        )

    def _made(self, state: Any, batches: Any) -> Any:
        """The program for such batches, compiled; all workers compare theirs before."""
        distribution = self._distribution
        if distribution.store.home is not None:
            how = {"donates": self._donates}
            made = central_program(self._model, self._kind, distribution, state, batches, **how)
            self._may_fail = made.may_fail
            return made
        traced = self._compiled.trace(state, batches)
        if may_fail(traced.jaxpr) and self._donates:
            # Of several workers the others would not know that one of them has failed.
            self._donates, self._may_fail = False, not self._is_common
            self._compiled = self._compile(state)
        if self._is_common:
            agree_on_program(f"{self._kind} step", traced.jaxpr, batches)
        compile_for(self._compiled, state, batches)
        return self._compiled

    def restore(self) -> None:
        """Give variables that the loop had emptied the last values it knew, after a failure."""
        with uninterrupted:
            _compat.write_loop_state(self._model)

    def end_epoch(self) -> None:
        """Let the state be compared at the next step: callbacks may change it until then."""
        self._watch.restart()

    def end_fit(self) -> None:
        """Compare the values that the variables have at the end."""
        if self._is_common:
            self._watch.compare(_compat.named_values(sum(map(list, self._variables), start=[])))

    def forget(self) -> None:
        """Let go of the state at the end of a call: the variables have it."""
        self._returned = None
        self._is_agreed = False
        if self._is_common:
            settled()


def _smallest(logs: Any) -> Any:
    """The array of logs that takes the least memory to keep; None if there is none."""
    return min(jax.tree.leaves(logs), key=lambda log: log.size, default=None)


@jax.jit
def _copied_together(state: Any) -> Any:
    """Copies of all values: for hundreds of them a tenth of the time that each by itself takes."""
    return jax.tree.map(jnp.copy, state)
