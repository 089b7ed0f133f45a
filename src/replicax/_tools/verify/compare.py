"""Compares two runs step by step: pure functions of records."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from replicax._tools.verify.record import (
    GRADIENT,
    METRIC,
    NORMS,
    SEED,
    SLOT,
    STATISTIC,
    WEIGHT,
    Key,
    Run,
    StepInput,
    StepRecord,
    Value,
)

# In the order of a step: the first difference is nearest to the cause.
ROWS, START, COPIES, RESULT, STEPS = "rows", "initial value", "copies", "result", "steps"
ORDER = (START, ROWS, SEED, STATISTIC, GRADIENT, RESULT, WEIGHT, COPIES, SLOT, METRIC, STEPS)
_EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
_FACTOR, _MOST = 16.0, 0.25
# An optimizer's results, for example of divisions, differ more than the gradients.
_OF_UPDATES = 30.0
# Adam turns rounding errors into steps, which shift the mean that a normalisation sees.
_AFTER_NOISE = 0.05


@final
@dataclass(frozen=True)
class Difference:
    """Something that is not as on one device."""

    step: int  # from 1; 0 before the first
    kind: str  # a word of `ORDER`
    name: str  # a variable's path, or the name of a result
    size: float = 1.0  # of the difference, relative to the value
    allowed: float = 0.0  # size
    ratio: float = 1.0  # by which one device's is multiplied, as nearly as can be
    rest: float = 0.0  # the difference that is then left, relative to the value


def epsilon(types: Iterable[str]) -> float:
    """The rounding error of the coarsest of some types; float32's if none is a float."""
    return max((_EPSILON[kind] for kind in types if kind in _EPSILON), default=2.0**-24)


def tolerance(rounding: float, terms: int, step: int) -> float:
    """How much a sum of `terms` may differ after `step` steps, relative to its size.

    Errors of additions add up like a random walk, with the root of their number, and each step
    starts from the last one's result.
    """
    return min(_FACTOR * rounding * math.sqrt(max(terms, 1)) * step, _MOST)


def differences(reference: Run, other: Run, rounding: float) -> list[Difference]:
    """The differences of the first step that has any, nearest to the cause first."""
    found = list(_at_start(reference, other))
    before = reference.before, other.before
    for number, (ours, theirs) in enumerate(zip(reference.steps, other.steps, strict=False), 1):
        if found:
            break
        found = list(_of_step(number, ours, theirs, before, rounding))
        before = ours.values, theirs.values
    if not found and len(reference.steps) != len(other.steps):
        last = min(len(reference.steps), len(other.steps))
        found = [Difference(last + 1, STEPS, f"{len(other.steps)} of {len(reference.steps)} steps")]
    return sorted(found, key=lambda one: ORDER.index(one.kind))  # sorted is stable: layers in order


def rounding_of(run: Run) -> float:
    """The rounding error of the coarsest type that a program may compute with."""
    values = [value for step in run.steps[:1] for value in step.values.values()]
    return epsilon(run.types | {value.array.dtype.name for value in values})


def _at_start(reference: Run, other: Run) -> Iterator[Difference]:
    for key, mine in reference.before.items():
        theirs = other.before.get(key)
        if theirs is None or mine.kind in (GRADIENT, NORMS, SLOT, METRIC):
            continue
        if theirs.array.shape != mine.array.shape:
            yield Difference(0, START, mine.path)
        elif mine.array.tobytes() != theirs.array.tobytes():
            found = _compared(0, START, mine.path, mine.array, theirs.array, 1e-6)
            yield from [found] if found else []


def _of_step(
    number: int,
    ours: StepRecord,
    theirs: StepRecord,
    before: tuple[Mapping[Key, Value], Mapping[Key, Value]],
    rounding: float,
) -> Iterator[Difference]:
    mine, others = rows(ours, theirs)
    if Counter(itertools.chain(*mine)) != Counter(itertools.chain(*others)):
        yield Difference(number, ROWS, f"{count(others)} rows, {count(mine)} on one device")
    allowed = tolerance(rounding, count(mine), number)
    gradients = [value.array for value in ours.of(GRADIENT).values()]
    noise = 0.1 * np.sqrt(sum(_norm(one) ** 2 for one in gradients))
    quiet = _without_signal(ours, float(noise) * allowed)
    for key, value in ours.values.items():
        other = theirs.values.get(key)
        if other is None or value.kind == NORMS:
            continue
        if other.spread:
            yield Difference(number, COPIES, value.path, other.spread)
        if key in quiet:
            continue
        scale = float(noise) if value.kind == GRADIENT else 0.0
        starts = before[0].get(key), before[1].get(key)
        shifted = value.kind == STATISTIC and number > 1 and bool(quiet)
        most = max(allowed, _AFTER_NOISE) if shifted else allowed
        found = _of_variable(number, value, other, starts, most, scale, rounding)
        yield from [found] if found else []
    yield from _of_results(number, ours, theirs, allowed)


def _without_signal(step: StepRecord, noise: float) -> set[Key]:
    """The weights, with their slots, whose gradients are nothing but rounding errors.

    A bias before a normalisation has such gradients, and Adam makes full steps of them.
    """
    quiet = [value.path for value in step.of(GRADIENT).values() if _norm(value.array) <= noise]
    flat = [f"{path.replace('/', '_')}_" for path in quiet]

    def is_quiet(value: Value) -> bool:
        return value.path in quiet or any(one in value.path for one in flat)

    return {key for key, value in step.of(WEIGHT, SLOT).items() if is_quiet(value)}


def _of_variable(
    number: int,
    mine: Value,
    theirs: Value,
    before: tuple[Value | None, Value | None],
    allowed: float,
    scale: float,
    rounding: float,
) -> Difference | None:
    name, kind = mine.path, mine.kind
    if mine.array.shape != theirs.array.shape:
        return Difference(number, kind, name)
    if kind == SEED or mine.array.dtype.kind not in "fV":
        same = mine.array.tobytes() == theirs.array.tobytes()
        return None if same else Difference(number, kind, name)
    if kind == GRADIENT:
        return _compared(number, kind, name, mine.array, theirs.array, allowed, floor=scale)
    of_updates = min(allowed * _OF_UPDATES, 0.5)
    if kind in (METRIC, SLOT):
        return _compared(number, kind, name, mine.array, theirs.array, of_updates, floor=1e-12)
    start, other = before
    if start is None or other is None:
        return _compared(number, kind, name, mine.array, theirs.array, allowed)
    change = _wide(mine.array) - _wide(start.array)
    others = _wide(theirs.array) - _wide(other.array)
    # A number's rounding is part of its small change.
    floor = _norm(mine.array) * rounding * 4 / allowed
    if kind == STATISTIC:  # the mean of numbers around 0 is a rounding error
        floor += 1e-4 * change.size**0.5
    return _compared(number, kind, name, change, others, of_updates, floor=floor)


def _compared(
    number: int,
    kind: str,
    name: str,
    mine: np.ndarray,
    theirs: np.ndarray,
    allowed: float,
    *,
    floor: float = 0.0,
) -> Difference | None:
    """The difference of two arrays of one shape, if it is more than is allowed."""
    a, b = _wide(mine).ravel(), _wide(theirs).ravel()
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        same = np.array_equal(np.isfinite(a), np.isfinite(b))
        return None if same else Difference(number, kind, name)
    size = _norm(b - a) / max(_norm(a), floor, 1e-30)
    if size <= allowed:
        return None
    ratio = float(a @ b) / max(float(a @ a), 1e-30)
    rest = _norm(b - ratio * a) / max(_norm(b), 1e-30)
    return Difference(number, kind, name, size, allowed, ratio, rest)


def _of_results(
    number: int, ours: StepRecord, theirs: StepRecord, allowed: float
) -> Iterator[Difference]:
    for name, mine in ours.results.items():
        given = theirs.results.get(name)
        if given is None or not all(array.dtype.kind in "fV" for array in (*mine, *given)):
            continue
        forms = [form for form in _forms(given) if form.shape == mine[0].shape]
        found = [_compared(number, RESULT, name, mine[0], form, allowed * 4) for form in forms]
        if forms and all(found):
            yield min((one for one in found if one), key=lambda one: one.size)


def _forms(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The possible meanings of the replicas' values: sum, mean, or concatenation."""
    if len(parts) == 1:
        return [parts[0]]
    wide = [_wide(part) for part in parts]
    forms = []
    if all(part.shape == wide[0].shape for part in wide):
        forms = [np.sum(wide, axis=0), np.mean(wide, axis=0)]
    if all(part.ndim for part in wide):
        forms.append(np.concatenate(wide))
    return forms


Pieces = list[list[tuple[bytes, ...]]]


def rows(ours: StepRecord, theirs: StepRecord) -> tuple[Pieces, Pieces]:
    """The rows of a step of two runs, by replica, of the arrays that the second run divided."""
    divided = [i for i, one in enumerate(theirs.given) if one.is_divided]
    if len(ours.given) != len(theirs.given):
        return [], []
    chosen = divided or range(len(theirs.given))
    return _joined([ours.given[i] for i in chosen]), _joined([theirs.given[i] for i in chosen])


def _joined(given: Sequence[StepInput]) -> Pieces:
    """Rows of several arrays: inputs with their targets."""
    if not given:
        return []
    sizes = [len(piece) for piece in given[0].pieces]
    alike = [one.pieces for one in given if [len(piece) for piece in one.pieces] == sizes]
    return [list(zip(*columns, strict=True)) for columns in zip(*alike, strict=True)]


def count(pieces: Pieces) -> int:
    return sum(map(len, pieces))


def _wide(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(_wide(array).ravel()))
