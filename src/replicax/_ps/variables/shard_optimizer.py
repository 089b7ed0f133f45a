"""A Keras optimizer taken apart: it updates a variable, or some rows of one, where they live.

A parameter server has neither the model nor the optimizer's variables: it has values, and beside
each value its slots (momenta, accumulators). For every shape of value a copy of the optimizer is
built around one variable of that shape, and its `stateless_apply` is compiled. The worker that
sends gradients has done what needs all of them at once (clipping by norm, loss scaling).

What SGD, Adagrad, Adam and Ftrl do to rows of a sparse table is also here in NumPy, in place. That
is faster than the compiled optimizer, which must be given rows in few shapes and makes new arrays.
Both are lazy: a row without a gradient is left alone, with its slots.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import jax.numpy as jnp
import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._keras.distribution import with_distribution
from replicax._program.compiling import compiled, compiled_call

# Settings by which a row's update depends on other rows or steps, or does more.
_NOT_ROWWISE = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
    "amsgrad",
)
RowwiseOptimizer = Callable[[np.ndarray, np.ndarray, Sequence[np.ndarray], int, float], None]
"""`(values, gradients, slots, step, rate)`: updates values and slots in place.

`step` is the number of earlier updates of the variable: Keras' `iterations`.
"""


class Part(NamedTuple):
    """A value as an optimizer needs to know it: a variable, a shard of it, or some of its rows.

    The constraint is applied after an update.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    decays: bool = True
    constraint: Any = None


class Slot(NamedTuple):
    """A variable that an optimizer keeps, if it was found; `shared` by all values it updates."""

    variable: Any
    shared: bool


class Recipe(NamedTuple):
    """The class of an optimizer and its `get_config`, from which copies are made."""

    kind: type
    config: dict[str, Any]

    @classmethod
    def of(cls, optimizer: Any) -> Recipe:
        """The recipe of a Keras optimizer, without the work on gradients that workers do."""
        if isinstance(optimizer, _compat.LossScaleOptimizer):
            raise UsageError(
                "Parameter servers cannot run a LossScaleOptimizer, which needs the gradients of "
                "all variables at once. Use bfloat16, or the `loss_scale_factor` of the inner "
                "optimizer."
            )
        config = dict(optimizer.get_config())
        rate = _compat.learning_rate(optimizer)
        if not isinstance(rate, _compat.KerasVariable):
            config["learning_rate"] = rate  # itself: Keras could not find a class of the program
        clips = any(config.get(name) for name in _CLIPPING)
        if clips and config.get("gradient_accumulation_steps"):
            raise UsageError(
                "Parameter servers cannot combine gradient clipping with "
                "`gradient_accumulation_steps`. Leave out one of the two."
            )
        config.update(dict.fromkeys([*_CLIPPING, "loss_scale_factor"]))
        return cls(type(optimizer), config)


_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")


@final
class ShardOptimizer:
    """Updates values and their slots as one Keras optimizer does."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._built: dict[Part, tuple[Any, list[Any], list[np.ndarray]]] = {}
        self._updates: dict[tuple[Part, ...], Callable[..., Any]] = {}
        self._compiling = threading.Lock()

    def initial_slots(self, part: Part) -> list[np.ndarray]:
        """The slots of a value that was never updated."""
        # Copies: several shards are equal parts, and each changes its own slots in place.
        return [slot.copy() for slot in self._build(part)[2]]

    def slots_in(self, part: Part, original: Any, variable: Any) -> list[Slot]:
        """The original optimizer's variables that are the slots of one of its variables.

        `part` is the variable; its rows may be fewer.
        """
        copy, slots, _ = self._build(part)
        known = [id(one) for one in _compat.trainable_variables(original)]
        number = known.index(id(variable))
        return [Slot(*_found(original, *_place(copy, slot), number)) for slot in slots]

    def update(
        self,
        parts: Sequence[Part],
        values: Sequence[Any],
        grads: Sequence[Any],
        slots: Sequence[Sequence[Any]],
        iterations: int,
        learning_rate: float | None,
        scale: float = 1.0,
    ) -> tuple[list[Any], list[list[Any]]]:
        """One step for several values at once: the new values and the new slots.

        `iterations` steps came before. The learning rate is None for a schedule; gradients are
        multiplied by `scale`.
        """
        key = tuple(parts)
        rate = None if learning_rate is None else np.float32(learning_rate)
        given = values, grads, slots, np.int32(iterations), rate, np.float32(scale)
        if key not in self._updates:
            with self._compiling:  # compiled once, even while `prepare` runs
                if key not in self._updates:
                    update = compiled(self._traced(key))
                    found = update(*given)
                    self._updates[key] = compiled_call(update)
                    return found
        return self._updates[key](*given)

    def prepare(self, parts: Sequence[Part], learning_rate: float | None) -> None:
        """Compile the update of these values ahead, by a step whose results are dropped."""
        values = [np.zeros(part.shape, part.dtype) for part in parts]
        self.update(
            parts, values, values, [self._build(part)[2] for part in parts], 0, learning_rate
        )

    def _traced(self, parts: tuple[Part, ...]) -> Callable[..., Any]:
        copies = [self._build(part)[:2] for part in parts]

        def update(
            values: Any, grads: Any, slots: Any, iterations: Any, rate: Any, scale: Any
        ) -> tuple[list[Any], list[list[Any]]]:
            new_values, new_slots = [], []
            for (optimizer, mine), value, grad, held in zip(
                copies, values, grads, slots, strict=True
            ):
                shared = {id(_compat.iterations(optimizer)): iterations}
                if rate is not None:
                    shared[id(_compat.learning_rate(optimizer))] = rate
                shared.update({id(v): array for v, array in zip(mine, held, strict=True)})
                state = [shared[id(variable)] for variable in optimizer.variables]
                scaled = grad * scale.astype(grad.dtype)
                (new,), news = optimizer.stateless_apply(state, [scaled], [value])
                found = dict(zip(map(id, optimizer.variables), news, strict=True))
                new_values.append(jnp.asarray(new, value.dtype))
                new_slots.append([found[id(variable)] for variable in mine])
            return new_values, new_slots

        return update

    def _build(self, part: Part) -> tuple[Any, list[Any], list[np.ndarray]]:
        if part not in self._built:
            with with_distribution(None):  # the copy belongs to no strategy, even in an open scope
                self._built[part] = _copy(self._recipe, part)
        return self._built[part]


def check_by_rows(optimizer: Any, variables: Sequence[Any]) -> None:
    """Refuse an optimizer that cannot update only some rows of a table."""
    if not variables:
        return
    why, of = None, variables[0]
    constrained = [v for v in variables if getattr(v, "constraint", None) is not None]
    if constrained:
        why, of = "the table has a constraint", constrained[0]
    elif optimizer.use_ema:
        why = "it averages all rows in each step (use_ema)"
    elif optimizer.gradient_accumulation_steps:
        why = "it adds up gradients of rows, and updates all (gradient_accumulation_steps)"
    elif not is_rowwise(Recipe.of(optimizer)):
        why = "its update looks at the variable as a whole"
    if why:
        raise UsageError(
            f"Cannot train '{of.path}' by rows with {type(optimizer).__name__}: {why}. Train the "
            "table with its own optimizer, such as SGD, Adagrad, Adam or Ftrl, or use "
            "`keras.layers.Embedding`."
        )


def is_rowwise(recipe: Recipe) -> bool:
    """Whether updating a variable by rows gives the same as updating all of it."""
    rng = np.random.default_rng(0)
    value = rng.normal(size=(4, 3)).astype("float32")
    grads = [rng.normal(size=(4, 3)).astype("float32") for _ in range(2)]
    # Settings under which each step changes something, without waiting or warm-up.
    sure = {"learning_rate": 0.1, "gradient_accumulation_steps": None}
    optimizer = ShardOptimizer(recipe._replace(config={**recipe.config, **sure}))
    pieces = [slice(0, 4), slice(0, 2), slice(2, 4)]
    parts = [Part(f"probe_{p.start}_{p.stop}", value[p].shape, "float32") for p in pieces]
    values: Any = [value[piece] for piece in pieces]
    slots: Any = [optimizer.initial_slots(part) for part in parts]
    for step, grad in enumerate(grads):
        pushed = [grad[piece] for piece in pieces]
        values, slots = optimizer.update(parts, values, pushed, slots, step, 0.1)
    whole, *halves = map(np.asarray, values)
    return bool(np.allclose(np.concatenate(halves), whole, rtol=1e-5, atol=1e-7))


def _copy(recipe: Recipe, part: Part) -> tuple[Any, list[Any], list[np.ndarray]]:
    """An optimizer for one value, its slots, and their initial values."""
    config = dict(recipe.config)
    if not part.decays and config.get("weight_decay") is not None:
        config["weight_decay"] = 0.0
    optimizer: Any = recipe.kind.from_config(config)  # pyright: ignore[reportAttributeAccessIssue]
    # By the name of an initializer, which compiles nothing for each shape.
    variable = keras.Variable("zeros", shape=part.shape, dtype=part.dtype, name="value")
    _compat.set_path(variable, part.path)
    variable.constraint = part.constraint
    optimizer.build([variable])
    shared = (_compat.iterations(optimizer), _compat.learning_rate(optimizer))
    slots = [v for v in optimizer.variables if all(v is not one for one in shared)]
    initial = [np.array(slot.value) for slot in slots]
    # The copy's own values are never used, and may be large.
    for held in [variable, *slots]:
        _compat.store(held, jnp.asarray(np.zeros((), held.dtype)))
    return optimizer, slots, initial


def _place(optimizer: Any, slot: Any) -> tuple[str, Any]:
    """The attribute by which an optimizer knows one of its variables, and the key in it."""
    for name, held in vars(optimizer).items():
        if name in ("_variables", "_trainable_variables"):
            continue  # all of them, in any order
        if held is slot:
            return name, None
        items = held.items() if isinstance(held, dict) else enumerate(_as_list(held))
        for key, one in items:
            if one is slot:
                return name, key
    return "", None


def _found(original: Any, name: str, key: Any, number: int) -> tuple[Any, bool]:
    """The variable at the same place in another optimizer, of several variables."""
    held = getattr(original, name, None)
    if isinstance(held, dict):
        return held.get(key), False
    listed = _as_list(held)
    if key is not None:
        return (listed[number] if number < len(listed) else None), False
    return held, True


def _as_list(held: Any) -> list[Any]:
    return list(held) if isinstance(held, list | tuple) else []


def rowwise_optimizer(
    name: str, config: Mapping[str, Any], dtype: Any = "float32"
) -> RowwiseOptimizer | None:
    """Choose the row-wise form of a Keras optimizer; None if these settings have none.

    Example:
        >>> rowwise_optimizer("Adam", {"clipnorm": 1.0}) is None
        True
    """
    if any(config.get(setting) for setting in _NOT_ROWWISE):
        return None
    if np.dtype(dtype) not in (np.float32, np.float64):
        return None  # NumPy computes half precision slowly, one number at a time
    # Powers other than the root are computed per element, which is slow in NumPy.
    if name == "Ftrl" and config["learning_rate_power"] != -0.5:
        return None
    update = {
        "SGD": _momentum if config.get("momentum") else _sgd,
        "Adagrad": _adagrad,
        "Adam": _adam,
        "Ftrl": _ftrl,
    }.get(name)
    if update is None:
        return None

    def step_rows(values: Any, gradients: Any, slots: Any, step: int, rate: float) -> None:
        # The steps of Keras in its single precision, so that results agree to 1e-6.
        gradients = np.asarray(gradients, values.dtype)
        update(config, values, gradients, slots, step, values.dtype.type(rate))

    return step_rows


def _sgd(config: Any, values: Any, gradients: Any, slots: Any, step: int, rate: Any) -> None:
    values -= gradients * rate


def _momentum(config: Any, values: Any, gradients: Any, slots: Any, step: int, rate: Any) -> None:
    (velocity,) = slots
    moved = gradients * rate
    velocity *= values.dtype.type(config["momentum"])
    velocity -= moved
    if config["nesterov"]:
        values -= moved
        values += velocity * values.dtype.type(config["momentum"])
    else:
        values += velocity


def _adagrad(config: Any, values: Any, gradients: Any, slots: Any, step: int, rate: Any) -> None:
    (squares,) = slots
    work = gradients * gradients
    squares += work
    np.add(squares, values.dtype.type(config["epsilon"]), out=work)
    np.sqrt(work, out=work)
    np.divide(gradients, work, out=work)
    work *= rate
    values -= work


def _adam(config: Any, values: Any, gradients: Any, slots: Any, step: int, rate: Any) -> None:
    first, second = slots
    number = values.dtype.type
    beta_1, beta_2 = number(config["beta_1"]), number(config["beta_2"])
    local = number(step + 1)
    # Corrects the bias of both averages, which begin at 0.
    alpha = rate * np.sqrt(1 - beta_2**local) / (1 - beta_1**local)
    work = gradients - first
    work *= number(1 - config["beta_1"])
    first += work
    np.multiply(gradients, gradients, out=work)
    work -= second
    work *= number(1 - config["beta_2"])
    second += work
    np.sqrt(second, out=work)
    work += number(config["epsilon"])
    np.divide(first, work, out=work)
    work *= alpha
    values -= work


def _ftrl(config: Any, values: Any, gradients: Any, slots: Any, step: int, rate: Any) -> None:
    squares, linear = slots
    number = values.dtype.type
    l1 = number(config["l1_regularization_strength"])
    l2 = config["l2_regularization_strength"] + number(config["beta"]) / (2 * rate)
    root = np.sqrt(squares)
    squares += gradients * gradients  # the gradient of the loss alone, without the shrinkage
    new_root = np.sqrt(squares)
    np.subtract(new_root, root, out=root)
    root /= rate
    root *= values
    linear -= root
    linear += gradients
    if config["l2_shrinkage_regularization_strength"]:
        linear += number(2 * config["l2_shrinkage_regularization_strength"]) * values
    new_root /= rate
    new_root += number(2 * l2)
    np.clip(linear, -l1, l1, out=root)
    root -= linear
    np.divide(root, new_root, out=values)
