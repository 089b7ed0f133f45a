"""`custom_gradient`: functions with derivatives of their own; `recompute_grad`."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.extend
import jax.numpy as jnp

from replicax._core.errors import UsageError, checks_types
from replicax._keras import _compat
from replicax._program.capture import CaptureScope, evaluate, is_array
from replicax._tape.recording_trace import is_differentiable


@checks_types
def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function a derivative of its own; a decorator.

    `GradientTape`, `rx.value_and_grad` and `jax.grad` all use this derivative.

    **Differs from TF:** Python integers, booleans and strings stay Python objects, without a
    gradient.

    Args:
        f: Returns its result and a gradient function, which maps the gradient of each result to
            the gradient of each argument (None for zero). If `f` reads trainable variables, the
            gradient function takes them as `variables=`, and returns the gradients of the arguments
            and a list of gradients of the variables.

    Returns:
        A function that returns the result alone.

    Raises:
        UsageError: If gradients are missing, or the gradient function does not take `variables`.

    Example:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> @rx.custom_gradient
        ... def log1pexp(x):
        ...     e = jnp.exp(x)
        ...     return jnp.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))
        >>> x = jnp.float32(100.0)
        >>> with rx.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = log1pexp(x)
        >>> float(tape.gradient(y, x))
        1.0
    """

    @functools.wraps(f)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        given = _Arguments.of(args)
        pure = PureFunction(lambda arrays: _result_and_rule(f(*given.rebuild(arrays), **kwargs)))

        @jax.custom_vjp
        def transformed(values: Any, arrays: Any) -> Any:
            (result, _), news = pure(values, arrays)
            return result, news

        def forward(values: Any, arrays: Any) -> Any:
            (result, rule), news = pure(values, arrays)
            backward = _as_pytree(rule, result, pure, values, given, arrays)
            return (result, news), (backward, values, arrays)

        transformed.defvjp(forward, _backward)
        return pure.run(transformed, given.arrays)

    return decorated


def _as_pytree(
    rule: Callable[..., Any],
    result: Any,
    pure: PureFunction,
    values: Sequence[Any],
    given: _Arguments,
    arrays: Sequence[Any],
) -> Any:
    """Turn the user's gradient function into a pytree, which JAX keeps for the backward pass.

    It returns the gradients of the differentiable inputs: variables' values, then arguments.
    """
    inputs = [*values, *arrays]

    def gradients(weights: Any) -> list[Any]:
        if not pure.is_complete:  # `pure` will be called again, with all the variables it reads
            return [jnp.zeros_like(value) for value in inputs if is_differentiable(value)]
        with pure.bound(values):
            found = _gradients(rule, jax.tree.leaves(weights), given, pure.variables)
        pairs = zip(found, inputs, strict=True)
        return [_like(gradient, value) for gradient, value in pairs if is_differentiable(value)]

    jaxpr = jax.make_jaxpr(gradients)(result)
    return jax.tree_util.Partial(_Rule(jaxpr), *jaxpr.consts)


def _backward(kept: Any, weights: Any) -> Any:
    rule, *groups = kept
    found = iter(rule(*jax.tree.leaves(weights[0])))
    return tuple(
        [next(found) if is_differentiable(value) else None for value in group] for group in groups
    )


def recompute_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """Compute a function again in the backward pass, instead of keeping its intermediate values.

    Args:
        f: A function that returns a nest of arrays. It may use variables.

    Returns:
        A function with the same arguments and results.

    Example:
        >>> import jax.numpy as jnp
        >>> from replicax import tf
        >>> block = tf.recompute_grad(lambda x: jnp.sin(jnp.sin(x)))
        >>> float(block(jnp.float32(0.0)))
        0.0
    """

    @functools.wraps(f)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        given = _Arguments.of(args)
        pure = PureFunction(lambda arrays: f(*given.rebuild(arrays), **kwargs))
        return pure.run(jax.checkpoint(lambda values, arrays: pure(values, arrays)), given.arrays)

    return decorated


class _Rule:
    """The jaxpr of a gradient function, called with its constants and then its arguments."""

    def __init__(self, jaxpr: Any) -> None:
        self._jaxpr = jaxpr

    def __call__(self, *inputs: Any) -> Any:
        count = len(self._jaxpr.consts)
        closed = jax.extend.core.ClosedJaxpr(self._jaxpr.jaxpr, list(inputs[:count]))
        return evaluate(closed, *inputs[count:])


class _Arguments(NamedTuple):
    """The flattened arguments of a call, and the positions of the arrays among them."""

    leaves: list[Any]
    tree: Any
    places: list[int]
    arrays: list[Any]

    @classmethod
    def of(cls, args: Any) -> _Arguments:
        """Flatten arguments, and convert floats and variables to arrays."""
        leaves, tree = jax.tree.flatten(args)
        wanted = (float, complex, _compat.KerasVariable)
        places = [i for i, x in enumerate(leaves) if is_array(x) or isinstance(x, wanted)]
        return cls(leaves, tree, places, [jnp.asarray(leaves[i]) for i in places])

    def rebuild(self, arrays: Sequence[Any]) -> Any:
        leaves = list(self.leaves)
        for place, array in zip(self.places, arrays, strict=True):
            leaves[place] = array
        return self.tree.unflatten(leaves)

    def of_arrays(self, returned: Any) -> list[Any]:
        """Pick the arrays' gradients from the returned ones, which may include Python numbers'."""
        gradients = jax.tree.leaves(returned, is_leaf=lambda leaf: leaf is None)
        if len(gradients) == len(self.arrays):
            return gradients
        plain = {i for i, leaf in enumerate(self.leaves) if isinstance(leaf, int | str)}
        counted = sorted({*self.places, *plain})
        if len(gradients) != len(counted):
            raise UsageError(
                f"The gradient function returned {len(gradients)} gradients for "
                f"{len(self.arrays)} arrays. Return one for each argument, None for one without "
                "influence."
            )
        by_place = dict(zip(counted, gradients, strict=True))
        return [by_place[place] for place in self.places]


def _result_and_rule(returned: Any) -> tuple[Any, Callable[..., Any]]:
    if not (isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1])):
        raise UsageError(
            "A function with `custom_gradient` must return `(result, grad_fn)`, got "
            f"{type(returned).__name__}."
        )
    return jax.tree.map(jnp.asarray, returned[0]), returned[1]


def _gradients(
    rule: Callable[..., Any], weights: Sequence[Any], given: _Arguments, variables: list[Any]
) -> list[Any]:
    """Call the gradient function; gradients of the variables, then of arrays; None for zero."""
    trainable = [variable for variable in variables if variable.trainable]
    if not trainable:
        return [*[None] * len(variables), *given.of_arrays(rule(*weights))]
    parameters = inspect.signature(rule).parameters.values()
    if not any(p.name == "variables" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise UsageError(
            "The gradient function has no argument `variables`, but the function reads "
            f"{trainable[0].path!r}. Add `variables=None`, and return the gradients of the "
            "arguments and a list of the variables' gradients."
        )
    of_arguments, of_variables = rule(*weights, variables=trainable)
    if len(of_variables) != len(trainable):
        raise UsageError(
            f"The gradient function returned {len(of_variables)} gradients for {len(trainable)} "
            "variables. Return one for each, in the order of `variables`."
        )
    by_variable = dict(zip(map(id, trainable), of_variables, strict=True))
    mine = [by_variable.get(id(variable)) for variable in variables]
    return [*mine, *given.of_arrays(of_arguments)]


def _like(gradient: Any, value: Any) -> Any:
    if gradient is None:
        return jnp.zeros(value.shape, value.dtype)
    return jnp.asarray(gradient, value.dtype)


@final
class PureFunction:
    """A pure function: variables become arguments, and assignments become results."""

    def __init__(self, call: Callable[[Sequence[Any]], Any]) -> None:
        self.variables: list[Any] = []
        self._call = call
        self._written: list[Any] = []
        self._missing: list[Any] = []

    def __call__(self, values: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The result, and the new values of the assigned variables."""
        with self.bound(values) as scope:
            try:
                result = self._call(arrays)
            finally:
                self._missing = list(scope.reads.values())
        updates = scope.updates()
        self._written = [variable for variable, _ in updates]
        return result, [new for _, new in updates]

    @contextlib.contextmanager
    def bound(self, values: Sequence[Any]) -> Iterator[CaptureScope]:
        with CaptureScope(finds=True) as scope:
            scope.bind(zip(self.variables, values, strict=True))
            yield scope

    @property
    def is_complete(self) -> bool:
        """Whether all variables that the last call read are arguments."""
        return not self._missing

    def run(
        self,
        transformed: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Sequence[Any]]],
        arrays: Sequence[Any],
    ) -> Any:
        """Call the transformed function, again until all variables that it reads are arguments."""
        while True:
            values = [_compat.read(variable) for variable in self.variables]
            try:
                result, news = transformed(values, arrays)
            except Exception:
                # A variable that is not yet an argument may be a tracer of an outer trace.
                if self.is_complete:
                    raise
            else:
                if self.is_complete:
                    break
            self.variables += self._missing
        for variable, new in zip(self._written, news, strict=True):
            variable.assign(new)
        return result
