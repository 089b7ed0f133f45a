"""`GradientTape`: gradients of the computation in a `with` block, also by Keras variables."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import keras

from replicax._core.errors import TapeMisuse, checks_types
from replicax._keras import _compat
from replicax._tape.recording_trace import is_differentiable, recorded
from replicax._tape.tape_entries import (
    TapeEntries,
    UnconnectedGradients,
    basis_of_rows,
    checked,
    gradient_of,
    jacobian_of,
    leaves_of,
    seeds_for,
    stored_type,
    total,
)

if TYPE_CHECKING:
    from replicax._tape.recording_trace import RecordingTrace

logger = logging.getLogger("replicax")


@final
@checks_types
class GradientTape:
    """Record the computation in a `with` block, to differentiate it.

    In `rx.function` and in `strategy.run` it is as fast as `rx.value_and_grad`: the forward pass
    is computed once, and the program is the same. Outside compiled code it is slow, because each
    operation is differentiated alone.

    **Differs from TF:** NumPy arrays and Python numbers cannot be watched; convert them with
    `jnp.asarray`. Gradients by complex numbers follow `jax.grad`, and are the conjugates of
    TensorFlow's. Outside compiled code, reading a variable while a part of the block is compiled
    (`jax.jit`, `lax.scan`, an LSTM) raises an error.

    Args:
        persistent: Whether gradients may be computed more than once.
        watch_accessed_variables: Whether reading a trainable variable watches it.

    Example:
        >>> import jax.numpy as jnp
        >>> import keras
        >>> import replicax as rx
        >>> w = keras.Variable(3.0)
        >>> @rx.function
        ... def step(x):
        ...     with rx.GradientTape() as tape:
        ...         loss = (w * x) ** 2
        ...     return loss, tape.gradient(loss, [w])
        >>> loss, (gradient,) = step(jnp.float32(2.0))
        >>> float(loss), float(gradient)
        (36.0, 24.0)
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent = persistent
        self._log = TapeEntries()
        self._variables = TapeVariables(self._log, accessed=watch_accessed_variables)
        self._block: contextlib.ExitStack | None = None
        self._state = "unused"

    def __enter__(self) -> GradientTape:
        if self._block is not None:
            raise TapeMisuse(
                "The block of this tape is already open. Make another `GradientTape()`."
            )
        if self._state == "spent":
            self._variables.clear()
        self._state = "recording"
        with contextlib.ExitStack() as stack:
            self._variables.begin(stack.enter_context(recorded(self._log)))
            stack.enter_context(_compat.observing_reads(self._variables.observe))
            self._block = stack.pop_all()
        self._log.recording = True
        return self

    def __exit__(self, *error: Any) -> None:
        self._log.recording = False
        block, self._block = self._block, None
        if block is not None:
            block.close()

    def watch(self, tensor: Any) -> None:
        """Record the computations that depend on arrays or variables.

        Args:
            tensor: An array, a variable, or a nest of them.

        Raises:
            UsageError: If a leaf is neither an array nor a variable.
            TapeMisuse: If the block of the tape is not open.
        """
        self._check_open("watch")
        for leaf in leaves_of(tensor):
            if isinstance(leaf, _compat.KerasVariable):
                self._variables.watch(leaf)
                continue
            value = checked(leaf, "watch")
            if is_differentiable(value):
                self._log.watch(value)
            else:
                logger.warning("A tape cannot watch %s: convert it to floats.", value.dtype)

    @contextlib.contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Record nothing in a `with` block inside the tape's block.

        Raises:
            TapeMisuse: If the block of the tape is not open.
        """
        self._check_open("stop_recording")
        before, self._log.recording = self._log.recording, False
        try:
            yield
        finally:
            self._log.recording = before

    def reset(self) -> None:
        """Forget all records and watched variables; the block stays open.

        Raises:
            TapeMisuse: If the block of the tape is not open.
        """
        self._check_open("reset")
        self._log.clear()
        self._variables.clear()

    def watched_variables(self) -> tuple[Any, ...]:
        """The watched variables, in the order of their first reads."""
        return tuple(self._variables.watched.values())

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> Any:
        """Differentiate the sum of the targets.

        Args:
            target: An array that the block computed, or a nest of them.
            sources: Arrays, variables, or a nest of them.
            output_gradients: Weights of the targets' elements, in the nest of `target`.
            unconnected_gradients: The gradient by a source on which no target depends: "none" or
                "zero".

        Returns:
            A gradient for each source, in the nest of `sources`.

        Raises:
            TapeMisuse: If the tape is not persistent and has been used.
            PerReplicaMisuse: If a target or a source has a component for each replica.
            UsageError: If a target or a source is not an array.
        """
        unconnected = UnconnectedGradients(unconnected_gradients)
        targets = [self._target(leaf) for leaf in leaves_of(target)]
        seeds = [(t, s) for t, s in seeds_for(targets, output_gradients) if t in self._log]
        values = [self._values_of(source) for source in leaves_of(sources)]
        with self._used() as again:
            found = self._log.backward(seeds, sum(values, []), again=again)
        gradients = [
            gradient_of(source, [found[id(v)] for v in vs if id(v) in found], unconnected)
            for source, vs in zip(leaves_of(sources), values, strict=True)
        ]
        return keras.tree.pack_sequence_as(sources, gradients)

    def jacobian(
        self,
        target: Any,
        sources: Any,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """Differentiate each element of a target.

        Args:
            target: An array that the block computed.
            sources: Arrays, variables, or a nest of them.
            unconnected_gradients: As in `gradient`.
            parallel_iterations: Ignored: all elements are computed at once.
            experimental_use_pfor: Ignored.

        Returns:
            For each source an array of the target's shape followed by the source's shape.

        Raises:
            TapeMisuse: If the tape is not persistent and has been used.
            UsageError: If the target or a source is not an array.
        """
        del parallel_iterations, experimental_use_pfor
        unconnected = UnconnectedGradients(unconnected_gradients)
        target = self._target(target)
        one_hot = jnp.eye(target.size, dtype=target.dtype).reshape(-1, *target.shape)
        rows = self._rows(target, sources, one_hot)
        jacobians = [
            jacobian_of(row, source.shape, stored_type(source), target.shape, unconnected)
            for row, source in zip(rows, leaves_of(sources), strict=True)
        ]
        return keras.tree.pack_sequence_as(sources, jacobians)

    def batch_jacobian(
        self,
        target: Any,
        source: Any,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """Differentiate each element of a target by the same row of the source.

        Args:
            target: An array whose row i depends only on row i of the source.
            source: An array with the same number of rows.
            unconnected_gradients: As in `gradient`.
            parallel_iterations: Ignored: all elements are computed at once.
            experimental_use_pfor: Ignored.

        Returns:
            An array of the target's shape followed by the shape of a row of the source.

        Raises:
            TapeMisuse: If the tape is not persistent and has been used.
            UsageError: If the numbers of rows differ.
        """
        del parallel_iterations, experimental_use_pfor
        unconnected = UnconnectedGradients(unconnected_gradients)
        target = self._target(target)
        (rows,) = self._rows(target, source, basis_of_rows(target, source))
        if rows is not None:  # (elements, rows, …)
            rows = jnp.moveaxis(rows, 0, 1).reshape(-1, *source.shape[1:])
        return jacobian_of(rows, source.shape[1:], stored_type(source), target.shape, unconnected)

    def _rows(self, target: Any, sources: Any, basis: Any) -> list[Any]:
        """The gradients by the sources for each output gradient of `basis`; None if unconnected."""
        values = [self._values_of(source) for source in leaves_of(sources)]

        with self._used() as again:

            def row(weights: Any) -> list[Any]:
                seeds = [(target, weights)] if target in self._log else []
                found = self._log.backward(seeds, sum(values, []), again=again)
                return [total([found[id(v)] for v in vs if id(v) in found]) for vs in values]

            return jax.vmap(row)(basis)

    @contextlib.contextmanager
    def _used(self) -> Iterator[bool]:
        """Compute gradients in a `with` block; yields whether they are recorded in turn."""
        if self._state == "spent":
            raise TapeMisuse(
                "This tape has already computed its gradients, and deleted its records. Compute "
                "all gradients in one call, or use `GradientTape(persistent=True)`."
            )
        if self._persistent:
            yield self._log.recording
            return
        self._log.recording = False  # the rest of the block is not recorded
        yield False
        self._log.clear()
        self._state = "spent"

    def _check_open(self, what: str) -> None:
        if self._block is None:
            raise TapeMisuse(
                f"Cannot call `{what}` outside the tape's block. Call it inside `with "
                "rx.GradientTape() as tape:`."
            )

    def _target(self, target: Any) -> Any:
        if isinstance(target, _compat.KerasVariable):
            copies = self._variables.values_of(target)
            if copies:
                return copies[-1]
            self._variables.watch(target)
            return self._variables.copy_of(target, _compat.read(target))
        target = checked(target, "differentiate")
        if not is_differentiable(target):
            logger.warning("A tape cannot differentiate %s: convert it to floats.", target.dtype)
        return target

    def _values_of(self, source: Any) -> list[Any]:
        if isinstance(source, _compat.KerasVariable):
            return self._variables.values_of(source)
        return [checked(source, "differentiate by")]


@final
class TapeVariables:
    """The variables that a tape watches, and the recorded copies of their values.

    A read returns a copy that belongs to this variable alone, because two variables may hold one
    array. In compiled code a copy is free. With `accessed`, reading a trainable variable watches
    it.
    """

    def __init__(self, log: TapeEntries, *, accessed: bool) -> None:
        self.watched: dict[int, Any] = {}
        self._log = log
        self._accessed = accessed
        self._copies: dict[int, list[tuple[Any, Any]]] = {}  # pairs (value, copy)

    def begin(self, trace: RecordingTrace) -> None:
        self._trace = trace
        self._scope = _compat.get_stateless_scope()

    def clear(self) -> None:
        self.watched.clear()
        self._copies.clear()

    def watch(self, variable: Any) -> None:
        self.watched[id(variable)] = variable

    def values_of(self, variable: Any) -> list[Any]:
        """The copies of a variable's value: one, and one more for each assignment."""
        return [copy for _, copy in self._copies.get(id(variable), [])]

    def observe(self, variable: Any, value: Any) -> Any:
        """Called at each read of a variable; returns the value that the reader gets."""
        if not self._log.recording or not self._is_read_here(variable):
            return value
        if self._accessed and variable.trainable:
            self.watch(variable)
        if id(variable) not in self.watched or not is_differentiable(value):
            # No gradient flows through an assignment.
            return self._trace.detached(value) if value in self._log else value
        copy = self.copy_of(variable, value)
        if self._trace.is_eager and not self._trace.records(copy):
            raise TapeMisuse(
                f"Cannot record variable '{variable.path}': JAX compiles a part of the tape's "
                "block (a `jax.jit`, a scan, a loop or a recurrent layer), and its gradient "
                "would be missing. Put the whole step into an `rx.function`."
            )
        return copy

    def copy_of(self, variable: Any, value: Any) -> Any:
        """The recorded copy of a variable with this value."""
        copies = self._copies.setdefault(id(variable), [])
        copy = next((copy for known, copy in copies if known is value), None)
        if copy is None:
            copy = self._trace.detached(value)
            self._log.watch(copy)
            copies.append((value, copy))
        return copy

    def _is_read_here(self, variable: Any) -> bool:
        """Whether a read returns the variable's value in the tape's block, not a substitute."""
        scope: Any = _compat.get_stateless_scope()
        while scope is not None and scope is not self._scope:
            # Symbolic scopes and scopes that look for a function's variables use placeholders.
            finds = getattr(scope, "finds", _compat.in_symbolic_scope())
            if finds or id(variable) in scope.state_mapping:
                return False
            scope = scope.original_scope
        return scope is self._scope
